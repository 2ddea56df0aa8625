"""The measured lines, as the tables, figures and claims look for them, and their figures over the splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from concf.evaluation.significance import paired_t
from concf.experiments.plan import EXPERIMENTS
from concf.experiments.published import BEST, CONSENSUS, HEADS

Line = Mapping[str, Any]
Place = tuple[str, str]  # data set, protocol
Series = dict[int, float]  # a value for each split
Write = Callable[[float], str]

CITEULIKE: Place = ("citeulike", "released")
PLACES: tuple[Place, ...] = (CITEULIKE, ("ciao", "paper"), ("ciao", "released"), ("foursquare", "released"))
SCHEMES = {"SingleCF": "SingleCF", "without CL": "ConCF without CL", "ConCF": "ConCF"}
FACTORS = {"initial conditions": "bpr#1", "model sizes": "bpr d=64", "SingleCF": "bpr"}  # the same model y in each
PRESETS = ("reference", "paper", "released")
SPLITS = {name: experiment.splits for name, experiment in EXPERIMENTS.items()}  # planned
FEWER = min(SPLITS[name] for name in SPLITS if name != "stats")
NAMES = {"citeulike": "CiteULike", "ciao": "Ciao", "foursquare": "Foursquare (subset)"}

figure: Write = "{:.4f}".format
hundredths: Write = "{:.2f}".format
whole: Write = "{:,.0f}".format


def percent(value: float) -> str:
    """`22.55 %`."""
    return f"{100 * value:.2f} %"


def signed(value: float) -> str:
    """`+22.6 %`."""
    return f"{100 * value:+.1f} %"


def density(value: float) -> str:
    """`0.096 %`."""
    return f"{100 * value:.3f} %"


class Measured:
    """The lines by cell; a cell that was measured twice counts as it was measured last.

    Lines with settings of the caller's own (`set` in their key) are trials and do not count.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        proper = (line for line in lines if not inside(line, ("key", "set")))
        self.lines = list({tuple(sorted(line["cell"].items())): line for line in proper}.values())

    def first(self, splits: int) -> Measured:
        """The lines of the first so many splits alone, so that the rows of a table stand on the same ones."""
        return Measured(line for line in self.lines if line["cell"]["seed"] < splits)

    def runs(self, variant: str, place: Place, preset: str = "reference") -> dict[int, Line]:
        """A variant's lines by split."""
        wanted = {"variant": variant, "data": place[0], "protocol": place[1], "preset": preset}
        found = {line["cell"]["seed"]: line for line in self.lines if wanted.items() <= line["cell"].items()}
        return dict(sorted(found.items()))

    def field(self, variant: str, place: Place, *path: str | int, preset: str = "reference") -> Series:
        """A number inside the lines, for the splits that have it."""
        found = {seed: inside(line, path) for seed, line in self.runs(variant, place, preset).items()}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def test(
        self, variant: str, place: Place, row: str, metric: str = "recall@50", preset: str = "reference"
    ) -> Series:
        """A row's test figure by split.

        The best head is that of the best validation: of each split, or of all together for SingleCF.
        """
        if row == BEST and variant == "SingleCF":
            row = self.best_single(place, preset) or BEST
        runs = self.runs(variant, place, preset).items()
        heads = {seed: line.get("best_head") if row == BEST else row for seed, line in runs}
        found = {seed: inside(line, ("rows", heads[seed], "test", metric)) for seed, line in runs}
        return {seed: float(value) for seed, value in found.items() if value is not None}

    def best_single(self, place: Place, preset: str = "reference") -> str | None:
        """The objective whose SingleCF has the best mean validation."""
        seen = {head: self.field("SingleCF", place, "rows", head, "validation", preset=preset) for head in HEADS}
        return max((head for head in seen if seen[head]), key=lambda head: mean(seen[head].values()), default=None)

    def gains(self, place: Place, metric: str, preset: str = "reference") -> dict[str, tuple[Series, Series]]:
        """Gain.Best and Gain.Con. as what is compared: (ConCF, the best SingleCF) by split."""
        single = self.test("SingleCF", place, BEST, metric, preset)
        head = self.test("ConCF", place, self.best_single(place, preset) or "", metric, preset)
        consensus = self.test("ConCF", place, CONSENSUS, metric, preset)
        return {"Gain.Best": (head, single), "Gain.Con.": (consensus, single)}

    def group(self, place: Place, group: int, key: str = "recall@50") -> tuple[Series, Series]:
        """What Gain.Best compares, of a group of users: 0 the most active."""
        path = ("rows", self.best_single(place) or "", "groups", group, key)
        return self.field("ConCF", place, *path), self.field("SingleCF", place, *path)

    def rises(self, which: str) -> dict[int, list[float]]:
        """How far the RC-consensus of `one` or `all` is above the R-consensus at each epoch, as a share, by split."""
        curves = {seed: inside(line, ("curves", which)) for seed, line in self.runs("consistency", CITEULIKE).items()}
        found = {seed: zip(each["R"], each["RC"], strict=True) for seed, each in curves.items() if each}
        rises = {seed: [rc / r - 1 for r, rc in points if r and rc is not None] for seed, points in found.items()}
        return {seed: each for seed, each in rises.items() if each}

    def effects(self) -> list[tuple[str, list[str], Series]]:
        """Each difference alone, and each preset: name, changes, what it adds to the consensus' R@50; best first."""
        base = self.test("ConCF", CITEULIKE, CONSENSUS)
        ours = {f"{preset}: all": self.test("ConCF", CITEULIKE, CONSENSUS, preset=preset) for preset in PRESETS[1:]}
        changes: dict[str, list[str]] = {}
        for line in self.lines:
            name = line["cell"]["variant"]
            if name.startswith(("paper: ", "released: ")):
                ours[name], changes[name] = self.test(name, CITEULIKE, CONSENSUS), list(line.get("changes", []))
        added = {name: {seed: each[seed] - base[seed] for seed in each if seed in base} for name, each in ours.items()}
        order = sorted((name for name in added if added[name]), key=lambda name: -mean(added[name].values()))
        return [(name, changes.get(name, []), added[name]) for name in order]


def inside(value: Any, path: Iterable[Any]) -> Any:
    """What keys and places lead to, or None."""
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


@dataclass(frozen=True)
class Estimate:
    """A mean over splits, with its standard deviation where there are two or more."""

    mean: float
    spread: float | None
    splits: int

    def words(self, write: Write = figure) -> str:
        """`0.3795 ± 0.0037`."""
        return write(self.mean) + (f" ± {write(self.spread)}" if self.spread is not None else "")


def estimate(values: Series) -> Estimate | None:
    """None of nothing."""
    found = list(values.values())
    return Estimate(mean(found), stdev(found) if len(found) > 1 else None, len(found)) if found else None


def paired(ours: Series, theirs: Series) -> tuple[list[float], list[float]]:
    """The values of the splits that both have."""
    both = sorted(ours.keys() & theirs.keys())
    return [ours[seed] for seed in both], [theirs[seed] for seed in both]


def gain(ours: Series, theirs: Series) -> Estimate | None:
    """How much higher, as a share: of the means over the splits that both have; the spread is that of the splits."""
    a, b = paired(ours, theirs)
    if not a or not all(b):
        return None
    each = [x / y - 1 for x, y in zip(a, b, strict=True)]
    return Estimate(mean(a) / mean(b) - 1, stdev(each) if len(each) > 1 else None, len(each))


def p_value(ours: Series, theirs: Series) -> float | None:
    """Of the paired t-test over the splits that both have; None with fewer than two."""
    a, b = paired(ours, theirs)
    return paired_t(np.array(a), np.array(b)) if len(a) > 1 else None
