"""New items by their attributes."""
