"""The paper's idea: rankings, their consensus, and its re-ranking."""
