"""Users who were not there in training: vectors of each head, and their consensus, from a history."""
