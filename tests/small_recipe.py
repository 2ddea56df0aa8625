"""A log so small that the recipe of `strong` is trained on it in a second, and what its runs have in common."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from small_run import CLI as CLI

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.models import train
from concf.runs.run import Run
from concf.strong.settings import StrongSettings

SMALL: dict[str, Any] = {"dimensions": 8, "consensus": {"top_k": 12, "shown": 12}, "training": {"metric": "recall@5"}}
REFITS = {"none": ("train",), "validation": ("train", "valid"), "everything": ("train", "valid", "test")}
STAGES = ["search", "als", "rerank", "student", "refit", "final"]
LOG = Simulation(users=48, items=40, events=1300, tastes=4)


def small(**changes: str) -> StrongSettings:
    return StrongSettings().changed(SMALL, changes)


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
    for name, best in run.best.items():
        twin = other.best[name]
        assert best.validation == twin.validation
        assert all(torch.equal(tensor, twin.state[part]) for part, tensor in best.state.items())
        assert (best.lists is None and twin.lists is None) or torch.equal(
            *map(torch.as_tensor, (best.lists, twin.lists))
        )
        assert all(torch.equal(tensor, twin.votes[part]) for part, tensor in best.votes.items())
