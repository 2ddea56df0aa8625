"""What decides each claim of the paper: functions from measured lines to cases. `claims.csv` has the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from statistics import mean

from concf.runtime.text_tables import short
from reproduction import published
from reproduction.controls import COUNTED, RC
from reproduction.lines import (
    BEST_TESTED,
    CITEULIKE,
    DATASETS,
    NAMES,
    SCHEMES,
    TITLES,
    Lines,
    gain,
    label,
    name_of,
    paired,
    percent,
    signed,
)
from reproduction.measured import Dataset, estimate, figure, hundredths
from reproduction.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS
from reproduction.verdicts import YES, Case, Cases, Decide, compare, corrected, gained, settled

CONSIDERABLE = 0.25  # a PER that counts as high: the paper names 0.35 as an example and gives no bound
STABLE = 0.03  # figures that differ by no more than this share are stable: the paper's differ by up to 2 %
NEAR = 0.1  # "a little": the paper's are 4 % below and 1 % above
LONG = ("Q=5,p=10", "Q=5,p=20", "Q=10,p=1", "Q=10,p=10", "ConCF")  # windows; `reference` has |Q| 10, p 20 itself
WHICH = (("one", "CF-A"), ("all", "all"))  # heads of the lines of `consistency`


def statistics(lines: Lines) -> Cases:
    """Users, items and events as they are printed."""
    for data, kind in product(("citeulike", "ciao"), ("users", "items", "events")):
        ours = estimate(lines.field("statistics", (data, "paper"), "statistics", kind))
        printed = published.STATISTICS[data][kind]
        if ours:
            words = f"{NAMES[data]} {kind} {ours.mean:,.0f} (paper {printed:,.0f})"
            yield settled(words, ours.mean == printed)


def gains(name: str) -> Decide:
    """Gain.Best or Gain.Con. of the four metrics."""

    def decide(lines: Lines) -> Cases:
        for dataset, metric in product(DATASETS, METRICS):
            yield gained(*lines.gains(dataset, metric)[name], f"{label(dataset)}: {short(metric)}")

    return decide


def all_groups(lines: Lines) -> Cases:
    """Each group of users by itself."""
    for dataset, group in product(DATASETS, range(4)):
        yield gained(*lines.group(dataset, group), f"{label(dataset)}: G-{group + 1}")


def sparse_users(lines: Lines) -> Cases:
    """G-4 against the best of the other groups on each split."""
    for dataset in DATASETS:
        groups = [lines.group(dataset, group) for group in range(4)]
        *others, sparse = ({k: a[k] / v - 1 for k, v in b.items() if v and k in a} for a, b in groups)
        rivals = {k: max(other[k] for other in others) for k in sparse if all(k in other for other in others)}
        yield compare(sparse, rivals, f"{label(dataset)}: G-4 {{}}, the best of the others {{}}", signed)


def heads_hardly(lines: Lines) -> Cases:
    """Heads trained together without consensus learning, no higher than the same objectives alone by the noise."""
    noise = lines.noise(BEST) or 0.0
    for dataset, head in product(DATASETS, HEADS):
        ours = {seed: value - noise for seed, value in lines.test("without CL", dataset, head).items()}
        words = f"{label(dataset)} {HEADS[head]} {{}} without CL less the noise, {{}} alone"
        case = compare(lines.test("SingleCF", dataset, head), ours, unless=True)
        if case:
            a, b = paired(ours, lines.test("SingleCF", dataset, head))
            yield Case(words.format(figure(mean(a)), figure(mean(b))), None, case.moves, case.p, unless=True)


def r_sometimes(lines: Lines) -> Cases:
    """Whether the R-consensus is anywhere below the best head or model, and where."""
    pairs = (((scheme, BEST), (scheme, R_CONSENSUS)) for scheme in SCHEMES)
    cases = [case for case in beats(*pairs, datasets=DATASETS)(lines) if case]
    p = corrected(cases)
    lower = [case.shown(each) for case, each in zip(cases, p, strict=True) if case.grade(each) is YES]
    if cases:
        named = f": {'; '.join(lower)}" if lower else ""
        yield settled(f"in {len(lower)} of {len(cases)} cases{named}", bool(lower))


def high_per(lines: Lines) -> Cases:
    """The lowest PER of each data set."""
    for dataset in DATASETS:
        ours = [estimate(lines.field("SingleCF", dataset, "per", x, y)) for x in HEADS for y in HEADS if x != y]
        means = [one.mean for one in ours if one]
        if means:
            words = f"{label(dataset)}: {min(means):.2f} to {max(means):.2f}, {mean(means):.2f} on average"
            yield settled(words, min(means) >= CONSIDERABLE)


def e_misses(lines: Lines) -> Cases:
    """CF-E above CF-A, and PER(A;E)."""
    e, a = (lines.test("SingleCF", CITEULIKE, head) for head in ("multinomial", "bpr"))
    yield compare(e, a, "CF-E {} against CF-A {}")
    missed = estimate(lines.field("SingleCF", CITEULIKE, "per", "bpr", "multinomial"))
    if missed:
        yield settled(f"PER(A;E) {missed.mean:.2f} (paper {published.PER_A_E})", missed.mean >= CONSIDERABLE)


def over_size(lines: Lines) -> Cases:
    """How far CHR by objective is above that by size: as far as the paper says."""
    series = [lines.chr(variant, CITEULIKE) for variant in ("SingleCF", "model sizes")]
    share, printed = gain(*series), published.CHR_OVER_SIZE
    if share:
        a, b = map(mean, paired(*series))
        words = f"{a:.2f} against {b:.2f}: {signed(share.mean)} (paper {signed(printed)})"
        yield settled(words, share.mean >= printed)


def most_users(lines: Lines) -> Cases:
    """The share of users with a high CHR: more than half."""
    runs = lines.runs("SingleCF", CITEULIKE).values()
    for head, name in HEADS.items():
        known = [levels for line in runs if (levels := line.get("user_chr", {}).get(head))]
        if known:
            share = mean(mean(level > published.USER_CHR for level in levels) for levels in known)
            yield settled(f"{name} {100 * share:.0f} % of the users", share > 0.5)


def more_consistent(lines: Lines) -> Cases:
    """Correct against incorrect predictions in each bin of ranks."""
    for (which, heads), k in product(WHICH, range(10)):
        path = ("consistency", CITEULIKE, "consistency", which)
        words = f"{heads}, ranks {10 * k + 1} to {10 * k + 10}: {{}} against {{}}"
        yield compare(lines.field(*path, "correct", k), lines.field(*path, "incorrect", k), words)


def consistent_at_the_top(lines: Lines) -> Cases:
    """Whether consistency falls from each bin to the next."""
    for (which, heads), kind in product(WHICH, ("correct", "incorrect")):
        bins = [estimate(lines.field("consistency", CITEULIKE, "consistency", which, kind, k)) for k in range(10)]
        means = [one.mean for one in bins if one]
        if len(means) > 1:
            falls, steps = sum(x > y for x, y in pairwise(means)), len(means) - 1
            words = f"{heads} {kind} falls in {falls} of {steps} steps, from {means[0]:.2f} to {means[-1]:.2f}"
            yield settled(words, falls == steps)


def over_training(lines: Lines) -> Cases:
    """RC against R at each epoch with a full window."""
    for which, heads in (("all", "all heads"), ("one", "CF-A alone")):
        for epoch, (r, rc) in lines.at_epochs(which).items():
            yield compare(rc, r, f"{heads}, epoch {epoch}: {{}} against {{}}")


def all_rise_more(lines: Lines) -> Cases:
    """What consistency adds to all heads, against what it adds to one."""
    every, one = ({seed: mean(each) for seed, each in lines.rises(which).items()} for which in ("all", "one"))
    yield compare(every, one, "{} on average over the epochs, CF-A alone {}", percent)


def consistency_itself(lines: Lines) -> Cases:
    """R + C against R + 1, the temperatures of each tuned on validation."""
    for dataset, scheme in product(DATASETS, SCHEMES):
        both, counted = (lines.control(scheme, dataset, kind) for kind in (RC, COUNTED))
        yield compare(both, counted, f"{label(dataset)}: {SCHEMES[scheme]} {{}} against {{}}")


def beats(*pairs: tuple[tuple[str, str], tuple[str, str]], datasets: Sequence[Dataset] = (CITEULIKE,)) -> Decide:
    """Whether each first (variant, row) is above its second in R@50, on all splits that both have."""

    def decide(chosen: Lines) -> Cases:
        lines = chosen.whole
        for dataset, pair in product(datasets, pairs):
            first, second = (f"{TITLES.get(variant, variant)} {name_of(row)}" for variant, row in pair)
            where = f"{label(dataset)}: " if len(datasets) > 1 else ""
            a, b = (lines.test(variant, dataset, row) for variant, row in pair)
            yield compare(a, b, f"{where}{first} {{}} against {second} {{}}")

    return decide


def higher_chr(*pairs: tuple[str, str]) -> Decide:
    """Whether the CHR of each first variant is above that of its second."""

    def decide(lines: Lines) -> Cases:
        for dataset, (high, low) in product(DATASETS, pairs):
            words = f"{label(dataset)}: {TITLES.get(high, high)} {{}} against {TITLES.get(low, low)} {{}}"
            yield compare(lines.chr(high, dataset), lines.chr(low, dataset), words, hundredths)

    return decide


def every(ours: str, *others: str) -> Decide:
    """Whether a variant's best head and consensus are above those of the others."""
    return beats(*(((ours, row), (other, row)) for other in others for row in (BEST, CONSENSUS)))


def windowed(q: int, p: int) -> str:
    """The variant with that window and period."""
    return "ConCF" if (q, p) == (10, 20) else f"Q={q},p={p}"


STUDENTS = ("SingleCF", "ConCF best head", "ConCF consensus")
above_students = beats(
    *((("ConCF", CONSENSUS if student.endswith(CONSENSUS) else BEST), ("distillation", f"{teacher} > {student}"))
      for teacher, student in product(("T1", "T2"), STUDENTS))
)  # fmt: skip
all_rankings = beats(
    *(((windowed(q, p), CONSENSUS), (f"Q=all,p={p}", CONSENSUS)) for p, q in product((1, 10, 20), (5, 10)))
)


def no_better_than_its_teacher(lines: Lines) -> Cases:
    """A student head significantly above its teacher is against the claim."""
    for teacher, student in (("T1", "SingleCF"), *product(("T2",), STUDENTS)):
        a, b = (lines.test("distillation", CITEULIKE, row) for row in (f"{teacher} > {student}", teacher))
        yield compare(b, a, f"{teacher} {{}}, its student {student} {{}}", unless=True)


def stable(*variants: str) -> Decide:
    """Whether the best head and the consensus of variants are near one another."""

    def decide(lines: Lines) -> Cases:
        for row in (BEST, CONSENSUS):
            means = [one.mean for name in variants if (one := estimate(lines.test(name, CITEULIKE, row)))]
            if len(means) > 1:
                apart = max(means) / min(means) - 1
                yield settled(f"{row} within {percent(apart)} of one another", apart <= STABLE)

    return decide


def windows(lines: Lines) -> Cases:
    """Long windows near one another, and each above the short one."""
    yield from stable(*LONG)(lines)
    yield from beats(*(((name, row), ("Q=5,p=1", row)) for name, row in product(LONG, (BEST, CONSENSUS))))(lines)


def embeddings(lines: Lines) -> Cases:
    """Their share of the parameters."""
    models = {"initial conditions": "a model of CF-A", "ConCF": "ConCF, CF-E's tables among the others"}
    for variant, words in models.items():
        share = gain(*(lines.field(variant, CITEULIKE, "parameters", kind) for kind in ("embeddings", "all")))
        if share:
            words = f"{percent(share.mean + 1)} of the parameters of {words}"
            yield settled(words, share.mean + 1 > published.EMBEDDINGS)


def about_single(lines: Lines) -> Cases:
    """AutoML's best head and ensemble against the best SingleCF."""
    single = lines.test("SingleCF", CITEULIKE, BEST_TESTED)
    for row, low, high in ((BEST, -NEAR, 0.0), (CONSENSUS, 0.0, NEAR)):
        ours = lines.test("AutoML", CITEULIKE, row)
        share = gain(ours, single)
        if share:
            words = f"AutoML {name_of(row)} {signed(share.mean)} against the best SingleCF"
            yield settled(words, low <= share.mean <= high)
