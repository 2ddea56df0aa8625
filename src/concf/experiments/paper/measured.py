"""The measured lines, as the tables, figures and claims look for them, and their figures over the splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from concf.evaluation.significance import paired_t
from concf.experiments.paper.plan import ALL, EXPERIMENTS, cells_of
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS

Line = Mapping[str, Any]
Place = tuple[str, str]  # data set, protocol
Series = dict[int, float]  # a value for each split
Write = Callable[[float], str]

CITEULIKE: Place = ("citeulike", "released")
PLACES: tuple[Place, ...] = (CITEULIKE, ("ciao", "paper"), ("ciao", "released"), ("foursquare", "released"))
SCHEMES = {"SingleCF": "SingleCF", "without CL": "ConCF without CL", "ConCF": "ConCF"}
NON_VOTING = "paper: voters"  # ConCF where CF-E' has no vote
CALLED = SCHEMES | {NON_VOTING: "ConCF, CF-E' non-voting"}
TWINS = (("alpha=0", "without CL"), ("alpha=0.01", "paper: alpha"), ("ConCF", "paper: epochs"))  # equal settings
WINDOW = 20  # epochs until the window of `consistency` is full
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
        self._runs: dict[tuple[str, ...], dict[int, Line]] = {}
        for line in sorted(self.lines, key=lambda line: int(line["cell"]["seed"])):
            cell = line["cell"]
            where = (cell["variant"], cell["data"], cell["protocol"], cell["preset"])
            self._runs.setdefault(where, {})[cell["seed"]] = line

    def first(self, splits: int) -> Measured:
        """The lines of the first so many splits alone, so that the rows of a table stand on the same ones."""
        return Measured(line for line in self.lines if line["cell"]["seed"] < splits)

    def runs(self, variant: str, place: Place, preset: str = "reference") -> dict[int, Line]:
        """A variant's lines by split."""
        return self._runs.get((variant, *place, preset), {})

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
        return _best({h: self.field("SingleCF", place, "rows", h, "validation", preset=preset) for h in HEADS})

    def best_tested(self, place: Place, metric: str = "recall@50", preset: str = "reference") -> str | None:
        """The objective whose SingleCF has the best mean test figure of a metric: the paper's rule for its gains."""
        return _best({head: self.test("SingleCF", place, head, metric, preset) for head in HEADS})

    def single(self, place: Place, metric: str = "recall@50", preset: str = "reference") -> Series:
        """The best SingleCF of a metric, by the paper's rule."""
        return self.test("SingleCF", place, self.best_tested(place, metric, preset) or "", metric, preset)

    def gains(self, place: Place, metric: str, preset: str = "reference") -> dict[str, tuple[Series, Series]]:
        """Gain.Best and Gain.Con. as what is compared: (ConCF, the best SingleCF of that metric) by split."""
        single = self.single(place, metric, preset)
        head = self.test("ConCF", place, self.best_tested(place, metric, preset) or "", metric, preset)
        consensus = self.test("ConCF", place, CONSENSUS, metric, preset)
        return {"Gain.Best": (head, single), "Gain.Con.": (consensus, single)}

    def group(self, place: Place, group: int, key: str = "recall@50") -> tuple[Series, Series]:
        """What Gain.Best (R@50) compares, of a group of users: 0 the most active."""
        path = ("rows", self.best_tested(place) or "", "groups", group, key)
        return self.field("ConCF", place, *path), self.field("SingleCF", place, *path)

    def apart(self, of: Callable[[str], Series]) -> list[float]:
        """How far runs of equal settings are apart, pair by pair and split by split. of: a variant's values."""
        both = (paired(of(one), of(other)) for one, other in TWINS)
        return [abs(x - y) for ours, theirs in both for x, y in zip(ours, theirs, strict=True)]

    def apart_in(self, row: str, metric: str = "recall@50") -> list[float]:
        """The same in a row's test figure."""
        return self.apart(lambda variant: self.test(variant, CITEULIKE, row, metric))

    def noise(self, row: str, metric: str = "recall@50") -> float | None:
        """Mean distance of equal runs on a split: of the consensus for consensuses, else of the best head."""
        return _mean(self.apart_in(CONSENSUS if row.endswith(CONSENSUS) else BEST, metric))

    def noise_of(self, *path: str | int) -> float | None:
        """Mean distance of equal runs on a split, of a number inside the lines."""
        return _mean(self.apart(lambda variant: self.field(variant, CITEULIKE, *path)))

    def missing(self) -> Counter[str]:
        """The variants that lack cells of the plan, and how many; with the preset's name where it is not reference."""
        known = [line["cell"] for line in self.lines]
        absent = [cell for cell in cells_of([ALL]) if asdict(cell) not in known]
        return Counter(
            cell.variant if cell.preset == "reference" else f"{cell.variant} (preset {cell.preset})" for cell in absent
        )

    def curves(self, which: str, kind: str) -> dict[int, dict[int, float]]:
        """Of `one` or `all`: R@50 of the consensus R or RC, by split and epoch."""
        found = {}
        for seed, line in self.runs("consistency", CITEULIKE).items():
            epochs, values = (inside(line, ("curves", *path)) for path in (("epoch",), (which, kind)))
            found[seed] = {e: v for e, v in zip(epochs or (), values or (), strict=False) if v is not None}
        return {seed: each for seed, each in found.items() if each}

    def at_epochs(self, which: str) -> dict[int, tuple[Series, Series]]:
        """The R- and the RC-consensus of every epoch with a full window, each by split."""
        r, rc = self.curves(which, "R"), self.curves(which, "RC")
        epochs = sorted({epoch for each in (*r.values(), *rc.values()) for epoch in each if epoch >= WINDOW})
        at = {e: [{seed: each[e] for seed, each in c.items() if e in each} for c in (r, rc)] for e in epochs}
        return {epoch: (both[0], both[1]) for epoch, both in at.items()}

    def rises(self, which: str) -> dict[int, list[float]]:
        """How far RC is above R at each epoch with a full window, as a share, by split."""
        found: dict[int, list[float]] = {}
        for r, rc in self.at_epochs(which).values():
            for seed in sorted(seed for seed in r.keys() & rc.keys() if r[seed]):
                found.setdefault(seed, []).append(rc[seed] / r[seed] - 1)
        return found

    def effects(self) -> list[Effect]:
        """Each difference alone, and each preset, against reference; by the consensus' R@50, the best first."""
        changes = {
            line["cell"]["variant"]: list(line.get("changes", []))
            for line in self.lines
            if line["cell"]["variant"].startswith(("paper: ", "released: "))
        }
        cells = {name: (name, "reference") for name in changes}
        cells |= {f"{preset}: all": ("ConCF", preset) for preset in PRESETS[1:]}
        found = []
        for name, (variant, preset) in cells.items():
            added = {row: self._added(variant, row, preset) for row in (CONSENSUS, *HEADS)}
            if added[CONSENSUS]:
                found.append(Effect(name, changes.get(name, []), added))
        return sorted(found, key=lambda effect: -mean(effect.consensus.values()))

    def _added(self, variant: str, row: str, preset: str) -> Series:
        base, ours = self.test("ConCF", CITEULIKE, row), self.test(variant, CITEULIKE, row, preset=preset)
        return {seed: ours[seed] - base[seed] for seed in ours if seed in base}


@dataclass(frozen=True)
class Effect:
    """What a difference from reference adds to R@50 on CiteULike, by row and split."""

    name: str
    changes: list[str]
    added: dict[str, Series]

    @property
    def consensus(self) -> Series:
        """What it adds to the consensus."""
        return self.added[CONSENSUS]


def _mean(values: list[float]) -> float | None:
    return mean(values) if values else None


def _best(seen: Mapping[str, Series]) -> str | None:
    return max((name for name in seen if seen[name]), key=lambda name: mean(seen[name].values()), default=None)


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
