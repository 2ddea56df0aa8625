"""The page docs/reproduction.md: tables, figures and verdicts on the claims of the paper, from measured lines."""
