"""Commands that say something and train nothing."""
