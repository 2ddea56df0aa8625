"""How claims are decided: every rule of the page has lines that turn it."""

from __future__ import annotations

from typing import Any

import pytest
from reproduction.claims import CLAIMS
from reproduction.lines import CITEULIKE, DATASETS, Lines
from reproduction.verdicts import (
    FAILS,
    HOLDS,
    IN_PART,
    NO,
    PARTLY,
    UNKNOWN,
    YES,
    Grade,
    Verdict,
    compare,
    graded,
    together,
)
from reproduction_lines import LINES, NOISE, Line, changed, line

from concf.experiments.paper import published
from concf.experiments.paper.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS


def verdict_of(claim: str, lines: list[Line]) -> Verdict:
    return next(each for each in CLAIMS if each.id == claim).verdict(Lines(lines))


def verdicts(lines: list[Line]) -> dict[str, str]:
    return {claim.id: claim.verdict(Lines(lines)).word for claim in CLAIMS}


def test_the_papers_own_figures_make_its_claims_hold():
    all_verdicts = verdicts(LINES)
    # the student heads T1 > SingleCF and T2 > ConCF consensus are above their teachers there, too
    assert {name: word for name, word in all_verdicts.items() if word != HOLDS} == {"kd-teacher": IN_PART}


@pytest.mark.parametrize(
    ("claim", "variant", "add", "row", "word"),
    [
        ("every-head", "ConCF", -0.2, None, FAILS),
        ("every-head", "ConCF", -0.2, "cml", IN_PART),
        ("gain-consensus", "ConCF", -0.3, CONSENSUS, FAILS),
        ("gain-best", "SingleCF", 0.3, None, FAILS),
        ("without-cl", "without CL", 0.2, None, FAILS),
        ("single-ensemble", "SingleCF", 0.2, CONSENSUS, FAILS),
        ("rc-over-r", "ConCF", 0.1, R_CONSENSUS, IN_PART),
        ("het-over-homogeneous", "homogeneous", 0.1, None, FAILS),
        ("homogeneous-over-pcl", "PCL", 0.1, None, FAILS),
        ("heads-without-cl", "without CL", 0.1, "bpr", IN_PART),
        ("heads-without-cl", "without CL", 0.1, None, FAILS),
        ("r-below-best", "ConCF", 0.1, R_CONSENSUS, HOLDS),  # elsewhere it is still below
        ("window", "Q=5,p=1", 0.1, "bpr", IN_PART),
        ("window", "Q=10,p=1", -0.03, None, IN_PART),
        ("kd-concf", "distillation", 0.2, "T2 > ConCF consensus", IN_PART),
        ("balancing", "without balancing", 0.1, None, FAILS),
        ("per-batch", "weights per epoch", 0.1, None, FAILS),
        ("alpha", "alpha=1", 0.1, None, FAILS),
        ("all-rankings", "Q=all,p=1", 0.1, None, IN_PART),
        ("concf-s", "ConCF-S", 0.1, None, IN_PART),
        ("automl", "AutoML", -0.1, CONSENSUS, IN_PART),
        ("sharing", "sharing=none", 0.1, None, IN_PART),
    ],
)
def test_verdicts_turn_with_the_figures(claim: str, variant: str, add: float, row: str | None, word: str):
    assert verdicts(changed(variant, add, row))[claim] == word


@pytest.mark.parametrize(
    ("claim", "variant", "fields", "word"),
    [
        ("chr-objective", "model sizes", {"chr": {"bpr d=64": 0.9}}, IN_PART),
        ("chr-size", "model sizes", {"chr": {"bpr d=64": 0.36}}, IN_PART),
        ("chr-size", "model sizes", {"chr": {"bpr d=64": 0.52}}, FAILS),
        ("chr-lowest", "ConCF", {"chr": {"bpr": 0.9}}, FAILS),
        ("chr-users", "SingleCF", {"user_chr": dict.fromkeys(HEADS, [0.1] * 101)}, FAILS),
        ("per-high", "SingleCF", {"per": {x: dict.fromkeys(HEADS, 0.1) for x in HEADS}}, FAILS),
        ("embeddings", "ConCF", {"parameters": {"all": 100, "embeddings": 98}}, FAILS),
        ("statistics", "statistics", {"statistics": {"users": 1, "items": 2, "events": 3}}, FAILS),
        (
            "consistency-correct",
            "consistency",
            {"consistency": {"all": {"correct": [0.1] * 10, "incorrect": [0.2] * 10}}},
            FAILS,
        ),
        ("rc-over-training", "consistency", {"curves": {"epoch": [20], "all": {"R": [0.2], "RC": [0.1]}}}, FAILS),
    ],
)
def test_verdicts_turn_with_other_fields(claim: str, variant: str, fields: dict[str, Any], word: str):
    lines = [each | fields if each["cell"]["variant"] == variant else each for each in LINES]
    assert verdicts(lines)[claim] == word


def test_sparse_users_must_gain_the_most():
    flat = [line("SingleCF", {"bpr": 0.2}), line("ConCF", {"bpr": 0.3, CONSENSUS: 0.4}, gains=(2.0, 1.0, 1.0, 1.0))]
    all_verdicts = verdicts(flat)
    assert all_verdicts["sparse-users"] == FAILS
    assert all_verdicts["all-groups"] == IN_PART
    assert all_verdicts["gain-best"] == IN_PART  # a gain, but one split is no test
    assert all_verdicts["sharing"] == UNKNOWN


def test_only_on_average_is_in_part():
    ours = [line("ConCF", {"bpr": v, CONSENSUS: v}, seed=k) for k, v in enumerate((0.5, 0.1, 0.5))]
    theirs = [line("without balancing", {"bpr": 0.2, CONSENSUS: 0.2}, seed=k) for k in range(3)]
    assert verdicts([*ours, *theirs])["balancing"] == IN_PART


@pytest.mark.parametrize(
    ("moves", "p", "noise", "grade"),
    [
        ([0.02, 0.03, 0.01], 0.04, None, YES),  # significant
        ([0.02, 0.03, -0.01], 0.04, NOISE, YES),  # significant, though not on every split
        ([0.02, 0.03, 0.01], 0.07, NOISE, YES),  # on every split, above the noise
        ([0.002, 0.003, 0.001], 0.07, NOISE, PARTLY),  # on every split, within the noise
        ([0.02, 0.03, 0.01], 0.07, None, PARTLY),  # no noise is known
        ([0.05, 0.05, -0.01], 0.07, NOISE, PARTLY),  # not on every split
        ([0.05], None, NOISE, PARTLY),  # one split
        ([-0.02, -0.03, -0.01], 0.01, NOISE, NO),
        ([0.0, 0.0], 1.0, NOISE, NO),
    ],
)
def test_a_comparison_is_decided_by_the_t_test_or_by_every_split_and_the_noise(
    moves: list[float], p: float | None, noise: float | None, grade: Grade
):
    assert graded(moves, p, noise) is grade


@pytest.mark.parametrize(
    ("grades", "word"),
    [
        ([], UNKNOWN),
        ([YES, YES], HOLDS),
        ([YES, PARTLY], IN_PART),
        ([YES, NO], IN_PART),
        ([PARTLY, PARTLY], IN_PART),
        ([PARTLY, NO], FAILS),
        ([NO], FAILS),
    ],
)
def test_several_cases_make_one_word(grades: list[Grade], word: str):
    assert together(grades) == word


def test_a_comparison_is_mirrored_and_has_p():
    ours, theirs = {0: 0.30, 1: 0.32, 2: 0.31}, {0: 0.20, 1: 0.23, 2: 0.21}
    higher, lower = compare(ours, theirs, "{} against {}"), compare(theirs, ours, "{} against {}")
    assert higher is not None
    assert lower is not None
    assert (higher.grade, lower.grade) == (YES, NO)
    assert higher.words.startswith("0.3100 against 0.2133 (p 0.00")
    assert lower.words.startswith("0.2133 against 0.3100 (p 0.00")
    assert higher.p == lower.p
    assert compare(ours, {}) is None


def test_noise_is_the_mean_distance_of_equal_runs():
    lines = Lines(LINES)
    assert lines.noise(CONSENSUS) == pytest.approx(NOISE)
    assert lines.noise(BEST) == pytest.approx(NOISE)
    assert lines.noise(R_CONSENSUS) == lines.noise(CONSENSUS)
    assert lines.noise_of("chr", "bpr") == pytest.approx(0)
    assert Lines([]).noise(BEST) is None


def test_noise_decides_where_the_t_test_does_not():
    shifts = (0.001, 0.02, 0.003)  # on every split, without significance
    ours = [line("weights per epoch", {"bpr": 0.3, CONSENSUS: 0.3}, seed=k) for k in range(3)]
    ours += [line("ConCF", {"bpr": 0.3 + v, CONSENSUS: 0.3 + v}, seed=k) for k, v in enumerate(shifts)]
    for apart, word in ((0.004, HOLDS), (0.02, IN_PART)):
        twin = [line("paper: epochs", {"bpr": 0.3 + v + apart, CONSENSUS: 0.3 + v + apart}, seed=k)
                for k, v in enumerate(shifts)]  # fmt: skip
        assert verdicts([*ours, *twin])["per-batch"] == word
    assert verdicts(ours)["per-batch"] == IN_PART


def test_the_best_single_of_a_gain_is_that_of_the_metric():
    single, concf = (
        line("SingleCF", {"bpr": 0.3, "cml": 0.2}),
        line("ConCF", {"bpr": 0.33, "cml": 0.3, CONSENSUS: 0.36}),
    )
    single["rows"]["cml"]["test"]["ndcg@20"] = 0.25  # CF-B is the better one there
    single["rows"]["cml"]["validation"] = 0.9  # which says nothing here
    gains = {metric: Lines([single, concf]).gains(CITEULIKE, metric) for metric in METRICS}
    assert gains["recall@50"]["Gain.Best"] == ({0: 0.33}, {0: 0.3})
    assert gains["ndcg@20"]["Gain.Best"] == ({0: pytest.approx(0.35 * 0.3)}, {0: 0.25})
    assert gains["ndcg@20"]["Gain.Con."][1] == {0: 0.25}
    assert Lines([single]).test("SingleCF", CITEULIKE, BEST) == {0: 0.2}


def test_sparse_users_are_decided_by_split():
    def split(seed: int, *gains: float) -> list[Line]:
        return [line("SingleCF", {"bpr": 0.2}, seed=seed, gains=(1.0,) * 4),
                line("ConCF", {"bpr": 0.2, CONSENSUS: 0.4}, seed=seed, gains=gains)]  # fmt: skip

    often = [split(0, 1.1, 1.1, 1.1, 1.5), split(1, 1.1, 1.1, 1.1, 1.4), split(2, 1.2, 1.1, 1.1, 1.1)]
    verdict = verdict_of("sparse-users", [each for both in often for each in both])
    assert verdict.word == IN_PART
    assert "first on 2 of 3 splits, p 0." in verdict.figures
    always = [split(0, 1.1, 1.1, 1.1, 1.5), split(1, 1.1, 1.1, 1.1, 1.4), split(2, 1.2, 1.1, 1.1, 1.6)]
    assert verdict_of("sparse-users", [each for both in always for each in both]).word == HOLDS


def test_epochs_before_the_window_is_full_do_not_count():
    def run(early: float, late: float) -> list[Line]:
        curve = {"R": [0.1, 0.2, 0.2], "RC": [0.1 * early, 0.2 * late, 0.2 * late]}
        return [line("consistency", {}, seed=k, curves={"epoch": [15, 20, 25], "all": curve}) for k in range(3)]

    assert Lines(run(9.0, 1.1)).rises("all")[0] == pytest.approx([0.1, 0.1])
    assert verdicts(run(0.5, 1.1))["rc-over-training"] == HOLDS
    assert verdicts(run(9.0, 0.9))["rc-over-training"] == FAILS
    assert "above at 2 of 2 epochs, at 2 with p < 0.05" in verdict_of("rc-over-training", run(0.5, 1.1)).figures


def test_a_student_above_its_teacher_is_partly_or_surely_against_the_claim():
    def taught(*student: float) -> list[Line]:
        return [line("distillation", {"T1": 0.3, "T1 > SingleCF": v}, seed=k) for k, v in enumerate(student)]

    assert verdicts(taught(0.29, 0.28, 0.31))["kd-teacher"] == HOLDS
    assert verdicts(taught(0.29, 0.32, 0.31))["kd-teacher"] == IN_PART
    assert verdicts(taught(0.33, 0.332, 0.331))["kd-teacher"] == FAILS


def test_steps_are_counted():
    bins = {"correct": [0.9, 0.8, 0.7, 0.6, 0.5, 0.55, 0.4, 0.3, 0.2, 0.1], "incorrect": [0.05] * 10}
    verdict = verdict_of("consistency-top", [line("consistency", {}, consistency={"one": bins})])
    assert "CF-A correct falls in 8 of 9 steps, from 0.90 to 0.10" in verdict.figures
    assert verdict.word == FAILS  # partly, and not at all


def test_where_the_r_consensus_is_below_is_named():
    lines = []
    for dataset in DATASETS:
        rows = {"bpr": 0.3, R_CONSENSUS: 0.2 if dataset[0] == "foursquare" else 0.4, CONSENSUS: 0.4}
        lines += [line("ConCF", rows, dataset, seed) for seed in range(2)]
    verdict = verdict_of("r-below-best", lines)
    assert verdict.word == HOLDS
    assert verdict.figures.startswith(
        "in 1 of 4 cases: Foursquare (subset), released: ConCF best head 0.3000 against ConCF R-consensus 0.2000"
    )


def test_the_size_claim_tells_the_papers_share():
    assert f"(paper +{100 * published.CHR_OVER_SIZE:.1f} %" in verdict_of("chr-size", LINES).figures
