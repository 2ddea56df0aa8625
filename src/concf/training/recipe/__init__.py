"""The default's recipe: voters that are solved, a re-ranker, a student, and all of it once more on the whole log."""
