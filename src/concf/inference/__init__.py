"""Recommendations from a trained run."""
