"""The default: voters, a re-ranker, a student, and all of it once more on the whole log."""
