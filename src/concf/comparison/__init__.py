"""Comparisons of models on the same splits."""
