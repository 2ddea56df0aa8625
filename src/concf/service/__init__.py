"""HTTP API of a run: lists, explanations and similar items, for programs and for the explorer page."""
