"""The rooms of src/concf from the bottom up: a room imports only rooms below it. Read by tools/architecture.py too."""

FLOORS = [
    "errors", "runtime", "data", "evaluation", "baselines", "consensus", "runs", "reference", "strong", "loading",
    "models", "inference", "report", "comparison", "service", "cli",
]  # fmt: skip
