"""Comparisons of models on the same splits, and the demo."""
