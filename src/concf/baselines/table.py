"""The baselines by name, each with the small grid that is searched for it, on validation only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Protocol

from concf.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from scipy.sparse import csr_array


class Baseline(Protocol):
    """Settings that can be fitted: `fit` returns something that `rank` takes."""

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Any:
        """Train on [users, items]; on a CPU the same data and seed give the same result.

        device: where the models that can use a GPU compute, and score; the others ignore it
        A baseline with the class variable `timed = True` also takes times=, [users, items] with the cells of `train`.
        """

    def model_dump(self) -> dict[str, Any]:
        """The settings as a dictionary."""


@dataclass(frozen=True)
class Vote:
    """Settings with which a baseline votes in the model strong; a timed one votes only where a log is split by time.

    A voter also needs `fold_in(fitted, histories)`, which scores histories [n, items] of new users as `fit` does those
    of the log; in a timed voter it also takes `times=`, [n, items]. In all others `fit` also takes `group=`.

    grid:   settings that are searched on validation, and their values
    fixed:  settings that are not searched
    budget: the smallest budget with this voter
    most:   (on a CPU, on a GPU) largest log on which it votes, by the smaller of the numbers of users and items
    items:  whether `most` bounds the number of items alone
    """

    grid: Mapping[str, tuple[float, ...]]
    fixed: dict[str, float] = field(default_factory=dict)
    budget: Literal["fast", "default", "thorough"] = "thorough"
    most: tuple[float, float] = (inf, inf)
    items: bool = False


@dataclass(frozen=True)
class Candidate:
    """Baseline, and the values tried for its settings.

    baseline: its class; concf's own as text, module.class, so that the table needs no PyTorch
    library: what it needs beyond the core; every_point: a grid of any size is measured whole, see `search`
    vote: how it votes; None: it is only compared
    """

    baseline: Any
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    library: str | None = None
    every_point: bool = False
    vote: Vote | None = None

    @property
    def make(self) -> Any:
        """The class of the baseline."""
        if not isinstance(self.baseline, str):
            return self.baseline
        module, _, name = self.baseline.partition(".")
        return getattr(import_module(f"concf.baselines.{module}"), name)

    @property
    def timed(self) -> bool:
        """Whether `fit` also takes `times=`, the times of the pairs (`Split.times`)."""
        if isinstance(self.baseline, str):
            return self.baseline.startswith(("timed.", "sequences."))
        return bool(getattr(self.baseline, "timed", False))

    def at(self, point: Sequence[int]) -> Baseline:
        """Return the baseline at a point of the grid, given by the position of each value."""
        baseline: Baseline = self.make(**self.values(point))
        return baseline

    def values(self, point: Sequence[int]) -> dict[str, Any]:
        """Return the settings at a point of the grid."""
        return {name: self.grid[name][at] for name, at in zip(self.grid, point, strict=True)}

    def settings(self) -> Iterator[Baseline]:
        """Yield the baseline at every point of the grid."""
        return map(self.at, product(*(range(len(values)) for values in self.grid.values())))


# Add your own: BASELINES["mine"] = Candidate(Mine, {"shrink": (1.0, 10.0)}, vote=Vote({"shrink": (1.0, 10.0)}))
BASELINES = {
    "popularity": Candidate("factorisation.Popularity"),
    "rp3beta": Candidate("neighbours.RP3beta", {
        "alpha": (0.3, 0.5, 0.7, 0.9), "beta": (-0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4),
        "neighbours": (200, 1000, 5000),
    }, vote=Vote({
        "alpha": (0.4, 0.5, 0.6, 0.7, 0.8), "beta": (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    }, budget="fast")),
    "itemknn": Candidate("neighbours.ItemKNN", {
        "neighbours": (50, 200, 1000, 5000), "shrink": (0.0, 10.0, 50.0, 200.0, 500.0),
    }),
    "userknn": Candidate("neighbours.UserKNN", {
        "neighbours": (100, 500, 2000), "power": (1.0, 1.5, 2.0, 3.0), "beta": (-0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    }, vote=Vote({"power": (1.0, 1.5, 2.0), "beta": (0.1, 0.2, 0.3, 0.4)}, fixed={"neighbours": 500})),
    "ease": Candidate("ease.EASE", {
        "regularisation": (20.0, 50.0, 100.0, 150.0, 250.0, 500.0, 1000.0),
    }, vote=Vote({"regularisation": (30.0, 100.0, 300.0, 1000.0)}, most=(10_000, 50_000))),
    "puresvd": Candidate("factorisation.PureSVD", {"factors": (4, 8, 16, 32, 64, 128, 192, 256)}),
    "ials": Candidate("factorisation.IALS", {
        "factors": (64, 128, 256, 512), "alpha": (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
        "regularisation": (8.0, 15.0, 30.0, 60.0, 120.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0),
        "iterations": (8, 15, 30),
    }, library="implicit"),
    "als": Candidate("factorisation.ALS", {
        "factors": (128, 256), "unobserved": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
        "penalty": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), "sweeps": (4, 8, 16),
    }),
    "recent-popularity": Candidate("timed.RecentPopularity", {
        "share": (0.01, 0.03, 0.1, 0.3),
    }, vote=Vote({"share": (0.01, 0.03, 0.1, 0.3)}, budget="fast")),
    "decayed-popularity": Candidate("timed.DecayedPopularity", {"half_life": (0.01, 0.03, 0.1, 0.3, None)}),
    "als-decayed": Candidate("timed.DecayedALS", {
        "unobserved": (0.01, 0.1), "penalty": (0.003, 0.01), "half_life": (0.03, 0.1, 0.3, None),
    }, vote=Vote({"half_life": (0.1, 0.3, 1.0)}, fixed={"factors": 64, "sweeps": 2}, budget="fast")),
    "ease-decayed": Candidate("timed.DecayedEASE", {
        "regularisation": (50.0, 150.0, 500.0), "half_life": (0.1, 0.3, 1.0, None),
    }),
    "slist": Candidate("sequences.SLIST", {
        "alpha": (0.2, 0.6), "memory": (5.0, 20.0, 80.0), "regularisation": (50.0, 200.0),
    }, vote=Vote({"alpha": (0.2, 0.6)}, {"regularisation": 100.0}, budget="default", most=(0, 25_000), items=True)),
    "als-sequence": Candidate("sequences.SequenceALS", {
        "unobserved": (0.01, 0.1), "penalty": (0.003, 0.01), "memory": (5.0, 20.0, 80.0),
    }, vote=Vote({"memory": (2.0, 5.0, 20.0, 80.0)}, budget="fast")),
}  # fmt: skip


def candidate(name: str) -> Candidate:
    """Return the baseline of a name."""
    if name not in BASELINES:
        known = f"{', '.join(BASELINES)}, or a preset or an objective as concf:NAME"
        raise ConfigError(f"unknown model {name!r}; choose from {known}")
    return BASELINES[name]


def voters() -> dict[str, Vote]:
    """Baselines that vote in the model strong, in the order of the table; your own come last."""
    return {name: each.vote for name, each in BASELINES.items() if each.vote is not None}


def timed_voters() -> list[str]:
    """Voters that learn from times."""
    return [name for name in voters() if BASELINES[name].timed]


def begins_with_als(name: str) -> bool:
    """Whether `fit` of a voter also takes `item=`, the item vectors of a fitted ALS."""
    return name in ("als-decayed", "als-sequence")


def voter(name: str, settings: Mapping[str, float]) -> Any:
    """Return a voter with searched settings, ready to be fitted."""
    return BASELINES[name].make(**voters()[name].fixed, **settings)
