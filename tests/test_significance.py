"""Paired t-tests, Holm's correction and bootstrap intervals: scipy and plain loops are the oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from concf.errors import ConfigError
from concf.evaluation.significance import bootstrap_interval, holm, paired_t

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


@pytest.mark.parametrize(("n", "shift", "digits"), [(2, 0.0, None), (5, 0.1, None), (40, 0.0, 1), (300, 0.1, 1)])
def test_the_paired_test_is_scipys(n, shift, digits):
    ours, theirs = two_rows(n, n, shift, digits)
    assert paired_t(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


def test_equal_rows_give_one_and_a_constant_difference_zero():
    row = np.random.default_rng(0).random(20)
    assert paired_t(row, row.copy()) == paired_t(np.zeros(5), -np.zeros(5)) == 1.0
    assert paired_t(np.arange(8.0) + 0.5, np.arange(8.0)) == 0.0
    assert paired_t(row + 0.1, row) == pytest.approx(0.0, abs=1e-12)  # up to rounding


@pytest.mark.parametrize(("ours", "theirs"), [([0.1, 0.2], [0.1, 0.2, 0.3]), ([0.1], [0.2]), ([[0.1, 0.2]], [[1, 2]])])
def test_rows_that_cannot_be_paired_are_refused(ours, theirs):
    with pytest.raises(ConfigError, match="paired test"):
        paired_t(np.array(ours), np.array(theirs))


@settings(deadline=None)
@given(P_VALUES)
def test_holm_is_the_step_down_loop(p_values):
    assert holm(p_values) == pytest.approx(literal_holm(p_values), rel=1e-12)


def test_the_interval_of_values_that_are_all_alike_is_that_value():
    assert bootstrap_interval(np.full(30, 0.25)) == (0.25, 0.25)
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_agrees_with_the_normal_one_where_there_are_many_users(level):
    values = np.random.default_rng(2).random(400)
    half = stats.norm.ppf((1 + level) / 2) * values.std() / 20
    interval = bootstrap_interval(values, level=level, draws=4000)
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


def test_the_interval_depends_on_the_seed_and_not_on_how_many_draws_are_held_at_a_time(monkeypatch):
    values = np.random.default_rng(3).random(64)
    whole = bootstrap_interval(values, draws=500)
    assert bootstrap_interval(values, draws=500, seed=5) != whole
    monkeypatch.setattr("concf.evaluation.significance.BLOCK", 64 * 7)
    assert bootstrap_interval(values, draws=500) == whole
