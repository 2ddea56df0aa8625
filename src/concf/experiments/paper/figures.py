"""The paper's figures, drawn from measured lines: filled marks are ours, hollow ones the paper's.

`FIGURES` has a function for each experiment that has figures. What was not measured is not drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING

from concf.errors import MissingExtraError
from concf.experiments.paper import published
from concf.experiments.paper.drawing import (
    COLOURS,
    GREY,
    LIGHT,
    MARKS,
    STYLE,
    Drawing,
    dot,
    hollow,
    key,
    panels,
    same_scale,
)
from concf.experiments.paper.measured import (
    CITEULIKE,
    PLACES,
    SCHEMES,
    WINDOW,
    Estimate,
    Measured,
    Place,
    estimate,
    gain,
)
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, R_CONSENSUS
from concf.experiments.paper.table import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = "Axes do not begin at 0; whiskers are standard deviations over the splits."


def draw(name: str, measured: Measured) -> list[Drawing]:
    """The figures of an experiment, as far as it was measured."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtraError("matplotlib", "report", "drawing figures") from None
    with rc_context(STYLE):
        return FIGURES[name](measured) if name in FIGURES else []


def _measured(measured: Measured, *variants: str) -> list[Place]:
    return [place for place in PLACES if all(measured.runs(variant, place) for variant in variants)]


def main(measured: Measured) -> list[Drawing]:
    """R@50 of the main table: every head of SingleCF and ConCF and the consensus."""
    places = _measured(measured, "SingleCF", "ConCF")
    if not places:
        return []
    figure, axes_of = panels(1, len(places), 4.6, sharey=True)
    rows = [("SingleCF", head) for head in HEADS] + [("ConCF", row) for row in (*HEADS, R_CONSENSUS, CONSENSUS)]
    for axes, place in zip(axes_of, places, strict=True):
        for height, (scheme, row) in enumerate(rows):
            colour = COLOURS.get(row, "#222222" if row == CONSENSUS else GREY)
            found = estimate(measured.test(scheme, place, row))
            if found:
                dot(axes, found.mean, height, found.spread, colour, across=True)
            printed = (published.SINGLE if scheme == "SingleCF" else published.CONCF)[place[0]]
            if place[0] != "foursquare" and row in printed:
                hollow(axes, printed[row][2], height + 0.27, colour)
        axes.axhspan(4.62, len(rows) - 0.4, color="#f4f4f4", zorder=0)
        axes.set(title=label(place), xlabel="Recall@50", ylim=(len(rows) - 0.4, -0.6))
    same_scale(list(zip(axes_of, places, strict=True)), "x")
    axes_of[0].set_yticks(range(len(rows)), [f"{scheme}  {HEADS.get(row, row)}" for scheme, row in rows])
    key(figure, [("#222222", "ours, with the spread over splits")], loc="outside lower center", ncols=2)
    ours = _listed(places, lambda place: estimate(measured.test("ConCF", place, CONSENSUS)))
    caption = (
        "Recall@50: ours (filled) against the paper (hollow), which prints no R-consensus here and has no counterpart "
        f"of the Foursquare subset. {SCALE}"
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
    figure, axes_of = panels(1, len(places), 2.8, sharey=True)
    for axes, place in zip(axes_of, places, strict=True):
        ticks = [f"G-{group}" for group in range(1, 5)]
        for group, shade in enumerate(("#a6c8e0", "#6ba6cf", "#2f83b7", "#004c78")):
            one = gain(*measured.group(place, group))
            if one:
                axes.bar(
                    group, 100 * one.mean, 0.72, yerr=100 * (one.spread or 0), color=shade, ecolor=GREY, capsize=2.5
                )
                ticks[group] += f"\n{100 * one.mean:+.1f}"
        axes.set(title=label(place), xticks=range(4), xticklabels=ticks)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.margins(y=0.15)
        axes.grid(False, axis="x")
    axes_of[0].set_ylabel("gain in Recall@50, %")
    words = _listed(places, lambda place: gain(*measured.group(place, 3)), "{:+.0%}")
    caption = (
        "Gain.Best by how active users are: G-1 the most active quarter, G-4 the least. Whiskers: standard "
        "deviation over the splits."
    )
    return [Drawing("groups", figure, caption, f"Bars of Gain.Best in four groups of users. G-4 gains: {words}.")]


def schemes(measured: Measured) -> list[Drawing]:
    """Best head, R-con and RC-con of three schemes (Fig. 5b)."""
    places = [place for place in PLACES if any(measured.runs(scheme, place) for scheme in SCHEMES)]
    if not places:
        return []
    figure, axes_of = panels(1, len(places), 3.4)
    for axes, place in zip(axes_of, places, strict=True):
        for x, scheme in enumerate(SCHEMES):
            for shift, (row, (colour, _)) in zip((-0.25, 0, 0.25), MARKS.items(), strict=True):
                found, printed = (
                    estimate(measured.test(scheme, place, row)),
                    published.SCHEME_POINTS.get((place[0], scheme), {}),
                )
                if found:
                    dot(axes, x + shift, found.mean, found.spread, colour)
                if row in printed and place[0] != "foursquare":
                    hollow(axes, x + shift + 0.1, printed[row], colour)
        axes.set(title=label(place), xticks=range(3), xticklabels=["SingleCF", "without CL", "ConCF"], xlim=(-0.5, 2.5))
        axes.grid(False, axis="x")
    same_scale(list(zip(axes_of, places, strict=True)), "y")
    axes_of[0].set_ylabel("Recall@50")
    key(figure, MARKS.values(), loc="outside lower center", ncols=4)
    caption = f"Three training schemes: the best head (or model), the R-consensus and the RC-consensus of each. {SCALE}"
    words = _listed(places, lambda place: estimate(measured.test("ConCF", place, CONSENSUS)))
    return [Drawing("schemes", figure, caption, f"Dots of Recall@50 of three schemes. RC-consensus of ConCF: {words}.")]


def exclusive(measured: Measured) -> list[Drawing]:
    """Recall@50 of the five objectives, and a PER map for each data set (Fig. 2a)."""
    places = _measured(measured, "SingleCF")
    if not places:
        return []
    figure, axes_of = panels(1, 1 + len(places), 2.9, width_ratios=[1.5, *[1.0] * len(places)])
    bars, *maps = axes_of
    for row, place in enumerate(places):
        for order, head in enumerate(HEADS):
            found, height = estimate(measured.test("SingleCF", place, head)), row + 0.16 * (order - 2)
            if found:
                end, spread = found.mean + (found.spread or 0), found.spread
                bars.barh(height, found.mean, 0.15, color=COLOURS[head], xerr=spread, ecolor=GREY)
                bars.text(end, height, f" {HEADS[head][-1]}", va="center", fontsize=7, color=GREY)
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
    caption = (
        "The five objectives alone (bars; whiskers are standard deviations over the splits), and PER: the share of the "
        "row's hits that the column misses."
    )
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
    found = {place: {h: _shares(measured, place, h) for h in HEADS} for place in _measured(measured, "SingleCF")}
    places = [place for place in found if any(found[place].values())]
    if not places:
        return []
    figure, axes_of = panels(1, len(places), 2.9, sharey=True)
    for axes, place in zip(axes_of, places, strict=True):
        for order, (head, shares) in enumerate(found[place].items()):
            if shares:
                axes.plot(GRID, shares, color=COLOURS[head], linewidth=1.8)
                at = (1 + 2 * order) * (len(GRID) - 1) // 10  # a label a fifth: the lines meet at 0 and at 1
                axes.text(GRID[at], shares[at], HEADS[head][-1], color="white", fontsize=7.5, ha="center",
                          va="center", bbox={"boxstyle": "circle,pad=0.2", "color": COLOURS[head]})  # fmt: skip
        axes.axvline(published.USER_CHR, color=GREY, linewidth=1, linestyle=":")
        axes.set(title=label(place), xlabel="CHR of a user", xlim=(0, 1), ylim=(0, 1))
    axes_of[0].set_ylabel("share of users at or below")
    caption = (
        "User-level CHR of each objective among the five, the mean of the splits' distributions; dotted: 0.4, which "
        "the paper has most users above."
    )
    return [
        Drawing("user-chr", figure, caption, "Cumulative distributions of the users' CHR, a line for each objective.")
    ]


GRID = [k / 200 for k in range(201)]  # levels of CHR


def _shares(measured: Measured, place: Place, head: str) -> list[float]:
    """The share of users at or below each level of GRID, the mean over splits; of the users' quantiles."""
    runs = measured.runs("SingleCF", place).values()
    known = [sorted(found) for line in runs if (found := line.get("user_chr", {}).get(head))]
    return [mean(bisect_right(levels, x) / len(levels) for levels in known) for x in GRID] if known else []


def consistency(measured: Measured) -> list[Drawing]:
    """Consistency by rank, and the consensuses over training (Fig. 4)."""
    runs = measured.runs("consistency", CITEULIKE)
    if not runs:
        return []
    figure, axes_of = panels(2, 2, 5.2, sharex="col")
    for (left, right), (which, heads) in zip(
        (axes_of[:2], axes_of[2:]), (("one", "CF-A alone"), ("all", "all objectives")), strict=True
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
            _curve(right, list(measured.curves(which, kind).values()), kind, colour)
        left.set_ylabel("consistency")
        right.set(title=f"{heads}: the consensus", ylabel="Recall@50")
        right.axvspan(0, WINDOW, color="#efefef", zorder=0)
        right.margins(x=0.08)
    axes_of[2].set_xlabel("rank, up to")
    axes_of[3].set_xlabel("epoch")
    kinds = [("#0072B2", "correct"), ("#bbbbbb", "incorrect"), ("#E69F00", "R-consensus"), ("#222222", "RC-consensus")]
    key(figure, kinds, paper=False, ncols=4, loc="outside lower center")
    caption = (
        "CiteULike. Left: how steady predictions are at epoch 50. Right: what consistency adds to a consensus; grey: "
        f"before epoch {WINDOW} the window is not full, and nothing is taken from there. Whiskers and bands: standard "
        "deviations over the splits."
    )
    most = [rise for each in measured.rises("all").values() for rise in each]
    words = f" RC is above R by up to {100 * max(most):.0f} %." if most else ""
    return [
        Drawing("consistency", figure, caption, f"Bars of consistency by rank and curves of two consensuses.{words}")
    ]


def _curve(axes: Axes, curves: Sequence[dict[int, float]], kind: str, colour: str) -> None:
    """Mean and spread over the splits; faint until the window is full."""
    epochs = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    at = {epoch: [curve[epoch] for curve in curves] for epoch in epochs}
    for part, faint in (([e for e in epochs if e <= WINDOW], 0.35), ([e for e in epochs if e >= WINDOW], 1.0)):
        means, spreads = [mean(at[e]) for e in part], [stdev(at[e]) if len(at[e]) > 1 else 0.0 for e in part]
        low, high = ([m + way * s for m, s in zip(means, spreads, strict=True)] for way in (-1, 1))
        axes.plot(part, means, color=colour, linewidth=1.8, alpha=faint)
        axes.fill_between(part, low, high, color=colour, alpha=0.18 * faint, linewidth=0)
    if epochs:
        axes.annotate(f" {kind}", (epochs[-1], mean(at[epochs[-1]])), color=colour, va="center", fontweight="bold")


def hyperparameters(measured: Measured) -> list[Drawing]:
    """Balancing, alpha, window and period."""
    if not measured.runs("ConCF", CITEULIKE):
        return []
    figure, axes_of = panels(1, 3, 3.4, sharey=True, width_ratios=[0.8, 1, 1.6])
    balancing = {"without": "without balancing", "per epoch": "weights per epoch", "per batch": "ConCF"}
    alphas = {"0": "alpha=0", "0.005": "ConCF", "0.01": "alpha=0.01", "0.1": "alpha=0.1", "1": "alpha=1"}
    windows = {f"{q}\n{p}": f"Q={q},p={p}" for q in ("5", "10", "all") for p in (1, 10, 20)}
    windows["5\n10"] = "ConCF"
    theirs = {"5\n10": "Q=5,p=10", "per batch": "alpha=0.01"}  # where `variant` is ConCF itself
    titles = ("balancing", "alpha", "|Q| (above) and p (below)")
    for axes, title, ticks in zip(axes_of, titles, (balancing, alphas, windows), strict=True):
        for x, (tick, variant) in enumerate(ticks.items()):
            printed = published.HYPERPARAMETERS.get(theirs.get(tick, variant))
            for place, row in enumerate((BEST, CONSENSUS)):
                found, colour = estimate(measured.test(variant, CITEULIKE, row)), MARKS[row][0]
                if found:
                    dot(axes, x - 0.3 + 0.36 * place, found.mean, found.spread, colour)
                if printed:
                    hollow(axes, x - 0.12 + 0.36 * place, printed[place], colour)
        axes.set(title=title, xticks=range(len(ticks)), xticklabels=list(ticks), xlim=(-0.6, len(ticks) - 0.4))
        axes.grid(False, axis="x")
    axes_of[0].set_ylabel("Recall@50")
    key(
        figure, [(MARKS[BEST][0], "best head"), (MARKS[CONSENSUS][0], "consensus")], loc="outside lower center", ncols=3
    )
    caption = "CiteULike. Ours start from |Q| 5, p 10, alpha 0.005 (reference), the paper's from 5, 20, 0.01. " + SCALE
    return [
        Drawing("hyperparameters", figure, caption, "Dots of Recall@50 of best head and consensus for each setting.")
    ]


def differences(measured: Measured) -> list[Drawing]:
    """What each difference, switched alone, adds to the consensus; what is far off is told below."""
    every, noise = measured.effects(), measured.noise(CONSENSUS)
    found = [effect for effect in every if effect.name != FAR_OFF]
    if not found:
        return []
    figure, (axes,) = panels(1, 1, 1.3 + 0.27 * len(found))
    for height, effect in enumerate(found):
        one, colour = estimate(effect.consensus), "#0072B2" if effect.name.startswith("paper") else "#D55E00"
        if one:
            values = list(effect.consensus.values())
            axes.plot(values, [height] * len(values), "o", color=colour, alpha=0.35, markersize=4)
            dot(axes, one.mean, height, one.spread, colour, across=True)
    if noise:
        axes.axvspan(-noise, noise, color=LIGHT, alpha=0.6, zorder=0)
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(yticks=range(len(found)), yticklabels=[effect.name for effect in found], ylim=(len(found) - 0.5, -0.5))
    axes.set(xlabel="change of the consensus' Recall@50 against reference" + _far_off(measured))
    names = [("#0072B2", "as in the paper"), ("#D55E00", "as in the released code"), (LIGHT, "run-to-run noise")]
    key(figure, names[: 3 if noise else 2], paper=False, loc="outside lower center", ncols=3)
    alt = f"Sorted dots of the effect of each switch, from {found[0].name} (best) to {found[-1].name} (worst)."
    caption = (
        "CiteULike: each difference switched alone. Large dots: mean and standard deviation; small ones: the splits. "
        "Grey: how far two equal runs are apart on a split. The zero line is itself one run a split" + _null(measured)
    )
    return [Drawing("differences", figure, caption, alt)]


FAR_OFF, NULL = "paper: all", "paper: epochs"  # a switch that changes nothing: runs stop before


def _far_off(measured: Measured) -> str:
    far = [estimate(effect.consensus) for effect in measured.effects() if effect.name == FAR_OFF]
    told = [one.words("{:+.4f}".format).replace("± +", "± ") for one in far if one]
    return f"\nnot drawn: {FAR_OFF}, {told[0]}" if told else ""


def _null(measured: Measured) -> str:
    null = [estimate(effect.consensus) for effect in measured.effects() if effect.name == NULL]
    told = [f"{one.mean:+.3f}" for one in null if one]
    return f": `{NULL}`, which changes nothing there, stands at {told[0]}." if told else "."


FIGURES: dict[str, Callable[[Measured], list[Drawing]]] = {
    "main": main, "groups": groups, "schemes": schemes, "per": exclusive, "chr": users, "consistency": consistency,
    "hyperparameters": hyperparameters, "differences": differences,
}  # fmt: skip
