"""A run over HTTP: lists, explanations and similar items, for programs and for the explorer page."""
