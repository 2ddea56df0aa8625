"""The default model: voters, a re-ranker and a student, then a refit of all on the whole log."""
