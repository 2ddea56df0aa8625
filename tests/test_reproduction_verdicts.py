"""How claims are decided: the measured lines, with figures moved until a verdict turns."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from reproduction import published
from reproduction.claims import CLAIMS
from reproduction.lines import CITEULIKE, Lines
from reproduction.published import CONSENSUS, HEADS, METRICS, R_CONSENSUS
from reproduction.verdicts import (
    AGAINST,
    HOLDS,
    IN_PART,
    NO,
    NOT_SHOWN,
    OPEN,
    UNKNOWN,
    YES,
    Case,
    Claim,
    Grade,
    corrected,
    least_shown,
    settled,
    together,
)

Line = dict[str, Any]
TEXT = Path(published.__file__).with_name("results.jsonl").read_text(encoding="utf-8")
LINES: list[Line] = [json.loads(text) for text in TEXT.splitlines()]


def line(variant: str, recalls: dict[str, float], seed: int = 0, gains: tuple[float, ...] = (1, 1, 1, 1)) -> Line:
    """CiteULike, R@50 of each row; the other metrics are shares of it, the four groups' multiples of it."""
    rows = {}
    for row, value in recalls.items():
        test = dict(zip(METRICS, (0.6 * value, 0.35 * value, value, 0.45 * value), strict=True))
        groups = [{"users": 500, "activity": 9.0} | {m: v * gain for m, v in test.items()} for gain in gains]
        rows[row] = {"validation": value, "epoch": 50, "test": test, "groups": groups}
    cell = dict(zip(("data", "protocol"), CITEULIKE, strict=True)) | {"seed": seed, "preset": "reference"}
    heads = [row for row in recalls if row not in (CONSENSUS, R_CONSENSUS)]
    best = max(heads, key=lambda head: recalls[head])
    return {"cell": {"variant": variant} | cell, "changes": [], "rows": rows, "best_head": best}


def verdict(name: str, lines: list[Line]) -> str:
    return next(claim.verdict(Lines(lines)).word for claim in CLAIMS if claim.id == name)


@pytest.mark.parametrize(("claim", "variant", "row", "better", "worse"), [
    ("every-head", "SingleCF", None, AGAINST, HOLDS), ("gain-consensus", "ConCF", CONSENSUS, HOLDS, AGAINST),
    ("single-ensemble", "SingleCF", CONSENSUS, AGAINST, HOLDS), ("rc-over-r", "ConCF", R_CONSENSUS, AGAINST, HOLDS),
    ("het-over-homogeneous", "homogeneous", None, AGAINST, HOLDS),
    ("homogeneous-over-pcl", "PCL", None, AGAINST, HOLDS),
    ("without-cl", "without CL", None, AGAINST, HOLDS), ("kd-concf", "ConCF", None, HOLDS, AGAINST),
    ("balancing", "without balancing", None, AGAINST, HOLDS), ("per-batch", "weights per epoch", None, AGAINST, HOLDS),
    ("sharing", "sharing=none", None, AGAINST, HOLDS),
])  # fmt: skip
def test_verdicts_turn_with_the_figures(claim: str, variant: str, row: str | None, better: str, worse: str):
    for add, word in ((0.2, better), (-0.2, worse)):

        def moved(name: str, old: dict[str, Any], add: float = add) -> dict[str, Any]:
            return old | {"test": {m: v + add for m, v in old["test"].items()}} if row in (None, name) else old

        lines = [
            each | {"rows": {name: moved(name, old) for name, old in each["rows"].items()}}
            if each["cell"]["variant"] == variant else each
            for each in LINES
        ]  # fmt: skip
        assert verdict(claim, lines) == word


@pytest.mark.parametrize(("claim", "variant", "fields", "word"), [
    ("chr-objective", "model sizes", {"chr": {"bpr d=64": 0.9}}, AGAINST),
    ("chr-lowest", "ConCF", {"chr": {"bpr": 0.9}}, AGAINST),
    ("chr-users", "SingleCF", {"user_chr": {head: [k / 100 for k in range(101)] for head in HEADS}}, HOLDS),
    ("per-high", "SingleCF", {"per": {x: dict.fromkeys(HEADS, 0.35) for x in HEADS}}, HOLDS),
    ("per-a-e", "SingleCF", {"per": {x: dict.fromkeys(HEADS, 0.1) for x in HEADS}}, AGAINST),
    ("embeddings", "ConCF", {"parameters": {"all": 1000, "embeddings": 995}}, HOLDS),
    ("statistics", "statistics", {"statistics": {"users": 1, "items": 2, "events": 3}}, AGAINST),
    ("consistency-correct", "consistency", {"consistency": {"all": {"correct": [0.1], "incorrect": [0.2]}}}, AGAINST),
    ("rc-over-training", "consistency", {"curves": {"epoch": [20], "all": {"R": [0.2], "RC": [0.1]}}}, AGAINST),
])  # fmt: skip
def test_verdicts_turn_with_other_fields(claim: str, variant: str, fields: dict[str, Any], word: str):
    assert verdict(claim, LINES) != word
    lines = [each | fields if each["cell"]["variant"] == variant else each for each in LINES]
    assert verdict(claim, lines) == word


def test_sparse_users_must_gain_the_most():
    def flat(splits: int) -> list[Line]:
        ours = {"bpr": 0.3, CONSENSUS: 0.4}
        return [
            each for seed in range(splits)
            for each in (line("SingleCF", {"bpr": 0.2}, seed=seed),
                         line("ConCF", ours, seed=seed, gains=(2.0, 1.0, 1.0, 1.0)))
        ]  # fmt: skip

    for claim, three in (("sparse-users", AGAINST), ("all-groups", HOLDS), ("sharing", UNKNOWN)):
        assert verdict(claim, flat(3)) == three
    assert verdict("sparse-users", flat(1)) == UNKNOWN  # a gain, but one split is no test


@pytest.mark.parametrize(("moves", "p", "unless", "grade"), [
    ((0.02, 0.03, 0.01), 0.04, False, YES),
    ((0.02, 0.03, -0.01), 0.04, False, YES),  # significant, though not on every split
    ((0.02, 0.03, 0.01), 0.05, False, OPEN),  # on every split, not significant
    ((0.05,), None, False, OPEN),  # one split is no test
    ((-0.02, -0.03, -0.01), 0.04, False, NO),
    ((0.0, 0.0), 1.0, False, OPEN),
    ((-0.02, -0.03), 0.04, True, NO),  # what must not be lower is
    ((-0.02, -0.03), 0.06, True, YES),
])  # fmt: skip
def test_a_case_is_decided_by_its_test(moves: tuple[float, ...], p: float | None, unless: bool, grade: Grade):
    assert Case("", None, moves, p, unless).grade(p) is grade


@pytest.mark.parametrize(("grades", "word"), [
    ([], UNKNOWN),
    ([YES, YES], HOLDS),
    ([YES, OPEN], NOT_SHOWN),  # half is no majority
    ([YES, YES, OPEN], IN_PART),
    ([YES, YES, NO], AGAINST),  # one is against it
])  # fmt: skip
def test_several_cases_make_one_word(grades: list[Grade], word: str):
    assert together(grades) == word


def test_an_open_case_gives_the_least_difference_that_its_splits_could_have_shown():
    """A true difference of that size is found about four times in five."""
    random = np.random.default_rng(0)
    moves = tuple(random.normal(0.001, 0.01, 6))
    least = least_shown(moves)
    assert least == pytest.approx((2.570582 + 0.919544) * stdev(moves) / 6**0.5, rel=1e-6)
    drawn = random.normal(least, stdev(moves), (4000, 6))
    found = np.mean(ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert 0.75 < found < 0.85
    case = Case("a", None, moves, 0.9)
    assert f"could have shown {least:.4f}" in case.shown(0.9)
    assert "could" not in case.shown(0.01)


def test_the_tests_of_a_claim_are_corrected_together():
    """By Holm: the smallest p times their number, the next times one less; what is settled does not count."""
    up, down = (0.1, 0.1, 0.1), (-0.1, -0.1, -0.1)
    cases = [Case("a", None, up, 0.03), settled("b", True), Case("c", None, up, 0.01), Case("d", None, up, None),
             Case("e", None, down, 0.02)]  # fmt: skip
    found = corrected(cases)
    assert found == [pytest.approx(0.04), None, pytest.approx(0.03), None, pytest.approx(0.04)]
    verdict = Claim("x", "main", "", "", lambda lines: cases).verdict(Lines([]))
    assert verdict.word == AGAINST  # e is significantly against it
    assert "3 of 5 cases; against it: e (p 0.04); open: d (one split)" in verdict.figures
    alone = Claim("x", "main", "", "", lambda lines: [Case("a", None, up, 0.03)] * 2).verdict(Lines([]))
    assert alone.word == NOT_SHOWN  # twice 0.03 is not below 0.05
    assert "p 0.06" in alone.figures
