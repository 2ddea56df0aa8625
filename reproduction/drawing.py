"""What figures are drawn with: colours, marks, panels. Filled marks are ours, hollow ones the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reproduction.lines import label
from reproduction.measured import Dataset, Estimate
from reproduction.published import BEST, CONSENSUS, HEADS, R_CONSENSUS

WIDE = 10.0  # inches: a page
COLOURS = dict(zip(HEADS, ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"), strict=True))  # Okabe and Ito's
MARKS = {BEST: ("#0072B2", "best"), R_CONSENSUS: ("#E69F00", "R-con"), CONSENSUS: ("#222222", "RC-con")}
GREY, LIGHT = "#666666", "#dddddd"
DOT: Any = {"fmt": "o", "markersize": 6, "elinewidth": 1.4, "capsize": 2.5}
HOLLOW: Any = {"markersize": 6, "markerfacecolor": "white"}
STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.8, "xtick.color": GREY, "ytick.color": GREY, "legend.frameon": False,
    "xtick.labelcolor": "#222222", "ytick.labelcolor": "#222222", "figure.facecolor": "white", "svg.hashsalt": "concf",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure with the name of its files, a caption and words for those who do not see it."""

    name: str
    figure: Figure
    caption: str
    alt: str

    def save(self, path: Path, kind: str) -> None:
        """As `png` or `svg`; the same lines give the same bytes."""
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        with rc_context(STYLE):
            self.figure.savefig(path, format=kind, dpi=160, metadata=metadata, facecolor="white")


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A page-wide figure and its panels, row by row."""
    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def panel_each(datasets: Sequence[Dataset], height: float, **options: Any) -> tuple[Figure, list[tuple[Axes, Dataset]]]:
    """A page-wide figure with a panel for each data set."""
    figure, panel = panels(1, len(datasets), height, **options)
    for axes, dataset in zip(panel, datasets, strict=True):
        axes.set_title(label(dataset))
    return figure, list(zip(panel, datasets, strict=True))


def dot(axes: Axes, x: float | Estimate | None, y: float | Estimate | None, colour: str) -> None:
    """Ours: a filled dot, with its standard deviation across or up and down."""
    if x is not None and y is not None:
        ends = [(each.mean, each.std) if isinstance(each, Estimate) else (each, None) for each in (x, y)]
        (x, xerr), (y, yerr) = ends
        axes.errorbar(x, y, xerr=xerr, yerr=yerr, color=colour, **DOT)


def hollow(axes: Axes, x: float | None, y: float | None, colour: str) -> None:
    """The paper's."""
    if x is not None and y is not None:
        axes.plot(x, y, "D", markeredgecolor=colour, markeredgewidth=1.4, zorder=3, **HOLLOW)


def key(figure: Figure, names: Iterable[tuple[str, str]], paper: bool = True, columns: int = 4) -> None:
    """Which colour is what; then what filled and hollow marks are."""
    marks = [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for colour, name in names]
    if paper:
        marks.append(Line2D([], [], label="the paper's", marker="D", markeredgecolor=GREY, linestyle="", **HOLLOW))
    figure.legend(handles=marks, loc="outside lower center", ncols=columns)


def same_scale(panel: Sequence[tuple[Axes, Dataset]], axis: str) -> None:
    """Panels of the same data set, by another protocol, get the same limits."""
    for data in {dataset[0] for _, dataset in panel}:
        alike = [axes for axes, dataset in panel if dataset[0] == data]
        limits = [getattr(axes, f"get_{axis}lim")() for axes in alike]
        for axes in alike:
            getattr(axes, f"set_{axis}lim")(min(low for low, _ in limits), max(high for _, high in limits))
