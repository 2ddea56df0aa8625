"""The recommenders that people compare with."""
