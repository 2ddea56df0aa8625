"""The explorer: a page about the served run."""
