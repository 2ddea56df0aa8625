"""What the cells of the tables are made of: figures of variants and rows, beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.lines import CITEULIKE, TITLES, Lines, gain, name_of, percent
from reproduction.measured import (
    NOT_MEASURED,
    NOTHING,
    Dataset,
    Estimate,
    Pair,
    Series,
    Write,
    estimate,
    figure,
)
from reproduction.published import R_CONSENSUS, printed
from reproduction.table import Row, Table, compared


def text_of(ours: Series | Estimate | None, write: Write = figure) -> str:
    """`0.3795 ± 0.0037`, or that it was not measured."""
    ours = estimate(ours) if isinstance(ours, dict) else ours
    return ours.text(write) if ours else NOT_MEASURED


def pair_of(dataset: Dataset, paper: float | None, ours: Series | Estimate | None, write: Write = figure) -> Pair:
    return Pair(paper, estimate(ours) if isinstance(ours, dict) else ours, write, same=dataset[0] != "foursquare")


def recalls(lines: Lines, variant: str, rows: Sequence[str], dataset: Dataset = CITEULIKE) -> list[Pair]:
    """R@50 of some rows of a variant."""
    return [pair_of(dataset, printed(dataset[0], variant, row), lines.test(variant, dataset, row)) for row in rows]


def four(
    lines: Lines, rows: Sequence[tuple[str, str]], cut: int, dataset: Dataset = CITEULIKE, preset: str = "reference"
) -> list[Row]:
    """The two metrics at a cut of each (variant, row)."""

    def pair(variant: str, row: str, metric: str) -> Pair:
        paper = None if row == R_CONSENSUS else printed(dataset[0], variant, row, metric)  # of another table
        if row.startswith("Gain"):
            return pair_of(dataset, paper, gain(*lines.gains(dataset, metric, preset)[row]), percent)
        return pair_of(dataset, paper, lines.test(variant, dataset, row, metric, preset))

    metrics = (f"recall@{cut}", f"ndcg@{cut}")
    return [([TITLES.get(v, v), name_of(row)], [pair(v, row, metric) for metric in metrics]) for v, row in rows]


def four_twice(lines: Lines, name: str, title: str, rows: Sequence[tuple[str, str]]) -> list[Table]:
    labels = ["scheme", "objective"]
    return [
        compared(f"{name}-{n}", f"{title}, top {n}", labels, (f"R@{n}", f"N@{n}"), four(lines, rows, n))
        for n in (50, 20)
    ]


def change_of(effect: Series, std: bool = False) -> str:
    one = estimate(effect)
    if not one:
        return NOTHING
    change = f"{one.mean:+.4f}".replace("-0.0000", "0.0000").replace("+0.0000", "0.0000")
    return change + (f" ± {one.std:.4f}" if std and one.std is not None else "")
