"""A run and its folder: checkpoint, model card, watchers."""
