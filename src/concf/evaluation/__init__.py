"""Ranking and scoring any recommender."""
