"""Measured figures beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from concf.experiments.paper.measured import Dataset, Estimate, Measured, Write, estimate, figure, hundredths, whole
from concf.experiments.paper.plan import Cell
from concf.experiments.paper.published import BEST, CHR, CHR_ROWS, CONSENSUS, STATISTICS, printed

NOT_MEASURED, NOTHING = "not measured", "–"
NAMES = ("data", "protocol", "preset", "variant", "row", "figure")
HEADER = [*NAMES, "paper", "ours", "difference", "splits"]


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
