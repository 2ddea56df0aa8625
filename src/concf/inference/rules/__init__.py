"""Rules when recommending."""
