"""The pictures of docs/paper.md and docs/strong.md, with their captions, from the lines that were measured.

python benchmarks/render_how_it_works.py     (reproduction/results.jsonl, benchmarks/results/strong*.jsonl)
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from statistics import mean

import numpy as np
from matplotlib import rc_context
from sources import lines
from strong import ROOT

sys.path.append(str(ROOT))  # a script's path has its own folder alone

from reproduction.controls import COUNTED, RC, R
from reproduction.drawing import GREY, STYLE, Drawing, panels
from reproduction.lines import CITEULIKE, FACTORS, SCHEMES, Lines
from reproduction.measured import Estimate, Series, estimate
from reproduction.published import CONSENSUS, HEADS

DOCS = ROOT / "docs"
PAGES, FOLDER = (DOCS / "paper.md", DOCS / "strong.md"), DOCS / "how-it-works"
MARKED = re.compile(r"(<!-- picture (\w+): written by benchmarks/render_how_it_works\.py -->\n).*?(<!-- end -->)", re.S)
NAMES = dict(zip(HEADS, ("BPR", "metric", "cross-entropy", "squared error", "multinomial"), strict=True))
BLUE, ORANGE, GREEN, LIGHT = "#0072B2", "#E69F00", "#009E73", "#bbbbbb"
LOGS = {"citeulike-released": "CiteULike", "foursquare-released": "Foursquare subset"}


def known(series: Series) -> Estimate:
    """Mean and deviation of what must be there."""
    found = estimate(series)
    assert found is not None
    return found


def disagree(measured: Lines) -> Drawing:
    """PER between the five objectives alone, and CHR by what makes models differ."""
    figure, (left, right) = panels(1, 2, 3.3, width_ratios=[1.25, 1])
    per = np.array([[known(measured.field("SingleCF", CITEULIKE, "per", x, y)).mean for y in HEADS] for x in HEADS])
    left.imshow(np.where(np.eye(5), np.nan, per), cmap="Blues", vmin=0, vmax=0.7)
    for row, column in zip(*np.nonzero(~np.eye(5, dtype=bool)), strict=True):
        value = per[row, column]
        left.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.42 else "black")
    left.set(xticks=range(5), yticks=range(5), yticklabels=list(NAMES.values()))
    left.set_xticklabels(list(NAMES.values()), rotation=40, ha="right", rotation_mode="anchor")
    left.set(xlabel="... and missed by", ylabel="hit by ...", title="Share of hits that the other misses (PER)")
    left.grid(False)
    shares = {name: known(measured.chr(variant, CITEULIKE)) for variant, name in FACTORS.items()}
    for height, (name, one) in enumerate(shares.items()):
        colour = BLUE if "objective" in name else LIGHT
        right.barh(height, one.mean, xerr=one.std, color=colour, ecolor=GREY, height=0.6)
        right.text(one.mean + (one.std or 0), height, f" {one.mean:.2f}", va="center")
    right.set(yticks=range(3), yticklabels=[f"other\n{name}s" for name in shares], xlim=(0, 0.62))
    right.set(title="Share of all hits that one model misses (CHR)")
    off = per[~np.eye(5, dtype=bool)]
    start, size, objective = (one.mean for one in shares.values())
    caption = (
        f"CiteULike, five splits. Left: an objective misses {off.min():.0%} to {off.max():.0%} of what another hits. "
        f"Right: BPR misses {objective:.0%} of what five objectives hit together, {size:.0%} of what other sizes "
        f"of BPR hit, and {start:.0%} of what other starts of the same model hit."
    )
    return Drawing("disagree", figure, caption, "Heat map of PER between five objectives, and bars of CHR.")


def consistency(measured: Lines) -> Drawing:
    """Consistency of right and wrong predictions by rank, and three ways to count votes."""
    figure, (left, right) = panels(1, 2, 3.2, width_ratios=[1.25, 1])
    values: dict[str, list[float]] = {}
    for kind, colour, shift in (("correct", BLUE, -0.2), ("incorrect", LIGHT, 0.2)):
        values[kind] = [
            known(measured.field("consistency", CITEULIKE, "consistency", "all", kind, k)).mean for k in range(10)
        ]
        left.bar(np.arange(10) + shift, values[kind], 0.4, color=colour, label=f"{kind} predictions")
    left.set(xticks=range(10), xticklabels=[f"{10 * k + 10}" for k in range(10)], xlabel="rank, up to")
    left.set(ylabel="consistency", title="Right predictions keep their rank", ylim=(0, 1.05))
    left.legend(ncols=2, loc="upper right")
    left.grid(False, axis="x")
    ways = {R: "rank alone (R)", COUNTED: "rank + count (R + 1)", RC: "rank + consistency (R + C)"}
    figures = {
        scheme: [known(measured.control(scheme, CITEULIKE, kind)) for kind in ways] for scheme in ("SingleCF", "ConCF")
    }
    for (scheme, found), colour, mark in zip(figures.items(), (ORANGE, BLUE), ("s", "o"), strict=True):
        shift = 0.1 if scheme == "ConCF" else -0.1
        for height, one in enumerate(found):
            right.errorbar(one.mean, height + shift, xerr=one.std, fmt=mark, color=colour, capsize=2.5,
                           label=NAMED[scheme] if height == 0 else None)  # fmt: skip
    right.set(yticks=range(3), yticklabels=list(ways.values()), ylim=(2.5, -0.5), xlabel="Recall@50 of the consensus")
    right.set_title("What it adds to a tuned vote")
    right.legend(loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=2)
    caption = (
        f"CiteULike, five splits. Left, at epoch 50: among the first ten ranks a right prediction has a consistency of "
        f"{values['correct'][0]:.2f}, a wrong one {values['incorrect'][0]:.2f}. Right: Recall@50 of the same rankings, "
        "voted in three ways with temperatures tuned on validation: "
        + "; ".join(
            f"{NAMED[scheme]}: {found[0].mean:.4f} by rank alone, {found[1].mean:.4f} with a count of the heads that "
            f"name the item, {found[2].mean:.4f} with consistency"
            for scheme, found in figures.items()
        )
        + "."
    )
    return Drawing("consistency", figure, caption, "Bars of consistency by rank, and dots of Recall@50 by way to vote.")


NAMED = {"SingleCF": "trained alone", "without CL": "trained together", "ConCF": "with the consensus loss"}


def teach(measured: Lines) -> Drawing:
    """Heads alone, together and distilled; CHR of the three."""
    figure, (left, right) = panels(1, 2, 3.3, width_ratios=[1.7, 1])
    styles = {"SingleCF": (ORANGE, "s"), "without CL": (GREEN, "D"), "ConCF": (BLUE, "o")}
    rows = {**NAMES, CONSENSUS: "their consensus"}
    best = {}
    for height, (row, _) in enumerate(rows.items()):
        points = [known(measured.test(scheme, CITEULIKE, row)).mean for scheme in SCHEMES]
        best[row] = points
        left.plot([points[0], points[-1]], [height, height], color="#dddddd", linewidth=3, zorder=1)
        for point, scheme in zip(points, SCHEMES, strict=True):
            colour, mark = styles[scheme]
            left.plot(point, height, mark, color=colour, label=NAMED[scheme] if height == 0 else None)
    left.set(yticks=range(len(rows)), yticklabels=list(rows.values()), ylim=(len(rows) - 0.5, -0.5))
    left.set(xlabel="Recall@50", title="Every head learns from the consensus")
    left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.18), ncols=3, columnspacing=1, handletextpad=0.3)
    shares = [known(measured.chr(scheme, CITEULIKE)) for scheme in SCHEMES]
    for x, (one, scheme) in enumerate(zip(shares, SCHEMES, strict=True)):
        right.bar(x, one.mean, 0.6, yerr=one.std, color=styles[scheme][0], ecolor=GREY)
        right.text(x, one.mean + (one.std or 0), f"{one.mean:.2f}", ha="center", va="bottom")
    right.set(xticks=range(3), xticklabels=["alone", "together", "consensus\nloss"], ylim=(0, 0.6))
    right.set_title("Hits of others that BPR misses (CHR)")
    right.grid(False, axis="x")
    heads = [mean(best[head][k] for head in NAMES) for k in (0, 2)]
    caption = (
        f"CiteULike, five splits. With the consensus loss the five heads rise from {heads[0]:.3f} to {heads[1]:.3f} in "
        f"Recall@50 on average, their consensus from {best[CONSENSUS][0]:.3f} to {best[CONSENSUS][2]:.3f}, and the "
        f"share of all hits that BPR misses falls from {shares[0].mean:.2f} to {shares[2].mean:.2f}."
    )
    return Drawing("teach", figure, caption, "Dots of Recall@50 of each head in three schemes, and bars of CHR.")


def _test(name: str, row: str) -> float:
    """The mean test Recall@50 over the splits of a row of `strong`, refitted, or of a baseline."""
    if row == "popularity":
        wanted = {"data": name, "model": row}
        tests = [line["test"] for line in lines("strong-rivals") if wanted.items() <= line["key"].items()]
    else:
        wanted = {"data": name, "refit": "validation", "budget": "default"}
        tests = [line["rows"][row]["test"] for line in lines("strong") if wanted.items() <= line["key"].items()]
    return float(mean(test["recall@50"] for test in tests))


def waterfall(_: Lines) -> Drawing:
    """From popularity to the head that `strong` ships, step by step, on two logs."""
    figure, axes = panels(1, 2, 3.0, sharey=True)
    told = []
    for panel, (name, log) in zip(axes, LOGS.items(), strict=True):
        steps = {
            "popularity": _test(name, "popularity"),
            "one factor model (ALS)": _test(name, "als-a"),
            "+ voters, plain consensus": _test(name, "R-consensus"),
            "+ re-ranker": _test(name, "consensus"),
            "distilled into one head": _test(name, "student"),
        }
        before = 0.0
        for height, value in enumerate(steps.values()):
            change = value - before
            colour = LIGHT if height == 0 else BLUE if change >= 0 else "#D55E00"
            panel.barh(height, change, left=before, color=colour, height=0.62)
            words = f" {value:.3f}" if height == 0 else f" {change:+.3f}"
            panel.text(max(value, before), height, words, va="center", fontsize=8.5)
            if height + 1 < len(steps):
                panel.plot([value, value], [height, height + 0.9], color=GREY, linewidth=0.8)
            before = value
        panel.set(title=log, xlabel="test Recall@50", xlim=(0, 0.6), yticks=range(5), yticklabels=list(steps))
        panel.set_ylim(4.5, -0.6)
        panel.grid(False, axis="y")
        told.append(f"{log}: " + ", ".join(f"{step} {value:.3f}" for step, value in steps.items()))
    caption = "Test Recall@50, means of five splits, protocol `released`, everything refitted. " + "; ".join(told) + "."
    return Drawing("waterfall", figure, caption, "Waterfall charts from popularity to the head of strong.")


def without(_: Lines) -> Drawing:
    """What the consensus loses on validation without each voter."""
    figure, (axes,) = panels(1, 1, 2.4)
    logs = {"citeulike-released": ("CiteULike, two splits", BLUE)}
    voters, told = ("als-a", "als-b", "rp3beta"), []
    for shift, (name, (label, colour)) in zip((0.0,), logs.items(), strict=True):
        found = [x for x in lines("strong-ablations") if x["key"]["data"] == name and x["key"]["budget"] == "default"]
        value = {
            each: mean(x["validation"]["consensus"] for x in found if x["key"]["without"] == each)
            for each in (None, *voters)
        }
        losses = [100 * (value[each] / value[None] - 1) for each in voters]
        bars = axes.barh(np.arange(3) + shift, losses, 0.5, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=3)
        told.append(f"{label}: " + ", ".join(f"{v} {loss:+.1f} %" for v, loss in zip(voters, losses, strict=True)))
    axes.set(yticks=range(3), yticklabels=[f"without {each}" for each in voters], ylim=(2.6, -0.6), xlim=(-3.2, 1.5))
    axes.set(xlabel="change of the consensus' validation Recall@50, %")
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.legend(loc="upper left")
    axes.grid(False, axis="y")
    caption = (
        "How the validation metric of the re-ranked consensus changes without each voter. "
        + "; ".join(told)
        + ". Differences "
        "below half a percent are noise."
    )
    return Drawing("without", figure, caption, "Bars of what the consensus loses without each voter.")


PICTURES: dict[str, Callable[[Lines], Drawing]] = {
    each.__name__: each for each in (disagree, consistency, teach, waterfall, without)
}


def drawings() -> dict[str, Drawing]:
    """All pictures of the pages, by name."""
    measured = Lines(lines("results", ROOT / "reproduction")).first()
    with rc_context(STYLE):
        return {name: draw(measured) for name, draw in PICTURES.items()}


def filled(text: str, drawn: dict[str, Drawing]) -> str:
    """The page with every picture and its caption between their marks."""

    def picture(match: re.Match[str]) -> str:
        one = drawn[match[2]]
        return f"{match[1]}\n![{one.alt}](how-it-works/{one.name}.png)\n\n*{one.caption}*\n\n{match[3]}"

    return MARKED.sub(picture, text)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    drawn = drawings()
    FOLDER.mkdir(exist_ok=True)
    for name, drawing in drawn.items():
        drawing.save(FOLDER / f"{name}.png", "png")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
