"""Paired tests, Holm's correction and bootstrap intervals: scipy and plain loops are the oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from concf.errors import ConfigError
from concf.evaluation.significance import TESTS, bootstrap_interval, holm, paired_t, wilcoxon

P_VALUES = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0])), max_size=12)


def two_rows(n, seed, shift=0.0, digits=None):
    """Paired figures of n users; few digits give zero differences and ties."""
    rng = np.random.default_rng(seed)
    ours, theirs = rng.random(n) + shift, rng.random(n)
    return (ours, theirs) if digits is None else (ours.round(digits), theirs.round(digits))


def literal_holm(p_values):
    """Step down from the smallest: the k-th of m, times what is left, never below the one before it."""
    corrected, worst = [0.0] * len(p_values), 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        worst = max(worst, min(1.0, p_values[place] * (len(p_values) - step)))
        corrected[place] = worst
    return corrected


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("n", [2, 5, 40, 300])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_paired_t_is_scipys(n, shift, digits):
    ours, theirs = two_rows(n, n, shift, digits)
    assert paired_t(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


def test_paired_t_is_the_integral_of_students_density():
    ours, theirs = two_rows(12, 0)
    difference = ours - theirs
    t = difference.mean() / (difference.std(ddof=1) / 12**0.5)
    assert paired_t(ours, theirs) == pytest.approx(2 * stats.t.sf(abs(t), 11))


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("n", [2, 5, 40, 300])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_wilcoxon_is_scipys(n, shift, digits):
    ours, theirs = two_rows(n, n, shift, digits)
    assert wilcoxon(ours, theirs) == pytest.approx(stats.wilcoxon(ours, theirs).pvalue, rel=1e-9)


def test_wilcoxon_leaves_zero_differences_out():
    ours, theirs = two_rows(60, 2, 0.05)
    assert wilcoxon(np.r_[ours, np.ones(9)], np.r_[theirs, np.ones(9)]) == wilcoxon(ours, theirs)


@pytest.mark.parametrize("test", TESTS.values())
def test_a_test_does_not_ask_who_comes_first_nor_in_which_order_the_users_come(test):
    ours, theirs = two_rows(30, 1, 0.1)
    order = np.random.default_rng(0).permutation(30)
    assert test(ours, theirs) == pytest.approx(test(theirs, ours))
    assert test(ours, theirs) == pytest.approx(test(ours[order], theirs[order]))


@pytest.mark.parametrize("test", TESTS.values())
def test_rows_that_never_differ_give_one(test):
    row = np.random.default_rng(0).random(9)
    assert test(row, row.copy()) == 1.0
    assert test(np.zeros(5), -np.zeros(5)) == 1.0


def test_rows_that_differ_by_a_constant_give_zero_in_the_t_test():
    row = np.arange(8.0)
    assert paired_t(row + 0.5, row) == 0.0
    assert paired_t(row, row + 2) == 0.0


def test_rows_that_differ_by_a_constant_up_to_rounding_give_zero_in_the_t_test_without_a_warning():
    row = np.random.default_rng(0).random(20)
    assert paired_t(row + 0.1, row) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("test", TESTS.values())
@pytest.mark.parametrize(
    ("ours", "theirs"), [([0.1, 0.2], [0.1, 0.2, 0.3]), ([0.1], [0.2]), ([], []), ([[0.1, 0.2]], [[0.1, 0.3]]), (1, 2)]
)
def test_rows_that_cannot_be_paired_are_refused_with_their_shapes(test, ours, theirs):
    with pytest.raises(ConfigError, match=r"paired test.*found \("):
        test(np.array(ours), np.array(theirs))


@pytest.mark.parametrize(
    ("raw", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holm_gives_the_values_of_the_textbook(raw, corrected):
    assert holm(raw) == pytest.approx(corrected)


@settings(deadline=None)
@given(P_VALUES)
def test_holm_is_the_step_down_loop(p_values):
    assert holm(p_values) == pytest.approx(literal_holm(p_values), rel=1e-12)


@settings(deadline=None)
@given(P_VALUES)
def test_holm_lies_between_the_raw_p_value_and_bonferronis_and_keeps_the_order(p_values):
    corrected = holm(p_values)
    for p, after in zip(p_values, corrected, strict=True):
        assert p <= after <= min(1.0, len(p_values) * p)
    by_raw = sorted(zip(p_values, corrected, strict=True))
    assert [after for _, after in by_raw] == sorted(corrected)


@settings(deadline=None)
@given(P_VALUES, st.randoms(use_true_random=False))
def test_holm_does_not_depend_on_the_order_of_the_tests(p_values, random):
    order = list(range(len(p_values)))
    random.shuffle(order)
    corrected = holm(p_values)
    assert holm([p_values[place] for place in order]) == pytest.approx([corrected[place] for place in order])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 5))
def test_the_interval_lies_within_the_values_and_its_ends_are_in_order(values, seed):
    low, high = bootstrap_interval(np.array(values), draws=50, seed=seed)
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12


@pytest.mark.parametrize("n", [5, 60, 500])
def test_the_interval_contains_the_mean(n):
    values = np.random.default_rng(n).random(n)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high


def test_the_interval_is_a_function_of_the_seed():
    values = np.random.default_rng(0).random(80)
    assert bootstrap_interval(values, seed=4) == bootstrap_interval(values.copy(), seed=4)
    assert bootstrap_interval(values, seed=4) != bootstrap_interval(values, seed=5)


def test_the_interval_of_values_that_are_all_alike_is_that_value():
    assert bootstrap_interval(np.full(30, 0.25)) == (0.25, 0.25)
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)


def test_four_times_the_users_halve_the_interval_and_a_higher_level_widens_it():
    values = np.random.default_rng(1).random(100)
    width = np.ptp(bootstrap_interval(values))
    assert np.ptp(bootstrap_interval(np.tile(values, 4))) == pytest.approx(width / 2, rel=0.1)
    assert np.ptp(bootstrap_interval(values, level=0.99)) > width > np.ptp(bootstrap_interval(values, level=0.8))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_agrees_with_the_normal_one_where_there_are_many_users(level):
    values = np.random.default_rng(2).random(400)
    half = stats.norm.ppf((1 + level) / 2) * values.std() / 20
    interval = bootstrap_interval(values, level=level, draws=4000)
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_the_interval_does_not_depend_on_how_many_draws_are_held_at_a_time(monkeypatch):
    values = np.random.default_rng(3).random(64)
    whole = bootstrap_interval(values, draws=500)
    monkeypatch.setattr("concf.evaluation.significance.BLOCK", 64 * 7)
    assert bootstrap_interval(values, draws=500) == whole
