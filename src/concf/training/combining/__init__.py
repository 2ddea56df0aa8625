"""A consensus of voters from outside: what they give, and the run that comes of it."""
