"""What decides each claim of the paper: functions from measured lines to cases. `claims` has the sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from concf.experiments.paper import published
from concf.experiments.paper.measured import (
    CALLED,
    CITEULIKE,
    FACTORS,
    NAMES,
    PLACES,
    SCHEMES,
    Measured,
    Place,
    Series,
    estimate,
    gain,
    hundredths,
    p_value,
    paired,
    percent,
    signed,
)
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, R_CONSENSUS
from concf.experiments.paper.table import label, name_of
from concf.experiments.paper.verdicts import (
    NO,
    PARTLY,
    YES,
    Cases,
    Decide,
    TrainingSet,
    above,
    below,
    chance,
    graded,
    hardly,
    tested,
)  # fmt: skip
from concf.runtime.text_tables import short

CONSIDERABLE = 0.25  # a PER that counts as high: the paper names 0.35 as an example and gives no bound
STABLE = 0.03  # figures that differ by no more than this share are stable: the paper's differ by up to 2 %
NEAR = 0.1  # "a little": the paper's are 4 % below and 1 % above
LONG = ("ConCF", "Q=5,p=20", "Q=10,p=1", "Q=10,p=10", "Q=10,p=20")  # windows; `reference` has |Q| 5, p 10 itself
SHORT = "Q=5,p=1"
STUDENTS = ("SingleCF", "ConCF best head", "ConCF consensus")


def statistics(measured: Measured) -> Cases:
    """Users, items and events as they are printed."""
    for data in ("citeulike", "ciao"):
        for kind in ("users", "items", "events"):
            found = estimate(measured.field("statistics", (data, "paper"), "statistics", kind))
            printed = published.STATISTICS[data][kind]
            if found:
                words = f"{NAMES[data]} {kind} {found.mean:,.0f} (paper {printed:,.0f})"
                yield TrainingSet(YES if found.mean == printed else NO, words)


def every_head(measured: Measured) -> Cases:
    """Each head against the best SingleCF; the words tell of the weakest."""
    for place in PLACES:
        single, noise = measured.single(place), measured.noise(BEST)
        known = {}
        for head, name in HEADS.items():
            case = above(measured.test("ConCF", place, head), single, f"{name} {{}} against {{}}", noise=noise)
            if case:
                known[head] = case
        if known:
            beats, weakest = (
                sum(case.grade is YES for case in known.values()),
                min(known.values(), key=lambda case: case.mean or 0.0),
            )
            words = f"{label(place)}: {beats} of {len(known)}, the weakest {weakest.words}"
            yield from (replace(case, words=words) for case in known.values())


def gains(name: str) -> Decide:
    """Gain.Best or Gain.Con. of the four metrics."""

    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            found = [(short(metric), tested(*measured.gains(place, metric)[name], "")) for metric in published.METRICS]
            words = ", ".join(f"{metric}{case.words}" for metric, case in found if case)
            yield from (case and replace(case, words=f"{label(place)}: {words}") for _, case in found)

    return decide


def all_groups(measured: Measured) -> Cases:
    """Each group of users by itself."""
    for place in PLACES:
        told, cases = [], []
        for group in range(4):
            noise = measured.noise_of("rows", measured.best_tested(place) or "", "groups", group, "recall@50")
            ours, theirs = measured.group(place, group)
            case, found = above(ours, theirs, "", noise=noise), gain(ours, theirs)
            if case and found:
                told.append(f"{signed(found.mean)}{case.words}")
                cases.append(case)
        yield from (replace(case, words=f"{label(place)}: {', '.join(told)}") for case in cases)


def _group_gains(measured: Measured, place: Place) -> list[Series]:
    """Of each group by split."""
    both = [measured.group(place, group) for group in range(4)]
    return [{seed: ours[seed] / v - 1 for seed, v in theirs.items() if v and seed in ours} for ours, theirs in both]


def sparse_users(measured: Measured) -> Cases:
    """G-4 against the best of the other groups on each split; in part if it is first on average."""
    for place in PLACES:
        *others, sparse = _group_gains(measured, place)
        seeds = [seed for seed in sparse if all(seed in other for other in others)]
        found = [gain(*measured.group(place, group)) for group in range(4)]
        means = [one.mean for one in found if one]
        if seeds and len(means) == 4:
            rivals = {seed: max(other[seed] for other in others) for seed in seeds}
            moves, p = [sparse[seed] - rivals[seed] for seed in seeds], p_value(sparse, rivals)
            grade = graded(moves, p, None)
            if grade is not YES:
                grade = PARTLY if means[3] > max(means[:3]) else NO
            first = f"first on {sum(move > 0 for move in moves)} of {len(moves)} splits"
            span = f"{signed(min(means[:3]))} to {signed(max(means[:3]))}"
            test = "" if p is None else f", p {p:.2g}"
            words = f"{label(place)}: G-4 {signed(means[3])}, the others {span} ({first}{test})"
            yield TrainingSet(grade, words, means[3], p)


def in_schemes(row: str, other: str, words: str) -> Decide:
    """Whether one row is above another in every scheme and place."""

    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            for scheme in SCHEMES:
                ours, theirs = measured.test(scheme, place, row), measured.test(scheme, place, other)
                noise = measured.noise(row)
                yield above(ours, theirs, f"{label(place)}, {SCHEMES[scheme]} {words}", noise=noise)

    return decide


def below_concf(scheme: str, rows: Iterable[str]) -> Decide:
    """Whether rows of a scheme are below those of ConCF in every place."""

    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            for row in rows:
                ours, concf = measured.test(scheme, place, row), measured.test("ConCF", place, row)
                words = f"{label(place)} {name_of(row)} {{}} against {{}}"
                yield below(ours, concf, words, noise=measured.noise(row))

    return decide


def heads_hardly(measured: Measured) -> Cases:
    """Heads trained together without consensus learning, against the same objectives alone."""
    noise = measured.noise(BEST)
    for place in PLACES:
        for head, name in HEADS.items():
            ours, theirs = measured.test("without CL", place, head), measured.test("SingleCF", place, head)
            yield hardly(ours, theirs, f"{label(place)} {name} {{}} against {{}} alone", noise=noise)


def r_sometimes(measured: Measured) -> Cases:
    """Whether the R-consensus is anywhere below the best head or model, and where."""
    cases = [case for case in in_schemes(BEST, R_CONSENSUS, "{} against R-con {}")(measured) if case]
    lower = [case for case in cases if case.grade is not NO]
    if cases:
        surely = any(case.grade is YES for case in lower)
        named = f": {'; '.join(case.words for case in lower)}" if lower else ""
        yield TrainingSet(YES if surely else PARTLY if lower else NO, f"in {len(lower)} of {len(cases)} cases{named}")


def lowest_chr(measured: Measured) -> Cases:
    """CHR of ConCF against the other schemes'."""
    noise = measured.noise_of("chr", "bpr")
    for place in PLACES:
        concf = measured.field("ConCF", place, "chr", "bpr")
        for scheme in ("SingleCF", "without CL"):
            other = measured.field(scheme, place, "chr", "bpr")
            words = f"{label(place)} {{}} against {SCHEMES[scheme]} {{}}"
            yield below(concf, other, words, hundredths, noise=noise)


def high_per(measured: Measured) -> Cases:
    """The lowest PER of each place, in part if their mean is high."""
    for place in PLACES:
        pairs = [(x, y) for x in HEADS for y in HEADS if x != y]
        found = [one.mean for x, y in pairs if (one := estimate(measured.field("SingleCF", place, "per", x, y)))]
        if found:
            grade = YES if min(found) >= CONSIDERABLE else PARTLY if mean(found) >= CONSIDERABLE else NO
            words = f"{label(place)}: {min(found):.2f} to {max(found):.2f}, {mean(found):.2f} on average"
            yield TrainingSet(grade, words)


def e_misses(measured: Measured) -> Cases:
    """CF-E above CF-A, and PER(A;E)."""
    e, a = (measured.test("SingleCF", CITEULIKE, head) for head in ("multinomial", "bpr"))
    yield above(e, a, "CF-E {} against CF-A {}", noise=measured.noise(BEST))
    missed = estimate(measured.field("SingleCF", CITEULIKE, "per", "bpr", "multinomial"))
    if missed:
        words = f"PER(A;E) {missed.mean:.2f} (paper {published.PER_A_E})"
        yield TrainingSet(YES if missed.mean >= CONSIDERABLE else NO, words)


def objective_most(measured: Measured) -> Cases:
    """CHR by objective against that by start and by size."""
    noise = measured.noise_of("chr", "bpr")
    for place in PLACES:
        objective = measured.field("SingleCF", place, "chr", FACTORS["SingleCF"])
        for factor in ("initial conditions", "model sizes"):
            other = measured.field(factor, place, "chr", FACTORS[factor])
            yield above(objective, other, f"{label(place)}: {{}} against {{}} by {factor}", hundredths, noise=noise)


def over_size(measured: Measured) -> Cases:
    """How far CHR by objective is above that by size: as far as the paper says, or half as far, in part."""
    series = [measured.field(name, CITEULIKE, "chr", FACTORS[name]) for name in ("SingleCF", "model sizes")]
    found, p, printed = gain(*series), p_value(*series), published.CHR_OVER_SIZE
    if found:
        grade = YES if found.mean >= printed else PARTLY if found.mean >= printed / 2 else NO
        a, b = paired(*series)
        test = chance(p, [x - y for x, y in zip(a, b, strict=True)])
        words = f"{mean(a):.2f} against {mean(b):.2f}: {signed(found.mean)} (paper {signed(printed)}; {test})"
        yield TrainingSet(grade, words, found.mean, p)


def most_users(measured: Measured) -> Cases:
    """The share of users with a high CHR: more than half."""
    for head, name in HEADS.items():
        runs = measured.runs("SingleCF", CITEULIKE).values()
        known = [levels for line in runs if (levels := line.get("user_chr", {}).get(head))]
        if known:
            share = mean(mean(level > published.USER_CHR for level in levels) for levels in known)
            yield TrainingSet(YES if share > 0.5 else NO, f"{name} {100 * share:.0f} % of the users")


def steadier(measured: Measured) -> Cases:
    """Correct against incorrect predictions in each bin of ranks."""
    for which, heads in (("one", "CF-A"), ("all", "all")):
        path = ("consistency", CITEULIKE, "consistency", which)
        both = [(measured.field(*path, "correct", k), measured.field(*path, "incorrect", k)) for k in range(10)]
        cases = [case for correct, incorrect in both if (case := above(correct, incorrect, ""))]
        most = max((case.p for case in cases if case.p is not None), default=None)
        words = f"{heads}: {sum(case.grade is YES for case in cases)} of {len(cases)} bins"
        yield from (replace(case, words=words + ("" if most is None else f", p at most {most:.2g}")) for case in cases)


def steadier_at_the_top(measured: Measured) -> Cases:
    """How often consistency falls from one bin to the next: always, or in part from the first to the last."""
    for which, heads in (("one", "CF-A"), ("all", "all")):
        for kind in ("correct", "incorrect"):
            path = ("consistency", CITEULIKE, "consistency", which, kind)
            found = [one.mean for k in range(10) if (one := estimate(measured.field(*path, k)))]
            if len(found) > 1:
                falls, steps = sum(x > y for x, y in pairwise(found)), len(found) - 1
                grade = YES if falls == steps else PARTLY if found[0] > found[-1] else NO
                span = f"from {found[0]:.2f} to {found[-1]:.2f}"
                yield TrainingSet(grade, f"{heads} {kind} falls in {falls} of {steps} steps, {span}")


def over_training(measured: Measured) -> Cases:
    """RC against R at each epoch with a full window."""
    for which, heads in (("all", "all heads"), ("one", "CF-A alone")):
        cases = [case for r, rc in measured.at_epochs(which).values() if (case := above(rc, r, ""))]
        rises = [rise for each in measured.rises(which).values() for rise in each]
        if cases and rises:
            surely, higher = (sum(case.grade in wanted for case in cases) for wanted in ({YES}, {YES, PARTLY}))
            words = f"{heads}: above at {higher} of {len(cases)} epochs, at {surely} with p < 0.05"
            span = f"by {signed(mean(rises))} on average, {signed(max(rises))} at most"
            yield from (replace(case, words=f"{words}; {span}") for case in cases)


def all_rise_more(measured: Measured) -> Cases:
    """What consistency adds to all heads, against what it adds to one."""
    every, one = ({seed: mean(each) for seed, each in measured.rises(which).items()} for which in ("all", "one"))
    yield above(every, one, "{} on average over the epochs, CF-A alone {}", percent)


def beats(*pairs: tuple[tuple[str, str], tuple[str, str]]) -> Decide:
    """Whether each first (variant, row) is above its second in R@50 on CiteULike."""

    def decide(measured: Measured) -> Cases:
        for ours, theirs in pairs:
            names = [" ".join((CALLED.get(variant, variant), name_of(row))) for variant, row in (ours, theirs)]
            a, b = (measured.test(variant, CITEULIKE, row) for variant, row in (ours, theirs))
            yield above(a, b, f"{names[0]} {{}} against {names[1]} {{}}", noise=measured.noise(ours[1]))

    return decide


def every(ours: str, others: Iterable[str], rows: Iterable[str] = (BEST, CONSENSUS)) -> Decide:
    """Whether a variant's rows are above the same rows of the others."""
    return beats(*(((ours, row), (other, row)) for other in others for row in rows))


def no_better_than_its_teacher(measured: Measured) -> Cases:
    """A student head above its teacher is against the claim if significantly so, else in part."""
    for teacher, student in (("T1", "SingleCF"), *(("T2", student) for student in STUDENTS)):
        a, b = (measured.test("distillation", CITEULIKE, row) for row in (f"{teacher} > {student}", teacher))
        case = tested(a, b, f"{student} over {teacher}")
        yield case and replace(case, grade=case.grade.turned())


def stable(*variants: str) -> Decide:
    """Whether the best head and the consensus of variants are near one another."""

    def decide(measured: Measured) -> Cases:
        for row in (BEST, CONSENSUS):
            found = {name: one.mean for name in variants if (one := estimate(measured.test(name, CITEULIKE, row)))}
            if len(found) > 1:
                apart = max(found.values()) / min(found.values()) - 1
                yield TrainingSet(YES if apart <= STABLE else NO, f"{row} within {percent(apart)} of one another")

    return decide


def windows(measured: Measured) -> Cases:
    """Long windows near one another, and each above the short one."""
    yield from stable(*LONG)(measured)
    pairs: Sequence[tuple[str, str]] = [(name, row) for name in LONG for row in (BEST, CONSENSUS)]
    yield from beats(*(((name, row), (SHORT, row)) for name, row in pairs))(measured)


def embeddings(measured: Measured) -> Cases:
    """Their share of the parameters."""
    models = {"initial conditions": "a model of CF-A", "ConCF": "ConCF, CF-E's tables among the others"}
    for variant, words in models.items():
        share = gain(*(measured.field(variant, CITEULIKE, "parameters", kind) for kind in ("embeddings", "all")))
        if share:
            grade = YES if share.mean + 1 > published.EMBEDDINGS else NO
            yield TrainingSet(grade, f"{percent(share.mean + 1)} of the parameters of {words}")


def about_single(measured: Measured) -> Cases:
    """AutoML's best head and ensemble against the best SingleCF."""
    single = measured.single(CITEULIKE)
    for row, low, high in ((BEST, -NEAR, 0.0), (CONSENSUS, 0.0, NEAR)):
        ours = measured.test("AutoML", CITEULIKE, row)
        found, case = gain(ours, single), above(ours, single, "")
        if found and case:
            grade = YES if low <= found.mean <= high else NO
            words = f"AutoML {name_of(row)} {signed(found.mean)} against the best SingleCF{case.words}"
            yield replace(case, grade=grade, words=words)
