"""What the page says first, from measured lines: sentences that stay true whatever the figures turn out to be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from statistics import mean
from textwrap import fill

from concf.evaluation.significance import holm
from reproduction.controls import COUNTED, RC, R
from reproduction.lines import CITEULIKE, DATASETS, SCHEMES, Lines, gain, label, p_value, signed
from reproduction.measured import Dataset, Series, estimate
from reproduction.plan import CIAO, CIAO_TOO
from reproduction.published import BEST, CHR, CHR_OVER_SIZE, CONSENSUS, HEADS, printed
from reproduction.sensitivity_tables import RATES, against, chosen_rate

NOT_YET = "Not measured yet."
SIDE_BY_SIDE, TENTH = 14, 10  # cells at a time on one GPU; one cell of so many is drawn to estimate the cost


def _figure(series: Series) -> str | None:
    one = estimate(series)
    return f"{one.mean:.4f}" if one else None


def _beside(series: Series, paper: float | None) -> str | None:
    """`0.3812 (paper 0.3896)`."""
    ours = _figure(series)
    return ours and (f"{ours} (paper {paper:.4f})" if paper is not None else ours)


def _figures_met(lines: Lines) -> Iterator[str]:
    for dataset in CIAO_TOO:
        both = {
            row: _beside(lines.test("ConCF", dataset, row), printed(dataset[0], "ConCF", row))
            for row in (CONSENSUS, BEST)
        }
        if all(both.values()):
            yield f"On {label(dataset)} the consensus of ConCF has R@50 {both[CONSENSUS]}, its best head {both[BEST]}."
    gains = [gain(*lines.gains(dataset, "recall@50")["Gain.Con."]) for dataset in DATASETS]
    known = [each.mean for each in gains if each]
    if known:
        yield f"Over the best single objective the consensus gains {signed(min(known))} to {signed(max(known))}."


def _voting(lines: Lines) -> Iterator[str]:
    for dataset in CIAO_TOO:
        shown = [_figure(lines.test(scheme, dataset, CONSENSUS)) for scheme in SCHEMES]
        if all(shown):
            p = p_value(lines.test("ConCF", dataset, CONSENSUS), lines.test("SingleCF", dataset, CONSENSUS))
            yield (
                f"On {label(dataset)} the consensus of models trained alone has {shown[0]}, of heads trained together "
                f"without consensus learning {shown[1]}, of ConCF {shown[2]}"
                + ("." if p is None else f" (ConCF against models alone: p {p:.2g}).")
            )
    for dataset in CIAO_TOO:
        alone, taught = (lines.test(scheme, dataset, BEST) for scheme in ("without CL", "ConCF"))
        share = gain(taught, alone)
        if share:
            yield f"Consensus learning changes the best single head by {signed(share.mean)} on {label(dataset)}."


def _consistency(lines: Lines) -> Iterator[str]:
    kinds = {kind: _figure(lines.control("ConCF", CITEULIKE, kind)) for kind in (R, RC, COUNTED)}
    usual = {kind: _figure(lines.control("ConCF", CITEULIKE, kind, "untuned", "test", "recall@50")) for kind in kinds}
    if all(kinds.values()) and all(usual.values()):
        yield (
            f"With T = 10, ranks alone (R) give {usual[R]} on CiteULike, with consistency (R + C) {usual[RC]}, with 1 "
            f"for every head that names the item (R + 1), and no consistency, {usual[COUNTED]}. With the temperatures "
            f"of each tuned on validation it is {kinds[R]}, {kinds[RC]} and {kinds[COUNTED]}."
        )
    moves = []
    for dataset in DATASETS:
        for scheme in SCHEMES:
            share = gain(*(lines.control(scheme, dataset, kind) for kind in (RC, COUNTED)))
            moves += [share.mean] if share else []
    if moves:
        yield (
            f"So consistency itself, beyond counting, brings {signed(mean(moves))} on average over data sets and "
            f"schemes, {signed(min(moves))} to {signed(max(moves))}."
        )


def _complementary(lines: Lines) -> Iterator[str]:
    objective, sizes, starts = (
        lines.chr(each, CITEULIKE) for each in ("SingleCF", "model sizes", "initial conditions")
    )
    share = gain(objective, sizes)
    if share and starts:
        yield (
            f"CHR on CiteULike is {mean(objective.values()):.2f} by objective (paper {CHR['SingleCF']['citeulike']}), "
            f"{mean(sizes.values()):.2f} by model size ({CHR['model sizes']['citeulike']}), "
            f"{mean(starts.values()):.2f} by initial condition ({CHR['initial conditions']['citeulike']}), all trained "
            f"alike: {signed(share.mean)} from size to objective (paper {signed(CHR_OVER_SIZE)})."
        )


def _presets(lines: Lines) -> Iterator[str]:
    shown = {}
    for preset in ("reference", "released", "paper"):
        shown[preset] = _figure(lines.test("ConCF", CITEULIKE, CONSENSUS, preset=preset))
    if all(shown.values()):
        yield (
            f"On CiteULike the preset `reference` gives a consensus of {shown['reference']}, `released` (what the "
            f"authors' public code does) {shown['released']}, and `paper` (the paper to the letter) {shown['paper']}."
        )
    effects = [(effect.name, one.mean) for effect in lines.effects() if (one := estimate(effect.consensus))]
    worst = [f"`{name}` {change:+.4f}" for name, change in reversed(effects) if not name.endswith(": all")][:3]
    if worst:
        yield f"The single differences that cost most are {', '.join(worst)}."


def _scale(lines: Lines) -> Iterator[str]:
    names = {"SingleCF": "as Eq. 5 sums it", "SingleCF, CF-E by user": "by user", "SingleCF, CF-E by mean": "by mean"}
    shown = {how: _figure(lines.test("distillation", CITEULIKE, f"T2 > {row}")) for row, how in names.items()}
    known = [f"{figure} {how}" for how, figure in shown.items() if figure]
    if known:
        paper = printed("citeulike", "distillation", "T2 > SingleCF")
        yield f"A single CF-E taught by T2 has {', '.join(known)}; the paper has {paper}."
    kept, mean_of = (_figure(lines.test(each, CITEULIKE, CONSENSUS)) for each in ("ConCF", "reading, CF-E by mean"))
    if kept and mean_of:
        yield f"In ConCF, whose balancing makes up for it, the consensus has {kept} and by mean {mean_of}."


def _selected(lines: Lines) -> Iterator[str]:
    names = ("ConCF-S", "ConCF-S, all heads taught", "AutoML")
    shown = [_beside(lines.test(name, CITEULIKE, CONSENSUS), printed("citeulike", name, CONSENSUS)) for name in names]
    if all(shown):
        yield (
            f"The consensus of ConCF-S has {shown[0]}; {shown[1]} if every head is taught the whole consensus, though "
            f"a sixth of the pairs train it; AutoML {shown[2]}."
        )


def _single(lines: Lines) -> Iterator[str]:
    for dataset in CIAO_TOO:
        short = []
        for head, name in HEADS.items():
            ours, paper = estimate(lines.test("SingleCF", dataset, head)), printed(dataset[0], "SingleCF", head)
            if ours and paper and ours.mean < 0.95 * paper:
                short.append(f"{name} {ours.mean:.4f} (paper {paper:.4f})")
        if short:
            yield f"Alone, more than 5 % short of the paper's figures on {label(dataset)}: {', '.join(short)}."


def _loud(lines: Lines) -> Iterator[str]:
    """Whether CF-E falls short because it hardly hears the consensus, and what that costs the other heads."""
    quiet, loud = (
        lines.test(*which)
        for which in (
            ("distillation", CITEULIKE, "T2 > SingleCF"),
            ("taught CF-E", CITEULIKE, "T2 > SingleCF, share=1"),
        )
    )
    if quiet and loud:
        paper = printed("citeulike", "distillation", "T2 > SingleCF")
        yield (
            f"Taught by T2 with a consensus loss of the same gradient scale as its own, CF-E rises from "
            f"{_figure(quiet)} to {_beside(loud, paper)}."
        )
    rows = (*HEADS, BEST, CONSENSUS)
    pairs = [[lines.test(variant, CITEULIKE, row) for variant in ("share=1", "ConCF")] for row in rows]
    tests = [p for pair in pairs if (p := p_value(*pair)) is not None]
    if len(tests) == len(rows):
        corrected = zip(rows, pairs, holm(tests), strict=True)
        moves = {row: f"{against(*pair)[0].partition(' ')[0]} (p {p:.2g})" for row, pair, p in corrected}
        heads = ", ".join(f"{HEADS[head]} {moves[head]}" for head in HEADS)
        yield (
            f"In ConCF the same share changes {heads}, the best head {moves[BEST]} and the consensus "
            f"{moves[CONSENSUS]}; p by Holm's rule. So CF-E does fall short because it hardly hears the consensus, but "
            "what helps it costs CF-D, and it stays an experiment."
        )


def _dropout(lines: Lines) -> Iterator[str]:
    for dataset in CIAO_TOO:
        best = chosen_rate(lines, dataset)
        base, ours = (lines.test(variant, dataset, "multinomial") for variant in ("SingleCF", best))
        if ours and best != "SingleCF":
            change, p = against(ours, base)
            paper = printed(dataset[0], "SingleCF", "multinomial")
            yield (
                f"On {label(dataset)} validation chooses a dropout of {RATES[best]} for CF-E alone: "
                f"{_beside(ours, paper)} in place of {_figure(base)} with {RATES['SingleCF']} (change {change}, p {p})."
            )
    yield "This is sensitivity, not what the authors did: the paper names no dropout."


def _slow(lines: Lines) -> Iterator[str]:
    names = ("SingleCF", "CF-B, start", "CF-B, 1000 epochs", "CF-B, start, 1000 epochs", "CF-B, decoupled decay",
             "CF-B, no weight decay", "CF-B, no bias")  # fmt: skip
    shown = {name: _figure(lines.common("slow").test(name, CIAO[0], "cml")) for name in names}
    known = [f"{value} ({name.removeprefix('CF-B, ')})" for name, value in shown.items() if value]
    if known:
        yield (
            f"CF-B alone on Ciao is slow: {', '.join(known)}; the paper has {printed('ciao', 'SingleCF', 'cml')}. Time "
            "helps most, a larger start helps early, and nothing that we tried reaches the printed figure."
        )


def _base(lines: Lines) -> Iterator[str]:
    """Whether the consensus loss helps heads that start from ALS."""
    for dataset in CIAO_TOO:
        als = lines.test("from ALS", dataset, "ALS")
        parts = []
        for row in (BEST, CONSENSUS):
            ours, without = (lines.test(variant, dataset, row) for variant in ("from ALS", "from ALS, without CL"))
            if ours and without:
                change, p = against(ours, without)
                parts.append(f"{row} {_figure(ours)}, without the loss {_figure(without)} (change {change}, p {p})")
        if parts:
            strong = mean(lines.field("strong", dataset, "rows", CONSENSUS, "validation").values())
            valid = mean(lines.field("from ALS", dataset, "rows", CONSENSUS, "validation").values())
            yield (
                f"On {label(dataset)} ALS has {_figure(als)}; heads that start from it and learn from their consensus: "
                f"{'; '.join(parts)}. On validation their consensus has {valid:.4f}, that of `strong` {strong:.4f}."
            )
    yield "So the paper's consensus loss does not help a base this strong; different voters and a re-ranker, as"
    yield "in `strong`, do."
    weak = [_figure(lines.test(each, CITEULIKE, "cml")) for each in ("from ALS, without CL", "from ALS")]
    if all(weak):
        yield (
            f"It helps the head that cannot start where ALS is: CF-B on CiteULike has {weak[0]} without and {weak[1]} "
            "with it, still below ALS."
        )


def _cost(lines: Lines) -> Iterator[str]:
    """Time of the whole reproduction, from the seconds of the lines, and from a tenth of them."""
    lines = lines.whole
    spent = {str(line["cell"]): line.get("seconds", 0.0) for line in lines.lines}
    if len(spent) >= TENTH:
        drawn = sorted(spent, key=lambda cell: hashlib.sha256(cell.encode()).digest())[: len(spent) // TENTH]
        tenth = mean(spent[cell] for cell in drawn) * len(spent)
        minutes, guess = (seconds / SIDE_BY_SIDE / 60 for seconds in (sum(spent.values()), tenth))
        by_data: dict[Dataset, float] = {}
        for line in lines.lines:
            dataset = (line["cell"]["data"], line["cell"]["protocol"])
            by_data[dataset] = by_data.get(dataset, 0.0) + line.get("seconds", 0.0)
        shares = ", ".join(f"{label(dataset)} {value / sum(spent.values()):.0%}" for dataset, value in
                           sorted(by_data.items(), key=lambda item: -item[1])[:3])  # fmt: skip
        yield (
            f"The {len(spent)} lines took {sum(spent.values()):,.0f} s in all. Cells were timed with up to "
            f"{SIDE_BY_SIDE} side by side on one H200, so the whole reproduction takes about {minutes:.0f} minutes of "
            f"it (sum / {SIDE_BY_SIDE}). A tenth of the cells, drawn by a hash of their names, extrapolates to "
            f"{guess:.0f} minutes. Most of it: {shares}."
        )


def _protocol(lines: Lines) -> Iterator[str]:
    shown = [_figure(lines.test("ConCF", ("citeulike", each), CONSENSUS)) for each in ("paper", "released")]
    if all(shown):
        paper = printed("citeulike", "ConCF", CONSENSUS)
        yield f"By `paper` the consensus of ConCF has R@50 {shown[0]}, by `released` {shown[1]}; printed is {paper}."


STORY = {
    "figures_met": _figures_met, "voting": _voting, "consistency_in_words": _consistency,
    "complementary": _complementary, "presets_in_words": _presets, "scale": _scale, "selected": _selected,
    "single": _single, "protocol_in_words": _protocol, "loud": _loud, "dropout_in_words": _dropout,
    "slow_in_words": _slow, "base_in_words": _base, "cost": _cost,
}  # fmt: skip


def story(lines: Lines) -> dict[str, str]:
    """Name -> a paragraph."""
    return {name: fill(" ".join(sentences(lines)) or NOT_YET, 120) for name, sentences in STORY.items()}
