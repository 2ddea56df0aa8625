"""What the paper's text claims, each as a function of the measured lines that gives a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import mean

from concf.experiments import published
from concf.experiments.measured import (
    CITEULIKE,
    FACTORS,
    NAMES,
    PLACES,
    SCHEMES,
    Measured,
    Place,
    estimate,
    gain,
    hundredths,
    percent,
    signed,
)  # fmt: skip
from concf.experiments.published import BEST, CONSENSUS, HEADS, R_CONSENSUS
from concf.experiments.tables import label, name_of
from concf.experiments.verdicts import NO, PARTLY, YES, Case, Cases, Claim, Decide, above, below, tested
from concf.tables import short

CONSIDERABLE = 0.25  # a PER that counts as high: the paper names 0.35 as an example and gives no bound
STABLE = 0.03  # figures that differ by no more than this share are stable: the paper's differ by up to 2 %
WINDOWS = {"Q=5,p=10": "ConCF"}  # what `reference` has itself
NEAR = 0.1  # "a little": the paper's are 4 % below and 1 % above


def _statistics(measured: Measured) -> Cases:
    for data in ("citeulike", "ciao"):
        for kind in ("users", "items", "events"):
            found = estimate(measured.field("statistics", (data, "paper"), "statistics", kind))
            printed = published.STATISTICS[data][kind]
            if found:
                words = f"{NAMES[data]} {kind} {found.mean:,.0f} (paper {printed:,.0f})"
                yield Case(YES if found.mean == printed else NO, words)


def _every_head(measured: Measured) -> Cases:
    for place in PLACES:
        single = measured.test("SingleCF", place, BEST)
        cases = [above(measured.test("ConCF", place, head), single, "{} against {}") for head in HEADS]
        known = [case for case in cases if case]
        if known:
            beats, weakest = sum(case.grade == YES for case in known), min(case.words for case in known)
            words = f"{label(place)}: {beats} of {len(known)} on every split, the weakest {weakest}"
            yield from (Case(case.grade, words) for case in known)


def _gain(name: str) -> Decide:
    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            found = [(short(metric), tested(*measured.gains(place, metric)[name], "")) for metric in published.METRICS]
            words = ", ".join(f"{metric}{case.words}" for metric, case in found if case)
            yield from (case and Case(case.grade, f"{label(place)}: {words}") for _, case in found)

    return decide


def _group_gains(measured: Measured, place: Place) -> list[float]:
    found = [gain(*measured.group(place, group)) for group in range(4)]
    return [one.mean for one in found if one]


def _all_groups(measured: Measured) -> Cases:
    for place in PLACES:
        words = f"{label(place)}: " + ", ".join(map(signed, _group_gains(measured, place)))
        for group in range(4):
            case = above(*measured.group(place, group), "")
            yield case and Case(case.grade, words)


def _sparse_users(measured: Measured) -> Cases:
    for place in PLACES:
        gains = _group_gains(measured, place)
        if len(gains) == 4:
            *others, sparse = gains
            grade = YES if sparse > max(others) else PARTLY if sparse > mean(others) else NO
            span = f"{signed(min(others))} to {signed(max(others))}"
            yield Case(grade, f"{label(place)}: G-4 {signed(sparse)}, the others {span}")


def _in_schemes(row: str, other: str, words: str) -> Decide:
    """Whether one row is above another in every scheme and place."""

    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            for scheme in SCHEMES:
                ours, theirs = measured.test(scheme, place, row), measured.test(scheme, place, other)
                yield above(ours, theirs, f"{label(place)}, {SCHEMES[scheme]} {words}")

    return decide


def _below_concf(scheme: str, rows: Iterable[str]) -> Decide:
    def decide(measured: Measured) -> Cases:
        for place in PLACES:
            for row in rows:
                ours, concf = measured.test(scheme, place, row), measured.test("ConCF", place, row)
                yield below(ours, concf, f"{label(place)} {name_of(row)} {{}} against {{}}")

    return decide


def _r_sometimes(measured: Measured) -> Cases:
    cases = [case for case in _in_schemes(BEST, R_CONSENSUS, "best {} against R-con {}")(measured) if case]
    lower = [case.words for case in cases if case.grade > NO]
    if cases:
        words = f"in {len(lower)} of {len(cases)} cases" + (f", e.g. {lower[0]}" if lower else "")
        yield Case(YES if lower else NO, words)


def _lowest_chr(measured: Measured) -> Cases:
    for place in PLACES:
        concf = measured.field("ConCF", place, "chr", "bpr")
        for scheme in ("SingleCF", "without CL"):
            other = measured.field(scheme, place, "chr", "bpr")
            yield below(concf, other, f"{label(place)} {{}} against {SCHEMES[scheme]} {{}}", hundredths)


def _high_per(measured: Measured) -> Cases:
    for place in PLACES:
        pairs = [(x, y) for x in HEADS for y in HEADS if x != y]
        found = [one.mean for x, y in pairs if (one := estimate(measured.field("SingleCF", place, "per", x, y)))]
        if found:
            grade = YES if min(found) >= CONSIDERABLE else PARTLY if mean(found) >= CONSIDERABLE else NO
            words = f"{label(place)}: {min(found):.2f} to {max(found):.2f}, {mean(found):.2f} on average"
            yield Case(grade, words)


def _e_misses(measured: Measured) -> Cases:
    e, a = (measured.test("SingleCF", CITEULIKE, head) for head in ("multinomial", "bpr"))
    yield above(e, a, "CF-E {} against CF-A {}")
    missed = estimate(measured.field("SingleCF", CITEULIKE, "per", "bpr", "multinomial"))
    if missed:
        words = f"PER(A;E) {missed.mean:.2f} (paper {published.PER_A_E})"
        yield Case(YES if missed.mean >= CONSIDERABLE else NO, words)


def _objective_most(measured: Measured) -> Cases:
    for place in PLACES:
        objective = measured.field("SingleCF", place, "chr", FACTORS["SingleCF"])
        for factor in ("initial conditions", "model sizes"):
            other = measured.field(factor, place, "chr", FACTORS[factor])
            yield above(objective, other, f"{label(place)}: {{}} against {{}} by {factor}", hundredths)


def _most_users(measured: Measured) -> Cases:
    for head, name in HEADS.items():
        runs = measured.runs("SingleCF", CITEULIKE).values()
        known = [levels for line in runs if (levels := line.get("user_chr", {}).get(head))]
        if known:
            share = mean(mean(level > published.USER_CHR for level in levels) for levels in known)
            yield Case(YES if share > 0.5 else NO, f"{name} {100 * share:.0f} % of the users")


def _steadier(measured: Measured) -> Cases:
    for which, heads in (("one", "CF-A"), ("all", "all")):
        path = ("consistency", CITEULIKE, "consistency", which)
        both = [(measured.field(*path, "correct", k), measured.field(*path, "incorrect", k)) for k in range(10)]
        cases = [case for correct, incorrect in both if (case := above(correct, incorrect, ""))]
        words = f"{heads}: {sum(case.grade == YES for case in cases)} of {len(cases)} bins on every split"
        yield from (Case(case.grade, words) for case in cases)


def _steadier_at_the_top(measured: Measured) -> Cases:
    for which, heads in (("one", "CF-A"), ("all", "all")):
        for kind in ("correct", "incorrect"):
            path = ("consistency", CITEULIKE, "consistency", which, kind)
            found = [one.mean for k in range(10) if (one := estimate(measured.field(*path, k)))]
            if len(found) > 1:
                falls = sum(x > y for x, y in pairwise(found))
                grade = YES if falls == len(found) - 1 else PARTLY if found[0] > found[-1] else NO
                yield Case(grade, f"{heads} {kind} {found[0]:.2f} in the first bin, {found[-1]:.2f} in the last")


def _over_training(measured: Measured) -> Cases:
    for which, heads in (("all", "all heads"), ("one", "CF-A alone")):
        rises = [rise for each in measured.rises(which).values() for rise in each]
        if rises:
            higher = mean(rise > 0 for rise in rises)
            grade = YES if higher >= 0.9 else PARTLY if mean(rises) > 0 else NO
            yield Case(grade, f"{heads}: above at {100 * higher:.0f} % of the epochs, by up to {percent(max(rises))}")


def _all_rise_more(measured: Measured) -> Cases:
    every, one = ({seed: mean(each) for seed, each in measured.rises(which).items()} for which in ("all", "one"))
    yield above(every, one, "{} on average over the epochs, CF-A alone {}", percent)


def _beats(*pairs: tuple[tuple[str, str], tuple[str, str]]) -> Decide:
    """Whether each first (variant, row) is above its second in R@50 on CiteULike."""

    def decide(measured: Measured) -> Cases:
        for ours, theirs in pairs:
            names = [" ".join((SCHEMES.get(variant, variant), name_of(row))) for variant, row in (ours, theirs)]
            a, b = (measured.test(variant, CITEULIKE, row) for variant, row in (ours, theirs))
            yield above(a, b, f"{names[0]} {{}} against {names[1]} {{}}")

    return decide


def _no_better_than_its_teacher(measured: Measured) -> Cases:
    for teacher, pupil in (("T1", "SingleCF"), *(("T2", pupil) for pupil in PUPILS)):
        a, b = (measured.test("distillation", CITEULIKE, row) for row in (f"{teacher} > {pupil}", teacher))
        case = tested(a, b, f"{pupil} over {teacher}")
        yield case and Case(NO if case.grade == YES else YES, case.words)


def _stable(measured: Measured, variants: Sequence[str]) -> Cases:
    for row in (BEST, CONSENSUS):
        found = {name: one.mean for name in variants if (one := estimate(measured.test(name, CITEULIKE, row)))}
        if len(found) > 1:
            apart = max(found.values()) / min(found.values()) - 1
            yield Case(YES if apart <= STABLE else NO, f"{row} within {percent(apart)} of one another")


def _short_window(measured: Measured) -> Cases:
    yield from _stable(measured, ("ConCF", "Q=5,p=20", "Q=10,p=10", "Q=10,p=20"))
    yield from _beats(*(((name, CONSENSUS), ("Q=5,p=1", CONSENSUS)) for name in ("ConCF", "Q=10,p=10")))(measured)


def _embeddings(measured: Measured) -> Cases:
    models = {"initial conditions": "a model of CF-A", "ConCF": "ConCF, CF-E's tables among the others"}
    for variant, words in models.items():
        share = gain(*(measured.field(variant, CITEULIKE, "parameters", kind) for kind in ("embeddings", "all")))
        if share:
            grade = YES if share.mean + 1 > published.EMBEDDINGS else NO
            yield Case(grade, f"{percent(share.mean + 1)} of the parameters of {words}")


def _about_single(measured: Measured) -> Cases:
    for row, low, high in ((BEST, -NEAR, 0.0), (CONSENSUS, 0.0, NEAR)):
        found = gain(measured.test("AutoML", CITEULIKE, row), measured.test("SingleCF", CITEULIKE, BEST))
        if found:
            grade = YES if low <= found.mean <= high else NO
            yield Case(grade, f"AutoML {name_of(row)} {signed(found.mean)} against the best SingleCF")


def _every(ours: str, others: Iterable[str], rows: Iterable[str] = (BEST, CONSENSUS)) -> Decide:
    return _beats(*(((ours, row), (other, row)) for other in others for row in rows))


S4 = "Section 4.1"
FIG5A, FIG5B, FIG4, TRAINING = f"{S4}, Fig. 5a", f"{S4}, Fig. 5b", "Section 3.2.3, Fig. 4", "Appendix A.2"
HOMOGENEOUS, KD, SELECTION = f"{S4}, homogeneous objectives", f"{S4}, two-stage KD", "Appendix A.3"
PUPILS = ("SingleCF", "ConCF best head", "ConCF consensus")
CLAIMS = tuple(Claim(*each) for each in (
    ("statistics", "stats", "Appendix A.1", "The public data, filtered, has the statistics printed.", _statistics),
    ("every-head", "main", f"{S4}, main table", "Every head of ConCF beats the best SingleCF (R@50).", _every_head),
    ("gain-best", "main", "Main table", "Gain.Best is significant for every metric and data set.", _gain("Gain.Best")),
    ("gain-consensus", "main", "Main table", "Gain.Con. is significant for every metric and data set.",
     _gain("Gain.Con.")),
    ("all-groups", "groups", FIG5A, "Users gain, however active they are.", _all_groups),
    ("sparse-users", "groups", FIG5A, "The users with the fewest interactions gain the most.", _sparse_users),
    ("single-ensemble", "schemes", FIG5B, "The consensus of SingleCF models is below that of ConCF.",
     _below_concf("SingleCF", (CONSENSUS,))),
    ("without-cl", "schemes", FIG5B, "Without consensus learning, heads and consensus stay below ConCF's.",
     _below_concf("without CL", (BEST, CONSENSUS))),
    ("rc-over-r", "schemes", FIG5B, "The RC-consensus beats the R-consensus in every scheme.",
     _in_schemes(CONSENSUS, R_CONSENSUS, "{} against {}")),
    ("rc-over-best", "schemes", FIG5B, "The RC-consensus always beats the best head or model.",
     _in_schemes(CONSENSUS, BEST, "{} against {}")),
    ("r-below-best", "schemes", FIG5B, "The R-consensus is sometimes below the best head or model.", _r_sometimes),
    ("chr-lowest", "schemes", f"{S4}, CHR by scheme", "ConCF has the lowest CHR of the three schemes.", _lowest_chr),
    ("per-high", "per", "Section 2.3, Fig. 2a",
     f"Any two objectives hit different items: PER is considerable (here: {CONSIDERABLE} or more).", _high_per),
    ("per-a-e", "per", "Section 2.3",
     "On CiteULike CF-E is better than CF-A and still misses a good part of what CF-A hits.", _e_misses),
    ("chr-objective", "chr", "Section 2.3, CHR", "The objective makes models differ more than start or size do.",
     _objective_most),
    ("chr-users", "chr", "Section 2.3, Fig. 2b", f"On CiteULike most users have a CHR above {published.USER_CHR}.",
     _most_users),
    ("steadier", "consistency", FIG4, "Correct predictions are steadier than incorrect ones in every bin of ranks.",
     _steadier),
    ("steadier-top", "consistency", FIG4, "The higher the rank, the steadier.", _steadier_at_the_top),
    ("rc-over-training", "consistency", FIG4,
     "Throughout training the RC-consensus is above the R-consensus (by up to 16 % for all heads).", _over_training),
    ("rc-all-heads", "consistency", FIG4, "Steadiness helps a consensus of all heads more than one head alone.",
     _all_rise_more),
    ("het-over-homogeneous", "homogeneous", HOMOGENEOUS, "Five objectives beat one objective five times.",
     _every("ConCF", ("homogeneous",))),
    ("homogeneous-over-single", "homogeneous", HOMOGENEOUS, "One objective five times still beats SingleCF.",
     _beats(*((("homogeneous", row), ("SingleCF", "multinomial")) for row in (BEST, CONSENSUS)))),
    ("homogeneous-over-pcl", "homogeneous", HOMOGENEOUS, "Rankings teach better than the softmax of PCL.",
     _every("homogeneous", ("PCL",))),
    ("kd-teacher", "distillation", KD, "A pupil of two-stage distillation does not exceed its teacher significantly.",
     _no_better_than_its_teacher),
    ("kd-concf", "distillation", KD, "ConCF beats every pupil of two-stage distillation.",
     _beats(*((("ConCF", CONSENSUS if pupil.endswith(CONSENSUS) else BEST), ("distillation", f"{teacher} > {pupil}"))
              for teacher in ("T1", "T2") for pupil in PUPILS))),
    ("balancing", "hyperparameters", TRAINING, "Balancing the heads helps.", _every("ConCF", ("without balancing",))),
    ("per-batch", "hyperparameters", TRAINING, "Weights moved at every batch do better than at every epoch.",
     _every("ConCF", ("weights per epoch",))),
    ("alpha", "hyperparameters", TRAINING, f"From alpha = 0.01 on results are stable (within {100 * STABLE:.0f} %).",
     lambda measured: _stable(measured, ("alpha=0.01", "alpha=0.1", "alpha=1"))),
    ("window", "hyperparameters", TRAINING, "A long enough window of rankings is stable, a short one is worse.",
     _short_window),
    ("all-rankings", "hyperparameters", TRAINING, "Looking back over all epochs is worse than over the last rankings.",
     _beats(*(((WINDOWS.get(f"Q={q},p={p}", f"Q={q},p={p}"), CONSENSUS), (f"Q=all,p={p}", CONSENSUS))
              for p in (1, 10, 20) for q in (5, 10)))),
    ("concf-s", "selection", SELECTION, "ConCF-S lies between SingleCF and ConCF.",
     _beats((("ConCF-S", BEST), ("SingleCF", BEST)), (("ConCF", BEST), ("ConCF-S", BEST)),
            (("ConCF", CONSENSUS), ("ConCF-S", CONSENSUS)))),
    ("automl", "selection", SELECTION,
     f"AutoML is about SingleCF: its best head a little below, its ensemble a little above (by {NEAR:.0%} at most).",
     _about_single),
    ("sharing", "sharing", "Appendix A.4", "Sharing the embeddings alone is best.",
     _every("ConCF", ("sharing=full", "sharing=layer", "sharing=none"))),
    ("embeddings", "sharing", "Appendix A.4", "On CiteULike the embeddings are more than 99 % of a model's parameters.",
     _embeddings),
))  # fmt: skip
"""All of them, in the order of the document."""
