"""The paper's figures, drawn from measured lines: filled marks are ours, hollow ones the paper's.

`FIGURES` has a function for each experiment that has figures. What was not measured is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from concf.errors import MissingExtraError
from concf.experiments import published
from concf.experiments.measured import CITEULIKE, PLACES, SCHEMES, Estimate, Measured, Place, estimate, gain
from concf.experiments.published import BEST, CONSENSUS, HEADS, R_CONSENSUS
from concf.experiments.tables import label

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


def draw(name: str, measured: Measured) -> list[Drawing]:
    """The figures of an experiment, as far as it was measured."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtraError("matplotlib", "figures", "drawing figures") from None
    with rc_context(STYLE):
        return FIGURES[name](measured) if name in FIGURES else []


def _panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDE, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def _measured(measured: Measured, *variants: str) -> list[Place]:
    return [place for place in PLACES if all(measured.runs(variant, place) for variant in variants)]


def _dot(axes: Axes, x: float, y: float, spread: float | None, colour: str, across: bool = False) -> None:
    """Ours: a filled dot, with its spread up and down or, `across`, left and right."""
    bars = {"xerr" if across else "yerr": spread}
    axes.errorbar(x, y, **bars, fmt="o", color=colour, markersize=6, elinewidth=1.4, capsize=2.5)  # type: ignore[arg-type]


def _hollow(axes: Axes, x: float, y: float, colour: str) -> None:
    """The paper's."""
    axes.plot(x, y, "D", markersize=6, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.4, zorder=3)


def _key(target: Axes | Figure, names: Iterable[tuple[str, str]], paper: bool = True, **where: Any) -> None:
    """Which colour is what; then what filled and hollow marks are."""
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for colour, name in names]
    if paper:
        hollow = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": GREY, "linestyle": ""}
        marks.append(Line2D([], [], label="the paper's", **hollow))  # type: ignore[arg-type]
    target.legend(handles=marks, **where)


def main(measured: Measured) -> list[Drawing]:
    """R@50 of the main table: every head of SingleCF and ConCF and the consensus."""
    places = _measured(measured, "SingleCF", "ConCF")
    if not places:
        return []
    figure, panels = _panels(1, len(places), 4.6, sharey=True)
    rows = [("SingleCF", head) for head in HEADS] + [("ConCF", row) for row in (*HEADS, CONSENSUS)]
    for axes, place in zip(panels, places, strict=True):
        for height, (scheme, row) in enumerate(rows):
            colour = COLOURS.get(row, "#222222")
            found = estimate(measured.test(scheme, place, row))
            if found:
                _dot(axes, found.mean, height, found.spread, colour, across=True)
            if place[0] != "foursquare":
                printed = published.SINGLE if scheme == "SingleCF" else published.CONCF
                _hollow(axes, printed[place[0]][row][2], height + 0.27, colour)
        axes.axhspan(4.62, len(rows) - 0.4, color="#f4f4f4", zorder=0)
        axes.set(title=label(place), xlabel="Recall@50", ylim=(len(rows) - 0.4, -0.6))
    panels[0].set_yticks(range(len(rows)), [f"{scheme}  {HEADS.get(row, row)}" for scheme, row in rows])
    _key(figure, [("#222222", "ours, with the spread over splits")], loc="outside lower center", ncols=2)
    ours = _listed(places, lambda place: estimate(measured.test("ConCF", place, CONSENSUS)))
    caption = (
        "Recall@50: ours (filled) against the paper (hollow). The Foursquare subset has no counterpart in the paper."
    )
    alt = f"Dot plot of Recall@50 of SingleCF and of the heads of ConCF, ours and the paper's. Consensus: {ours}."
    return [Drawing("main", figure, caption, alt)]


def _listed(places: Iterable[Place], of: Callable[[Place], Estimate | None], form: str = "{:.3f}") -> str:
    found = [(label(place), of(place)) for place in places]
    return "; ".join(f"{name} {form.format(one.mean)}" for name, one in found if one)


def groups(measured: Measured) -> list[Drawing]:
    """Gain.Best by group of users (Fig. 5a)."""
    places = [place for place in PLACES if gain(*measured.group(place, 0))]
    if not places:
        return []
    figure, panels = _panels(1, len(places), 2.8, sharey=True)
    for axes, place in zip(panels, places, strict=True):
        for group, shade in enumerate(("#a6c8e0", "#6ba6cf", "#2f83b7", "#004c78")):
            one = gain(*measured.group(place, group))
            if one:
                axes.bar(
                    group, 100 * one.mean, 0.72, yerr=100 * (one.spread or 0), color=shade, ecolor=GREY, capsize=2.5
                )
                top = max(100 * (one.mean + (one.spread or 0)), 0)
                axes.annotate(f"{one.mean:+.0%}", (group, top), (0, 2), textcoords="offset points", ha="center")
        axes.set(title=label(place), xticks=range(4), xticklabels=[f"G-{group}" for group in range(1, 5)])
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.margins(y=0.15)
        axes.grid(False, axis="x")
    panels[0].set_ylabel("gain in Recall@50, %")
    words = _listed(places, lambda place: gain(*measured.group(place, 3)), "{:+.0%}")
    caption = (
        "Gain.Best by how active users are: G-1 the most active quarter, G-4 the least. Whiskers: spread over splits."
    )
    return [Drawing("groups", figure, caption, f"Bars of Gain.Best in four groups of users. G-4 gains: {words}.")]


def schemes(measured: Measured) -> list[Drawing]:
    """Best head, R-con and RC-con of three schemes (Fig. 5b)."""
    places = [place for place in PLACES if any(measured.runs(scheme, place) for scheme in SCHEMES)]
    if not places:
        return []
    figure, panels = _panels(1, len(places), 3.4)
    for axes, place in zip(panels, places, strict=True):
        for x, scheme in enumerate(SCHEMES):
            for shift, (row, (colour, _)) in zip((-0.25, 0, 0.25), MARKS.items(), strict=True):
                found, printed = (
                    estimate(measured.test(scheme, place, row)),
                    published.SCHEME_POINTS.get((place[0], scheme), {}),
                )
                if found:
                    _dot(axes, x + shift, found.mean, found.spread, colour)
                if row in printed and place[0] != "foursquare":
                    _hollow(axes, x + shift + 0.1, printed[row], colour)
        axes.set(title=label(place), xticks=range(3), xticklabels=["SingleCF", "without CL", "ConCF"], xlim=(-0.5, 2.5))
        axes.grid(False, axis="x")
    panels[0].set_ylabel("Recall@50")
    _key(figure, MARKS.values(), loc="outside lower center", ncols=4)
    caption = "Three training schemes: the best head (or model), the R-consensus and the RC-consensus of each."
    words = _listed(places, lambda place: estimate(measured.test("ConCF", place, CONSENSUS)))
    return [Drawing("schemes", figure, caption, f"Dots of Recall@50 of three schemes. RC-consensus of ConCF: {words}.")]


def exclusive(measured: Measured) -> list[Drawing]:
    """Recall@50 of the five objectives, and a PER map for each data set (Fig. 2a)."""
    places = _measured(measured, "SingleCF")
    if not places:
        return []
    figure, panels = _panels(1, 1 + len(places), 2.9, width_ratios=[1.5, *[1.0] * len(places)])
    bars, *maps = panels
    for row, place in enumerate(places):
        for order, head in enumerate(HEADS):
            found, height = estimate(measured.test("SingleCF", place, head)), row + 0.16 * (order - 2)
            if found:
                bars.barh(height, found.mean, 0.15, color=COLOURS[head])
                bars.text(found.mean, height, f" {HEADS[head][-1]}", va="center", fontsize=7, color=GREY)
    names = [label(place).replace(", ", "\n").replace(" (", "\n(") for place in places]
    bars.set(title="Recall@50", yticks=range(len(places)), yticklabels=names, ylim=(len(places) - 0.5, -0.5))
    bars.grid(False, axis="y")
    letters = [name[-1] for name in HEADS.values()]
    for axes, place in zip(maps, places, strict=True):
        _map(axes, [[estimate(measured.field("SingleCF", place, "per", x, y)) for y in HEADS] for x in HEADS])
        axes.set(
            title="PER, " + label(place).replace(" (subset)", "").replace(", ", "\n"), xticks=range(5), yticks=range(5)
        )
        axes.set(xticklabels=letters, yticklabels=letters, xlabel="missed by", ylabel="hit by")
        axes.title.set_fontsize(8)
    words = _listed(
        places, lambda place: estimate(measured.field("SingleCF", place, "per", "bpr", "multinomial")), "{:.2f}"
    )
    caption = "The five objectives alone (bars), and PER: the share of the row's hits that the column misses."
    return [Drawing("per", figure, caption, f"Bars of Recall@50 and heat maps of PER. PER(A;E): {words}.")]


def _map(axes: Axes, found: Sequence[Sequence[Estimate | None]]) -> None:
    values = [[one.mean if one else float("nan") for one in row] for row in found]
    axes.imshow(values, cmap="Blues", vmin=0, vmax=0.9)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if x != y and value == value:  # not NaN
                axes.text(
                    x,
                    y,
                    f"{value:.2f}"[1:],
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white" if value > 0.5 else "#222222",
                )
    axes.grid(False)
    axes.tick_params(length=0)


def users(measured: Measured) -> list[Drawing]:
    """The CDF of the user-level CHR of each objective (Fig. 2b)."""
    found = {place: {h: _quantiles(measured, place, h) for h in HEADS} for place in _measured(measured, "SingleCF")}
    places = [place for place in found if any(found[place].values())]
    if not places:
        return []
    figure, panels = _panels(1, len(places), 2.9, sharey=True)
    for axes, place in zip(panels, places, strict=True):
        for order, (head, levels) in enumerate(found[place].items()):
            if levels:
                axes.plot(
                    levels, [k / (len(levels) - 1) for k in range(len(levels))], color=COLOURS[head], linewidth=1.8
                )
                beyond = 0.1 + 0.2 * order  # a label a fifth: the lines meet at 0 and at 1
                at = next((k for k, level in enumerate(levels) if level >= beyond), len(levels) - 1)
                axes.text(levels[at], at / (len(levels) - 1), HEADS[head][-1], color="white", fontsize=7.5, ha="center",
                          va="center", bbox={"boxstyle": "circle,pad=0.2", "color": COLOURS[head]})  # fmt: skip
        axes.axvline(published.USER_CHR, color=GREY, linewidth=1, linestyle=":")
        axes.set(title=label(place), xlabel="CHR of a user", xlim=(0, 1), ylim=(0, 1))
    panels[0].set_ylabel("share of users at or below")
    caption = "User-level CHR of each objective among the five; dotted: 0.4, which the paper has most users above."
    return [
        Drawing("user-chr", figure, caption, "Cumulative distributions of the users' CHR, a line for each objective.")
    ]


def _quantiles(measured: Measured, place: Place, head: str) -> list[float]:
    """The users' quantiles, each the mean over splits."""
    known = [
        found for line in measured.runs("SingleCF", place).values() if (found := line.get("user_chr", {}).get(head))
    ]
    return [mean(each) for each in zip(*known, strict=True)]


def consistency(measured: Measured) -> list[Drawing]:
    """Steadiness by rank, and the consensuses over training (Fig. 4)."""
    runs = measured.runs("consistency", CITEULIKE)
    if not runs:
        return []
    figure, panels = _panels(2, 2, 5.2, sharex="col")
    for (left, right), (which, heads) in zip(
        (panels[:2], panels[2:]), (("one", "CF-A alone"), ("all", "all objectives")), strict=True
    ):
        for kind, colour, shift in (("correct", "#0072B2", -0.2), ("incorrect", "#bbbbbb", 0.2)):
            bins = [
                estimate(measured.field("consistency", CITEULIKE, "consistency", which, kind, k)) for k in range(10)
            ]
            for place, one in enumerate(bins):
                if one:
                    left.bar(place + shift, one.mean, 0.4, yerr=one.spread, color=colour, ecolor=GREY)
        left.set(
            title=f"{heads}: consistency by rank", xticks=range(10), xticklabels=[f"{10 * k + 10}" for k in range(10)]
        )
        left.grid(False, axis="x")
        for kind, colour in (("R", "#E69F00"), ("RC", "#222222")):
            curves = [line["curves"] for line in runs.values() if line.get("curves")]
            if curves:
                epochs = curves[0]["epoch"]
                values = [mean(each) for each in zip(*(curve[which][kind] for curve in curves), strict=False)]
                right.plot(epochs[: len(values)], values, color=colour, linewidth=1.8)
                right.annotate(
                    f" {kind}", (epochs[len(values) - 1], values[-1]), color=colour, va="center", fontweight="bold"
                )
        right.set(title=f"{heads}: Recall@50 of the consensus")
        right.margins(x=0.08)
    panels[2].set_xlabel("rank, up to")
    panels[3].set_xlabel("epoch")
    kinds = [("#0072B2", "correct"), ("#bbbbbb", "incorrect"), ("#E69F00", "R-consensus"), ("#222222", "RC-consensus")]
    _key(figure, kinds, paper=False, ncols=4, loc="outside lower center")
    caption = "CiteULike. Left: how steady predictions are at epoch 50. Right: what steadiness adds to a consensus."
    most = [rise for each in measured.rises("all").values() for rise in each]
    words = f" RC is above R by up to {100 * max(most):.0f} %." if most else ""
    return [
        Drawing("consistency", figure, caption, f"Bars of consistency by rank and curves of two consensuses.{words}")
    ]


def hyperparameters(measured: Measured) -> list[Drawing]:
    """Balancing, alpha, window and period."""
    if not measured.runs("ConCF", CITEULIKE):
        return []
    figure, panels = _panels(1, 3, 3.4, sharey=True, width_ratios=[0.8, 1, 1.6])
    balancing = {"without": "without balancing", "per epoch": "weights per epoch", "per batch": "ConCF"}
    alphas = {"0": "alpha=0", "0.005": "ConCF", "0.01": "alpha=0.01", "0.1": "alpha=0.1", "1": "alpha=1"}
    windows = {f"{q}\n{p}": f"Q={q},p={p}" for q in ("5", "10", "all") for p in (1, 10, 20)}
    windows["5\n10"] = "ConCF"
    theirs = {"5\n10": "Q=5,p=10", "per batch": "alpha=0.01"}  # where `variant` is ConCF itself
    titles = ("balancing", "alpha", "|Q| (above) and p (below)")
    for axes, title, ticks in zip(panels, titles, (balancing, alphas, windows), strict=True):
        for x, (tick, variant) in enumerate(ticks.items()):
            printed = published.HYPERPARAMETERS.get(theirs.get(tick, variant))
            for place, row in enumerate((BEST, CONSENSUS)):
                found, colour = estimate(measured.test(variant, CITEULIKE, row)), MARKS[row][0]
                if found:
                    _dot(axes, x - 0.12, found.mean, found.spread, colour)
                if printed:
                    _hollow(axes, x + 0.16, printed[place], colour)
        axes.set(title=title, xticks=range(len(ticks)), xticklabels=list(ticks), xlim=(-0.6, len(ticks) - 0.4))
        axes.grid(False, axis="x")
    panels[0].set_ylabel("Recall@50")
    _key(
        figure, [(MARKS[BEST][0], "best head"), (MARKS[CONSENSUS][0], "consensus")], loc="outside lower center", ncols=3
    )
    caption = "CiteULike. Ours start from |Q| 5, p 10, alpha 0.005 (reference), the paper's from 5, 20, 0.01."
    return [
        Drawing("hyperparameters", figure, caption, "Dots of Recall@50 of best head and consensus for each setting.")
    ]


def differences(measured: Measured) -> list[Drawing]:
    """What each difference, switched alone, adds to the consensus."""
    found = measured.effects()
    if not found:
        return []
    figure, (axes,) = _panels(1, 1, 1.1 + 0.27 * len(found))
    for height, (name, _, effect) in enumerate(found):
        one, colour = estimate(effect), "#0072B2" if name.startswith("paper") else "#D55E00"
        if one:
            axes.plot(list(effect.values()), [height] * len(effect), "o", color=colour, alpha=0.35, markersize=4)
            _dot(axes, one.mean, height, one.spread, colour, across=True)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(yticks=range(len(found)), yticklabels=[name for name, _, _ in found], ylim=(len(found) - 0.5, -0.5))
    axes.set(xlabel="change of the consensus' Recall@50 against reference")
    _key(
        figure,
        [("#0072B2", "as in the paper"), ("#D55E00", "as in the released code")],
        paper=False,
        loc="outside lower center",
        ncols=2,
    )
    alt = f"Sorted dots of the effect of each switch, from {found[0][0]} (best) to {found[-1][0]} (worst)."
    caption = "CiteULike: each difference switched alone. Large dots: mean and spread; small ones: the splits."
    return [Drawing("differences", figure, caption, alt)]


FIGURES: dict[str, Callable[[Measured], list[Drawing]]] = {
    "main": main, "groups": groups, "schemes": schemes, "per": exclusive, "chr": users, "consistency": consistency,
    "hyperparameters": hyperparameters, "differences": differences,
}  # fmt: skip
