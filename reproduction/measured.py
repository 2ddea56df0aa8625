"""Measured lines: the values of a row by split, their mean and standard deviation, and these beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from reproduction.plan import Cell
from reproduction.published import BEST, CHR, CHR_ROWS, CONSENSUS, HEADS, STATISTICS, printed

NOT_MEASURED, NOTHING = "not measured", "–"
NAMES = ("data", "protocol", "preset", "variant", "row", "figure")
HEADER = [*NAMES, "paper", "ours", "difference", "splits"]

Line = Mapping[str, Any]
Dataset = tuple[str, str]  # data set, protocol
Series = dict[int, float]  # split -> value
Write = Callable[[float], str]

figure: Write = "{:.4f}".format
hundredths: Write = "{:.2f}".format
whole: Write = "{:,.0f}".format


class Measured:
    """The lines by cell; a cell that was measured twice counts as it was measured last."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = list({tuple(sorted(line["cell"].items())): line for line in lines}.values())
        self._runs: dict[tuple[str, ...], dict[int, Line]] = {}
        for line in sorted(self.lines, key=lambda line: int(line["cell"]["seed"])):
            cell = line["cell"]
            which = (cell["variant"], cell["data"], cell["protocol"], cell["preset"])
            self._runs.setdefault(which, {})[cell["seed"]] = line

    def runs(self, variant: str, dataset: Dataset, preset: str = "reference") -> dict[int, Line]:
        """A variant's lines by split."""
        return self._runs.get((variant, *dataset, preset), {})

    def field(self, variant: str, dataset: Dataset, *path: str | int, preset: str = "reference") -> Series:
        """A number inside the lines, for the splits that have it."""
        values = {seed: inside(line, path) for seed, line in self.runs(variant, dataset, preset).items()}
        return {seed: float(value) for seed, value in values.items() if value is not None}

    def test(
        self, variant: str, dataset: Dataset, row: str, metric: str = "recall@50", preset: str = "reference"
    ) -> Series:
        """A row's test figure by split.

        The best head has the best validation: of each split, or on average over the splits for SingleCF.
        """
        if row == BEST and variant == "SingleCF":
            validation = {h: self.field(variant, dataset, "rows", h, "validation", preset=preset) for h in HEADS}
            row = best_of(validation) or BEST
        runs = self.runs(variant, dataset, preset).items()
        rows = {seed: line.get("best_head") if row == BEST else row for seed, line in runs}
        values = {seed: inside(line, ("rows", rows[seed], "test", metric)) for seed, line in runs}
        return {seed: float(value) for seed, value in values.items() if value is not None}


def best_of(series: Mapping[str, Series]) -> str | None:
    """The name with the highest mean; None if there are no values."""
    return max((name for name in series if series[name]), key=lambda name: mean(series[name].values()), default=None)


def inside(value: Any, path: Iterable[Any]) -> Any:
    """What keys and indices lead to, or None."""
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
    std: float | None
    splits: int

    def text(self, write: Write = figure) -> str:
        """`0.3795 ± 0.0037`."""
        return write(self.mean) + (f" ± {write(self.std)}" if self.std is not None else "")


def estimate(series: Series) -> Estimate | None:
    """None if there are no values."""
    values = list(series.values())
    return Estimate(mean(values), stdev(values) if len(values) > 1 else None, len(values)) if values else None


@dataclass(frozen=True)
class Pair:
    """The paper's value beside ours. same: whether both are of the same data; of Foursquare there is only a subset."""

    paper: float | None
    ours: Estimate | None
    write: Write = figure
    same: bool = True

    def cells(self) -> list[str]:
        """The paper's value, ours, the difference."""
        paper = "not given" if self.paper is None else self.write(self.paper)
        ours = self.ours.text(self.write) if self.ours else NOT_MEASURED
        if self.paper is None or self.ours is None:
            return [paper, ours, NOTHING]
        difference = self.ours.mean - self.paper
        size = self.write(abs(difference))
        signed = size if size == self.write(0.0) else ("+" if difference > 0 else "-") + size
        return [paper, ours, signed if self.same else "other data"]


Row = tuple[tuple[str, ...], Pair]  # NAMES, the values


def compared(measured: Measured, cells: Iterable[Cell]) -> list[Row]:
    """R@50 of each row of the measured lines, CHR of CF-A and the statistics of the data, each beside the paper's."""
    runs = dict.fromkeys((cell.variant, (cell.data, cell.protocol), cell.preset) for cell in cells)
    return [
        ((*dataset, preset, variant, row, name), Pair(paper, ours, write, same=dataset[0] != "foursquare"))
        for variant, dataset, preset in runs
        for row, name, paper, ours, write in _figures(measured, variant, dataset, preset)
        if ours is not None
    ]


def _figures(
    measured: Measured, variant: str, dataset: Dataset, preset: str
) -> Iterator[tuple[str, str, float | None, Estimate | None, Write]]:
    data = dataset[0]
    for name in ("users", "items", "events"):
        count = measured.field(variant, dataset, "statistics", name, preset=preset)
        yield "", name, STATISTICS.get(data, {}).get(name), estimate(count), whole
    rows = dict.fromkeys(
        row for line in measured.runs(variant, dataset, preset).values() for row in line.get("rows", {})
    )
    for row in (*rows, BEST) if CONSENSUS in rows else rows:
        recall = measured.test(variant, dataset, row, preset=preset)
        yield row, "R@50", printed(data, variant, row), estimate(recall), figure
    if variant in CHR:
        row = CHR_ROWS.get(variant, "bpr")
        ratio = measured.field(variant, dataset, "chr", row, preset=preset)
        yield row, "CHR", CHR[variant].get(data), estimate(ratio), hundredths


def text_rows(rows: Iterable[Row]) -> list[list[str]]:
    """The cells of a table under HEADER."""
    return [[*names, *pair.cells(), str(pair.ours.splits if pair.ours else 0)] for names, pair in rows]


def records(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows as JSON objects: NAMES, `paper`, and `mean`, `std`, `splits` of ours."""
    return [dict(zip(NAMES, names, strict=True)) | {"paper": pair.paper} | vars(pair.ours) for names, pair in rows]
