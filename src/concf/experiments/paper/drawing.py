"""What figures are drawn with: colours, marks, panels. Filled marks are ours, hollow ones the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.experiments.paper.measured import Place
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, R_CONSENSUS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 10.0  # inches: a page
COLOURS = dict(zip(HEADS, ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"), strict=True))  # Okabe and Ito's
MARKS = {BEST: ("#0072B2", "best"), R_CONSENSUS: ("#E69F00", "R-con"), CONSENSUS: ("#222222", "RC-con")}
GREY, LIGHT = "#666666", "#dddddd"
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
        from matplotlib import rc_context

        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        with rc_context(STYLE):
            self.figure.savefig(path, format=kind, dpi=160, metadata=metadata, facecolor="white")


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A page-wide figure and its panels, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def dot(axes: Axes, x: float, y: float, spread: float | None, colour: str, across: bool = False) -> None:
    """Ours: a filled dot, with its spread up and down or, `across`, left and right."""
    bars = {"xerr" if across else "yerr": spread}
    axes.errorbar(x, y, **bars, fmt="o", color=colour, markersize=6, elinewidth=1.4, capsize=2.5)  # type: ignore[arg-type]


def hollow(axes: Axes, x: float, y: float, colour: str) -> None:
    """The paper's."""
    axes.plot(x, y, "D", markersize=6, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.4, zorder=3)


def key(target: Axes | Figure, names: Iterable[tuple[str, str]], paper: bool = True, **where: Any) -> None:
    """Which colour is what; then what filled and hollow marks are."""
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for colour, name in names]
    if paper:
        hollow = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": GREY, "linestyle": ""}
        marks.append(Line2D([], [], label="the paper's", **hollow))  # type: ignore[arg-type]
    target.legend(handles=marks, **where)


def same_scale(found: Sequence[tuple[Axes, Place]], axis: str) -> None:
    """Panels of the same data set, by another protocol, get the same limits."""
    for data in {place[0] for _, place in found}:
        twins = [axes for axes, place in found if place[0] == data]
        limits = [getattr(axes, f"get_{axis}lim")() for axes in twins]
        for axes in twins:
            getattr(axes, f"set_{axis}lim")(min(low for low, _ in limits), max(high for _, high in limits))
