"""The floors of the house, from the bottom up: a room imports from its own floor and from those below it."""

FLOORS = [
    "errors",
    "runtime",
    "data",
    "model",
    "evaluation",
    "consensus",
    "training",
    "inference",
    "report",
    "experiments",
    "service",
    "cli",
]
