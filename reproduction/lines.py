"""The measured lines, as the tables, figures and claims of the page look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import mean, stdev

import numpy as np

from concf.evaluation.significance import paired_t
from reproduction.controls import COUNTED, RC
from reproduction.measured import Dataset, Estimate, Line, Measured, Series, best_of, inside
from reproduction.plan import ALL, EXPERIMENTS, cells_of
from reproduction.published import BEST, CHR_ROWS, CONSENSUS, HEADS
from reproduction.variants import DIFFERENCES, VARIANTS

CITEULIKE: Dataset = ("citeulike", "released")
DATASETS: tuple[Dataset, ...] = (CITEULIKE, ("ciao", "paper"), ("ciao", "released"), ("foursquare", "released"))
NAMES = {"citeulike": "CiteULike", "ciao": "Ciao", "foursquare": "Foursquare (subset)"}
SCHEMES = {"SingleCF": "SingleCF", "without CL": "ConCF without CL", "ConCF": "ConCF"}
# What makes models differ, for CHR
FACTORS = {"initial conditions": "initial condition", "model sizes": "model size", "SingleCF": "learning objective"}
BEST_TESTED = "best by test"  # the objective whose SingleCF has the best mean test figure
NON_VOTING = "paper: voters"  # ConCF where CF-E' has no vote
TITLES = SCHEMES | {NON_VOTING: "ConCF, CF-E' non-voting"}  # of variants; others are called by their names
EQUAL = (("alpha=0", "without CL"), ("alpha=0.01", "paper: alpha"), ("Q=5,p=20", "paper: window"))  # equal settings
WINDOW = 20  # epochs until the window of `consistency` is full
PRESETS = ("reference", "paper", "released")
SPLITS = {name: experiment.splits for name, experiment in EXPERIMENTS.items()}  # planned
PLANNED = 5  # splits of most experiments, as in the paper


def percent(value: float) -> str:
    """`22.55 %`."""
    return f"{100 * value:.2f} %"


def signed(value: float) -> str:
    """`+22.6 %`."""
    return f"{100 * value:+.1f} %"


def label(dataset: Dataset) -> str:
    """`CiteULike, released`."""
    return f"{NAMES.get(dataset[0], dataset[0])}, {dataset[1]}"


def name_of(row: str) -> str:
    """`CF-E 2` of `multinomial#2`; other names as they are."""
    head, _, number = row.partition("#")
    return f"{HEADS.get(head, head)} {number}".strip()


class Lines(Measured):
    """The lines without those of settings of the caller's own (`set` in their key), which are trials.

    whole: the lines that these were chosen from; a paired test can use every split that both sides have
    """

    def __init__(self, lines: Iterable[Line], whole: Lines | None = None) -> None:
        super().__init__(line for line in lines if not inside(line, ("key", "set")))
        self.whole = whole or self

    def first(self, splits: int = PLANNED) -> Lines:
        """The lines of the first splits: those that most experiments have."""
        return Lines((line for line in self.lines if line["cell"]["seed"] < splits), self.whole)

    def common(self, experiment: str) -> Lines:
        """The lines on the splits that all measured variants of an experiment have, data set by data set.

        So the rows of a table are of the same splits, also when some are still to be measured.
        """
        plan, kept = EXPERIMENTS[experiment], {}
        for dataset in {(line["cell"]["data"], line["cell"]["protocol"]) for line in self.lines}:
            measured = [set(runs) for variant in plan.variants if (runs := self.runs(variant, dataset))]
            kept[dataset] = set.intersection(*measured) if measured else set(range(plan.splits))
        chosen = (
            line
            for line in self.lines
            if (cell := line["cell"])["seed"] < plan.splits
            and (cell["preset"] != "reference" or cell["seed"] in kept[cell["data"], cell["protocol"]])
        )
        return Lines(chosen, self.whole)

    def control(self, variant: str, dataset: Dataset, kind: str, *path: str | int) -> Series:
        """R@50 of the consensus voted in one of the ways of `controls`, its temperatures tuned; or what `path` says."""
        return self.field(variant, dataset, "controls", kind, *(path or ("test", "recall@50")))

    def over_counting(self, epochs: Callable[[int], bool]) -> Series:
        """How far R + C is above R + 1 over training, as a share: the mean over some epochs, by split."""
        found = {}
        for seed, line in self.runs("consistency", CITEULIKE).items():
            points = zip(*(inside(line, ("curves", each)) or () for each in ("epoch", "tuned")), strict=False)
            shares = [point[RC] / point[COUNTED] - 1 for epoch, point in points if epochs(epoch) and point[COUNTED]]
            if shares:
                found[seed] = mean(shares)
        return found

    def best_tested(self, dataset: Dataset, metric: str = "recall@50", preset: str = "reference") -> str:
        """The objective whose SingleCF has the best mean test figure of a metric: the paper's rule for its gains."""
        return best_of({head: self.test("SingleCF", dataset, head, metric, preset) for head in HEADS}) or ""

    def test(
        self, variant: str, dataset: Dataset, row: str, metric: str = "recall@50", preset: str = "reference"
    ) -> Series:
        """A row's test figure by split. BEST_TESTED: the row that is best by the paper's rule."""
        row = self.best_tested(dataset, metric, preset) if row == BEST_TESTED else row
        return super().test(variant, dataset, row, metric, preset)

    def gains(self, dataset: Dataset, metric: str, preset: str = "reference") -> dict[str, tuple[Series, Series]]:
        """Gain.Best and Gain.Con. as what is compared: (ConCF, the best SingleCF of that metric) by split."""
        rows = {"Gain.Best": BEST_TESTED, "Gain.Con.": CONSENSUS}
        single = self.test("SingleCF", dataset, BEST_TESTED, metric, preset)
        return {name: (self.test("ConCF", dataset, row, metric, preset), single) for name, row in rows.items()}

    def group(self, dataset: Dataset, group: int, key: str = "recall@50") -> tuple[Series, Series]:
        """What Gain.Best (R@50) compares, of a group of users: 0 the most active."""
        path = ("rows", self.best_tested(dataset), "groups", group, key)
        return self.field("ConCF", dataset, *path), self.field("SingleCF", dataset, *path)

    def chr(self, variant: str, dataset: Dataset) -> Series:
        """CHR of the model of CF-A."""
        return self.field(variant, dataset, "chr", CHR_ROWS.get(variant, "bpr"))

    def apart(self, values: Callable[[str], Series]) -> list[float]:
        """How far runs of equal settings are apart, pair by pair and split by split. values: of a variant."""
        pairs = (paired(values(one), values(other)) for one, other in EQUAL)
        return [abs(x - y) for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True)]

    def apart_in(self, row: str) -> list[float]:
        """The same in a row's R@50."""
        return self.apart(lambda variant: self.test(variant, CITEULIKE, row))

    def noise(self, row: str) -> float | None:
        """Mean distance of equal runs on a split: of the consensus for consensuses, else of the best head."""
        return _mean(self.apart_in(CONSENSUS if row.endswith(CONSENSUS) else BEST))

    def noise_of(self, *path: str | int) -> float | None:
        """Mean distance of equal runs on a split, of a number inside the lines."""
        return _mean(self.apart(lambda variant: self.field(variant, CITEULIKE, *path)))

    def missing(self) -> Counter[str]:
        """The variants that lack cells of the plan, and how many; with the preset's name where it is not reference."""
        measured = [line["cell"] for line in self.lines]
        absent = [cell for cell in cells_of([ALL]) if asdict(cell) not in measured]
        return Counter(
            cell.variant if cell.preset == "reference" else f"{cell.variant} (preset {cell.preset})" for cell in absent
        )

    def curves(self, which: str, kind: str) -> dict[int, Series]:
        """Of `one` or `all`: R@50 of the consensus R or RC, by split and epoch."""
        curves = {}
        for seed, line in self.runs("consistency", CITEULIKE).items():
            epochs, values = (inside(line, ("curves", *path)) or () for path in (("epoch",), (which, kind)))
            curves[seed] = {e: v for e, v in zip(epochs, values, strict=False) if v is not None}
        return {seed: curve for seed, curve in curves.items() if curve}

    def at_epochs(self, which: str) -> dict[int, tuple[Series, Series]]:
        """The R- and the RC-consensus of every epoch with a full window, each by split."""
        r, rc = self.curves(which, "R"), self.curves(which, "RC")
        epochs = sorted({epoch for curve in (*r.values(), *rc.values()) for epoch in curve if epoch >= WINDOW})

        def at(curves: dict[int, Series], epoch: int) -> Series:
            return {seed: curve[epoch] for seed, curve in curves.items() if epoch in curve}

        return {epoch: (at(r, epoch), at(rc, epoch)) for epoch in epochs}

    def rises(self, which: str) -> dict[int, list[float]]:
        """How far RC is above R at each epoch with a full window, as a share, by split."""
        rises: dict[int, list[float]] = {}
        for r, rc in self.at_epochs(which).values():
            for seed in sorted(seed for seed in r.keys() & rc.keys() if r[seed]):
                rises.setdefault(seed, []).append(rc[seed] / r[seed] - 1)
        return rises

    def effects(self) -> list[Effect]:
        """Each difference alone, and each preset, against reference; by the consensus' R@50, the best first."""
        variants = [line["cell"]["variant"] for line in self.lines]
        runs = {name: (name, "reference") for name in variants if name in DIFFERENCES}
        runs |= {f"{preset}: all": ("ConCF", preset) for preset in PRESETS[1:]}
        rows = (CONSENSUS, *HEADS)
        effects = [
            Effect(name, list(VARIANTS.get(name, ())), {row: self._added(variant, row, preset) for row in rows})
            for name, (variant, preset) in runs.items()
        ]
        return sorted((e for e in effects if e.consensus), key=lambda effect: -mean(effect.consensus.values()))

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


def paired(ours: Series, theirs: Series) -> tuple[list[float], list[float]]:
    """The values of the splits that both have."""
    both = sorted(ours.keys() & theirs.keys())
    return [ours[seed] for seed in both], [theirs[seed] for seed in both]


def gain(ours: Series, theirs: Series) -> Estimate | None:
    """How much higher, as a share: of the means over the splits that both have; std is that of the splits' gains."""
    a, b = paired(ours, theirs)
    if not a or not all(b):
        return None
    gains = [x / y - 1 for x, y in zip(a, b, strict=True)]
    return Estimate(mean(a) / mean(b) - 1, stdev(gains) if len(gains) > 1 else None, len(gains))


def p_value(ours: Series, theirs: Series) -> float | None:
    """Of the paired t-test over the splits that both have; None with fewer than two."""
    a, b = paired(ours, theirs)
    return paired_t(np.array(a), np.array(b)) if len(a) > 1 else None
