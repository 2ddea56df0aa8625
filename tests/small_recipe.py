"""A log so small that the recipe of `strong` is trained on it in a second, and what its runs have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.models import choose_settings, train
from concf.runs.run import Run
from concf.runs.settings import RunSettings

CLI = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"top_k": 12, "kept": 12, "shown": 12},
    "training": {"metric": "recall@5"},
}
REFITS = {"none": ("train",), "validation": ("train", "valid"), "everything": ("train", "valid", "test")}
STAGES = ["search", "als", "softmax-a", "rerank", "student", "refit", "final"]
LOG = Simulation(users=48, items=40, events=1300, tastes=4)


def small(**recipe: str) -> RunSettings:
    return choose_settings(choose_settings("strong", SMALL), {"recipe": recipe})


@cache
def data() -> Split:
    return prepare(LOG.draw(1), protocol="random")


@cache
def trained(budget: str = "default", refit: str = "validation") -> Run:
    return train(data(), small(budget=budget, refit=refit), seed=3)


def without_seconds(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in run.history]


def assert_same(run: Run, other: Run) -> None:
    """History, vectors, lists and votes, to the bit."""
    assert without_seconds(run) == without_seconds(other)
    states = run.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    for name, best in run.best.items():
        twin = other.best[name]
        assert best.validation == twin.validation
        assert (best.lists is None and twin.lists is None) or torch.equal(
            *map(torch.as_tensor, (best.lists, twin.lists))
        )
        assert all(torch.equal(tensor, twin.votes[part]) for part, tensor in best.votes.items())
