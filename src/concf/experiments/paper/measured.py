"""Measured lines: the values of a row by split, and their mean and standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from concf.experiments.paper.published import BEST, HEADS

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
