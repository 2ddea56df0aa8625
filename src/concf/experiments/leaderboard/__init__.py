"""Figures on public splits: a file for each published line, and ours."""
