"""The paper's figures, drawn from measured lines: filled marks are ours, hollow ones the paper's.

`FIGURES` has a function for each experiment that has a figure. What was not measured is not drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes

from reproduction.controls import COUNTED, RC, R
from reproduction.drawing import (
    COLOURS,
    GREY,
    LIGHT,
    MARKS,
    STYLE,
    Drawing,
    dot,
    hollow,
    key,
    panel_each,
    panels,
    same_scale,
)
from reproduction.lines import CITEULIKE, DATASETS, SCHEMES, WINDOW, Lines, gain, label
from reproduction.measured import Dataset, Estimate, Series, estimate
from reproduction.published import BEST, CONSENSUS, HEADS, R_CONSENSUS, USER_CHR, printed

SCALE = "Axes do not begin at 0; whiskers are standard deviations over the splits."
BLUE, ORANGE, RED, BLACK = "#0072B2", "#E69F00", "#D55E00", "#222222"
WAYS = {R: ORANGE, RC: BLACK, COUNTED: BLUE}
GRID = [k / 200 for k in range(201)]  # levels of CHR
FAR_OFF = "paper: all"


def draw(name: str, lines: Lines) -> list[Drawing]:
    """The figures of an experiment, of the data sets that were measured."""
    drawn = []
    for function, variants in FIGURES.get(name, ()):
        datasets = [dataset for dataset in DATASETS if all(lines.runs(variant, dataset) for variant in variants)]
        if datasets:
            with rc_context(STYLE):
                drawn.append(function(lines, datasets))
    return drawn


def _listed(datasets: Iterable[Dataset], of: Callable[[Dataset], Estimate | None], form: str = "{:.3f}") -> str:
    values = [(label(dataset), of(dataset)) for dataset in datasets]
    return "; ".join(f"{name} {form.format(one.mean)}" for name, one in values if one)


def _printed(dataset: Dataset, variant: str, row: str) -> float | None:
    """R@50 of the paper, where it is of the same data."""
    return None if dataset[0] == "foursquare" else printed(dataset[0], variant, row)


def main(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """R@50 of the main table: every head of SingleCF and ConCF and the consensus."""
    figure, panel = panel_each(datasets, 4.6, sharey=True)
    rows = [("SingleCF", head) for head in HEADS] + [("ConCF", row) for row in (*HEADS, R_CONSENSUS, CONSENSUS)]
    for axes, dataset in panel:
        for height, (scheme, row) in enumerate(rows):
            colour = COLOURS.get(row, BLACK if row == CONSENSUS else GREY)
            dot(axes, estimate(lines.test(scheme, dataset, row)), height, colour)
            if row != R_CONSENSUS:
                hollow(axes, _printed(dataset, scheme, row), height + 0.27, colour)
        axes.axhspan(4.62, len(rows) - 0.4, color="#f4f4f4", zorder=0)
        axes.set(xlabel="Recall@50", ylim=(len(rows) - 0.4, -0.6))
    same_scale(panel, "x")
    panel[0][0].set_yticks(range(len(rows)), [f"{scheme}  {HEADS.get(row, row)}" for scheme, row in rows])
    key(figure, [(BLACK, "ours, with the standard deviation over splits")], columns=2)
    ours = _listed(datasets, lambda dataset: estimate(lines.test("ConCF", dataset, CONSENSUS)))
    caption = (
        "Recall@50: ours (filled) against the paper (hollow), which prints no R-consensus here and has no counterpart "
        f"of the Foursquare subset. {SCALE}"
    )
    alt = f"Dot plot of Recall@50 of SingleCF and of the heads of ConCF, ours and the paper's. Consensus: {ours}."
    return Drawing("main", figure, caption, alt)


def groups(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """Gain.Best by group of users (Fig. 5a)."""
    figure, panel = panel_each(datasets, 2.8, sharey=True)
    for axes, dataset in panel:
        ticks = [f"G-{group}" for group in range(1, 5)]
        for group, shade in enumerate(("#a6c8e0", "#6ba6cf", "#2f83b7", "#004c78")):
            one = gain(*lines.group(dataset, group))
            if one:
                axes.bar(group, 100 * one.mean, 0.72, yerr=100 * (one.std or 0), color=shade, ecolor=GREY, capsize=2.5)
                ticks[group] += f"\n{100 * one.mean:+.1f}"
        axes.set(xticks=range(4), xticklabels=ticks)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.margins(y=0.15)
        axes.grid(False, axis="x")
    panel[0][0].set_ylabel("gain in Recall@50, %")
    sparse = _listed(datasets, lambda dataset: gain(*lines.group(dataset, 3)), "{:+.0%}")
    caption = (
        "Gain.Best by how active users are: G-1 the most active quarter, G-4 the least. Whiskers: standard "
        "deviation over the splits."
    )
    return Drawing("groups", figure, caption, f"Bars of Gain.Best in four groups of users. G-4 gains: {sparse}.")


def schemes(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """Best head, R-con and RC-con of three schemes (Fig. 5b)."""
    figure, panel = panel_each(datasets, 3.4)
    for axes, dataset in panel:
        for x, scheme in enumerate(SCHEMES):
            for shift, (row, (colour, _)) in zip((-0.25, 0, 0.25), MARKS.items(), strict=True):
                dot(axes, x + shift, estimate(lines.test(scheme, dataset, row)), colour)
                hollow(axes, x + shift + 0.1, _printed(dataset, scheme, row), colour)
        axes.set(xticks=range(3), xticklabels=list(SCHEMES), xlim=(-0.5, 2.5))
        axes.grid(False, axis="x")
    same_scale(panel, "y")
    panel[0][0].set_ylabel("Recall@50")
    key(figure, MARKS.values())
    caption = f"Three training schemes: the best head (or model), the R-consensus and the RC-consensus of each. {SCALE}"
    ours = _listed(datasets, lambda dataset: estimate(lines.test("ConCF", dataset, CONSENSUS)))
    return Drawing("schemes", figure, caption, f"Dots of Recall@50 of three schemes. RC-consensus of ConCF: {ours}.")


def exclusive(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """Recall@50 of the five objectives, and a PER map for each data set (Fig. 2a)."""
    figure, (bars, *maps) = panels(1, 1 + len(datasets), 2.9, width_ratios=[1.5, *[1.0] * len(datasets)])
    for row, dataset in enumerate(datasets):
        for order, (head, name) in enumerate(HEADS.items()):
            one, height = estimate(lines.test("SingleCF", dataset, head)), row + 0.16 * (order - 2)
            if one:
                bars.barh(height, one.mean, 0.15, color=COLOURS[head], xerr=one.std, ecolor=GREY)
                bars.text(one.mean + (one.std or 0), height, f" {name[-1]}", va="center", fontsize=7, color=GREY)
    names = [label(dataset).replace(", ", "\n").replace(" (", "\n(") for dataset in datasets]
    bars.set(title="Recall@50", yticks=range(len(datasets)), yticklabels=names, ylim=(len(datasets) - 0.5, -0.5))
    bars.grid(False, axis="y")
    letters = [name[-1] for name in HEADS.values()]
    ticks = {"xticks": range(5), "yticks": range(5), "xticklabels": letters, "yticklabels": letters}
    for axes, dataset in zip(maps, datasets, strict=True):
        _map(axes, [[estimate(lines.field("SingleCF", dataset, "per", x, y)) for y in HEADS] for x in HEADS])
        axes.set(title="PER, " + label(dataset).replace(" (subset)", "").replace(", ", "\n"), **ticks)
        axes.set(xlabel="missed by", ylabel="hit by")
        axes.title.set_fontsize(8)
    missed = _listed(datasets, lambda d: estimate(lines.field("SingleCF", d, "per", "bpr", "multinomial")), "{:.2f}")
    caption = (
        "The five objectives alone (bars; whiskers are standard deviations over the splits), and PER: the share of the "
        "row's hits that the column misses."
    )
    return Drawing("per", figure, caption, f"Bars of Recall@50 and heat maps of PER. PER(A;E): {missed}.")


def _map(axes: Axes, estimates: Sequence[Sequence[Estimate | None]]) -> None:
    values = [[one.mean if one else float("nan") for one in row] for row in estimates]
    axes.imshow(values, cmap="Blues", vmin=0, vmax=0.9)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if x != y and value == value:  # not NaN
                colour = "white" if value > 0.5 else BLACK
                axes.text(x, y, f"{value:.2f}"[1:], ha="center", va="center", fontsize=7.5, color=colour)
    axes.grid(False)
    axes.tick_params(length=0)


def users(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """The CDF of the user-level CHR of each objective (Fig. 2b)."""
    figure, panel = panel_each(datasets, 2.9, sharey=True)
    for axes, dataset in panel:
        for order, (head, name) in enumerate(HEADS.items()):
            shares, colour = _shares(lines, dataset, head), COLOURS[head]
            if shares:
                axes.plot(GRID, shares, color=colour, linewidth=1.8)
                at = (1 + 2 * order) * (len(GRID) - 1) // 10  # a label a fifth: the lines meet at 0 and at 1
                axes.text(GRID[at], shares[at], name[-1], color="white", fontsize=7.5, ha="center", va="center",
                          bbox={"boxstyle": "circle,pad=0.2", "color": colour})  # fmt: skip
        axes.axvline(USER_CHR, color=GREY, linewidth=1, linestyle=":")
        axes.set(xlabel="CHR of a user", xlim=(0, 1), ylim=(0, 1))
    panel[0][0].set_ylabel("share of users at or below")
    caption = (
        "User-level CHR of each objective among the five, the mean of the splits' distributions; dotted: 0.4, which "
        "the paper has most users above."
    )
    alt = "Cumulative distributions of the users' CHR, a line for each objective."
    return Drawing("user-chr", figure, caption, alt)


def _shares(lines: Lines, dataset: Dataset, head: str) -> list[float]:
    """The share of users at or below each level of GRID, the mean over splits; of the users' quantiles."""
    runs = lines.runs("SingleCF", dataset).values()
    quantiles = [sorted(levels) for line in runs if (levels := line.get("user_chr", {}).get(head))]
    return [mean(bisect_right(levels, x) / len(levels) for levels in quantiles) for x in GRID] if quantiles else []


def consistency(lines: Lines, _: Sequence[Dataset]) -> Drawing:
    """Consistency by rank, and the consensuses over training (Fig. 4)."""
    figure, panel = panels(2, 2, 5.2, sharex="col")
    rows = ((panel[:2], "one", "CF-A alone"), (panel[2:], "all", "all objectives"))
    for (left, right), which, heads in rows:
        for kind, colour, shift in (("correct", BLUE, -0.2), ("incorrect", "#bbbbbb", 0.2)):
            for k in range(10):
                one = estimate(lines.field("consistency", CITEULIKE, "consistency", which, kind, k))
                if one:
                    left.bar(k + shift, one.mean, 0.4, yerr=one.std, color=colour, ecolor=GREY)
        left.set(title=f"{heads}: consistency by rank", ylabel="consistency")
        left.set(xticks=range(10), xticklabels=[f"{10 * k + 10}" for k in range(10)])
        left.grid(False, axis="x")
        for kind, colour in (("R", ORANGE), ("RC", BLACK)):
            _curve(right, list(lines.curves(which, kind).values()), kind, colour)
        right.set(title=f"{heads}: the consensus", ylabel="Recall@50")
        right.axvspan(0, WINDOW, color="#efefef", zorder=0)
        right.margins(x=0.08)
    panel[2].set_xlabel("rank, up to")
    panel[3].set_xlabel("epoch")
    kinds = [(BLUE, "correct"), ("#bbbbbb", "incorrect"), (ORANGE, "R-consensus"), (BLACK, "RC-consensus")]
    key(figure, kinds, paper=False)
    caption = (
        "CiteULike. Left: how consistent predictions are at epoch 50. Right: what consistency adds to a consensus; "
        f"grey: before epoch {WINDOW} the window is not full, and nothing is taken from there. Whiskers and bands: "
        "standard deviations over the splits."
    )
    most = [rise for each in lines.rises("all").values() for rise in each]
    above = f" RC is above R by up to {100 * max(most):.0f} %." if most else ""
    alt = f"Bars of consistency by rank and curves of two consensuses.{above}"
    return Drawing("consistency", figure, caption, alt)


def controls(lines: Lines, datasets: Sequence[Dataset]) -> Drawing:
    """The same rankings voted in three ways."""
    figure, panel = panel_each(datasets, 3.0)
    for axes, dataset in panel:
        for x, scheme in enumerate(SCHEMES):
            for shift, (kind, colour) in zip((-0.25, 0, 0.25), WAYS.items(), strict=True):
                dot(axes, x + shift, estimate(lines.control(scheme, dataset, kind)), colour)
        axes.set(xticks=range(3), xticklabels=list(SCHEMES), xlim=(-0.5, 2.5))
        axes.grid(False, axis="x")
    panel[0][0].set_ylabel("Recall@50")
    key(figure, [(colour, kind) for kind, colour in WAYS.items()], paper=False)
    caption = (
        "The same rankings, voted by rank alone (R), by rank and consistency (R + C), and by rank and a count of the "
        f"heads that name the item (R + 1), each with its temperatures tuned on validation. {SCALE}"
    )
    both = _listed(datasets, lambda dataset: estimate(lines.control("ConCF", dataset, RC)))
    counted = _listed(datasets, lambda dataset: estimate(lines.control("ConCF", dataset, COUNTED)))
    return Drawing("controls", figure, caption, f"Dots of Recall@50. R + C of ConCF: {both}. R + 1: {counted}.")


def _curve(axes: Axes, curves: Sequence[Series], kind: str, colour: str) -> None:
    """Mean and standard deviation over the splits; faint until the window is full."""
    epochs = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    at = {epoch: [curve[epoch] for curve in curves] for epoch in epochs}
    for part, faint in (([e for e in epochs if e <= WINDOW], 0.35), ([e for e in epochs if e >= WINDOW], 1.0)):
        means, stds = [mean(at[e]) for e in part], [stdev(at[e]) if len(at[e]) > 1 else 0.0 for e in part]
        low, high = ([m + way * s for m, s in zip(means, stds, strict=True)] for way in (-1, 1))
        axes.plot(part, means, color=colour, linewidth=1.8, alpha=faint)
        axes.fill_between(part, low, high, color=colour, alpha=0.18 * faint, linewidth=0)
    if epochs:
        axes.annotate(f" {kind}", (epochs[-1], mean(at[epochs[-1]])), color=colour, va="center", fontweight="bold")


def hyperparameters(lines: Lines, _: Sequence[Dataset]) -> Drawing:
    """Balancing, alpha, window and period."""
    figure, panel = panels(1, 3, 3.4, sharey=True, width_ratios=[0.8, 1, 1.6])
    windows = {f"{q}\n{p}": f"Q={q},p={p}" for q in ("5", "10", "all") for p in (1, 10, 20)}
    ticks_of = {
        "balancing": {"without": "without balancing", "per epoch": "weights per epoch", "per batch": "ConCF"},
        "alpha": {"0": "alpha=0", "0.005": "ConCF", "0.01": "alpha=0.01", "0.1": "alpha=0.1", "1": "alpha=1"},
        "|Q| (above) and p (below)": windows | {"10\n20": "ConCF"},
    }
    theirs = {"10\n20": "Q=10,p=20", "per batch": "alpha=0.01", "0.005": ""}  # where our variant is ConCF itself
    for axes, (title, ticks) in zip(panel, ticks_of.items(), strict=True):
        for x, (tick, variant) in enumerate(ticks.items()):
            for shift, row in ((0, BEST), (0.36, CONSENSUS)):
                dot(axes, x - 0.3 + shift, estimate(lines.test(variant, CITEULIKE, row)), MARKS[row][0])
                hollow(axes, x - 0.12 + shift, _printed(CITEULIKE, theirs.get(tick, variant), row), MARKS[row][0])
        axes.set(title=title, xticks=range(len(ticks)), xticklabels=list(ticks), xlim=(-0.6, len(ticks) - 0.4))
        axes.grid(False, axis="x")
    panel[0].set_ylabel("Recall@50")
    key(figure, [(MARKS[row][0], row) for row in (BEST, CONSENSUS)], columns=3)
    caption = "CiteULike. Ours start from |Q| 10, p 20, alpha 0.005 (reference), the paper's from 5, 20, 0.01. " + SCALE
    alt = "Dots of Recall@50 of best head and consensus for each setting."
    return Drawing("hyperparameters", figure, caption, alt)


def differences(lines: Lines, _: Sequence[Dataset]) -> Drawing:
    """What each difference, switched alone, adds to the consensus; what is far off is named below."""
    effects, noise = {effect.name: effect.consensus for effect in lines.effects()}, lines.noise(CONSENSUS)
    far = estimate(effects.get(FAR_OFF, {}))
    drawn = [name for name in effects if name != FAR_OFF]
    figure, (axes,) = panels(1, 1, 1.3 + 0.27 * len(drawn))
    for height, name in enumerate(drawn):
        values, colour = list(effects[name].values()), RED if name.startswith("released") else BLUE
        axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.35, markersize=4)
        dot(axes, estimate(effects[name]), height, colour)
    if noise:
        axes.axvspan(-noise, noise, color=LIGHT, alpha=0.6, zorder=0)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(yticks=range(len(drawn)), yticklabels=drawn, ylim=(len(drawn) - 0.5, -0.5))
    below = f"\nnot drawn: {FAR_OFF}, {far.text('{:+.4f}'.format).replace('± +', '± ')}" if far else ""
    axes.set(xlabel="change of the consensus' Recall@50 against reference" + below)
    names = [(BLUE, "as in the paper"), (RED, "as in the released code"), (LIGHT, "run-to-run noise")]
    key(figure, names[: 3 if noise else 2], paper=False, columns=3)
    alt = f"Sorted dots of the effect of each switch, from {drawn[0]} (best) to {drawn[-1]} (worst)."
    caption = (
        "CiteULike: each difference switched alone. Large dots: mean and standard deviation; small ones: the splits. "
        "Grey: how far two equal runs are apart on a split. The zero line is itself one run a split."
    )
    return Drawing("differences", figure, caption, alt)


FIGURES: dict[str, list[tuple[Callable[[Lines, Sequence[Dataset]], Drawing], tuple[str, ...]]]] = {
    "main": [(main, ("SingleCF", "ConCF"))],
    "groups": [(groups, ("SingleCF", "ConCF"))],
    "schemes": [(schemes, tuple(SCHEMES))],
    "per": [(exclusive, ("SingleCF",))],
    "chr": [(users, ("SingleCF",))],
    "consistency": [(controls, tuple(SCHEMES)), (consistency, ("consistency",))],
    "hyperparameters": [(hyperparameters, ("ConCF", "alpha=0.01"))],
    "differences": [(differences, ("ConCF", "paper: lambdas"))],
}
"""Experiment -> its figures, each with the variants that a data set must be measured with to be in it."""
