"""Models that can vote or be compared, one table of them."""
