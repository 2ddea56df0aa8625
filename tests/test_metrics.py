"""Metrics of ranked lists: figures by trec_eval, and plain loops, are the oracles."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from concf.evaluation.metrics import ACCURACY, average_popularity, coverage, gini, hits, novelty, popularity_groups

ITEMS = 14
LITERAL = {  # relevant: place by place, whether a hit; n: held-out items; width: places
    "recall": lambda relevant, n, width: sum(relevant) / n,
    "precision": lambda relevant, n, width: sum(relevant) / width,
    "hit": lambda relevant, n, width: float(any(relevant)),
    "mrr": lambda relevant, n, width: max((1 / (k + 1) for k in range(width) if relevant[k]), default=0.0),
    "map": lambda relevant, n, width: sum(sum(relevant[: k + 1]) / (k + 1) for k in range(width) if relevant[k]) / n,
    "ndcg": lambda relevant, n, width: gain(relevant) / gain([True] * min(n, width)),
}


@st.composite
def users_with_lists(draw):
    """Lists [e, N] that may end early, the held-out items of each user (at least one, maybe more than N)."""
    width = draw(st.integers(1, ITEMS))
    lists, held_out = [], []
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.one_of(st.just(width), st.integers(0, width)))
        lists.append(draw(st.permutations(range(ITEMS)))[:length] + [-1] * (width - length))
        held_out.append(draw(st.sets(st.integers(0, ITEMS - 1), min_size=1)))
    return np.array(lists, np.int32), held_out


def some_lists(seed, users=9, width=6, items=ITEMS):
    """Random lists, each of its own length, one of them empty."""
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.permutation(items)[:width] for _ in range(users)]).astype(np.int32)
    lists[np.arange(width)[None, :] >= rng.integers(0, width + 1, (users, 1))] = -1
    lists[0] = -1
    return lists


def matrix(held_out, n_items=ITEMS):
    dense = np.zeros((len(held_out), n_items), np.float32)
    for row, items in enumerate(held_out):
        dense[row, list(items)] = 1
    return csr_array(dense)


def accuracy(name, lists, held_out):
    return ACCURACY[name](hits(lists, matrix(held_out)), np.array([float(len(items)) for items in held_out]))


def gain(relevant):
    return sum(1 / log2(place + 2) for place, hit in enumerate(relevant) if hit)


def literal(name, lists, held_out):
    """Each user's figure, from the textbook."""
    return [
        LITERAL[name]([item in items for item in row], len(items), len(row))
        for row, items in zip(lists.tolist(), held_out, strict=True)
    ]


@pytest.mark.parametrize("name", list(ACCURACY))
@given(drawn=users_with_lists())
@example(drawn=(np.array([[0, 1, 2]], np.int32), [set(range(9))]))
@example(drawn=(np.array([[5, -1, -1], [-1, -1, -1]], np.int32), [{5, 6}, {0}]))
def test_accuracy_agrees_with_the_literal_formula(name, drawn):
    lists, held_out = drawn
    np.testing.assert_allclose(accuracy(name, lists, held_out), literal(name, lists, held_out), atol=1e-12)


@pytest.mark.parametrize("name", list(ACCURACY))
def test_accuracy_agrees_with_trec_eval(name):
    """48 lists that `ir_measures` 0.4.3 re-ranked through trec_eval, which has no wheel for Linux on ARM64."""
    reranked = json.loads((Path(__file__).parent / "trec_eval.json").read_text(encoding="utf-8"))
    for case in reranked:
        row = case["list"] + [-1] * (case["width"] - len(case["list"]))
        figures = accuracy(name, np.array([row], np.int32), [set(case["held_out"])])
        assert figures == pytest.approx([case[name]], abs=1e-6), case


@pytest.mark.parametrize("seed", range(4))
def test_coverage_and_gini_are_the_share_of_items_and_half_the_relative_mean_difference_of_all_pairs(seed):
    lists = some_lists(seed)
    exposure = [sum(row.count(item) for row in lists.tolist()) for item in range(ITEMS)]
    spread = sum(abs(one - other) for one in exposure for other in exposure)
    assert coverage(lists, np.zeros(ITEMS)) == sum(each > 0 for each in exposure) / ITEMS
    assert gini(lists, np.zeros(ITEMS)) == pytest.approx(spread / (2 * ITEMS * sum(exposure)), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_novelty_and_average_popularity_are_means_over_the_items_that_are_listed(seed):
    lists, n_users = some_lists(seed), 40
    popularity = np.random.default_rng(seed).integers(0, n_users + 1, ITEMS).astype(np.float64)  # some are 0
    popularity[seed] = 0.0
    z_score, fame = [], []
    for row in lists.tolist():
        listed = [item for item in row if item >= 0]
        z_score.append(sum(-log2(max(popularity[i], 1) / n_users) for i in listed) / len(listed) if listed else 0.0)
        fame.append(sum(popularity[i] for i in listed) / len(listed) if listed else 0.0)
    np.testing.assert_allclose(novelty(lists, popularity, n_users), z_score, atol=1e-12)
    np.testing.assert_allclose(average_popularity(lists, popularity, n_users), fame, atol=1e-12)


def test_empty_lists_cover_nothing_and_spread_nothing():
    empty, popularity = np.full((3, 4), -1, np.int32), np.ones(ITEMS)
    assert coverage(empty, popularity) == 0.0
    assert gini(empty, popularity) == 0.0
    assert novelty(empty, popularity, 5).tolist() == [0.0] * 3
    assert average_popularity(empty, popularity, 5).tolist() == [0.0] * 3


def test_popularity_groups_have_about_equally_many_interactions():
    train = csr_array(np.random.default_rng(0).random((40, ITEMS)) < np.linspace(0.05, 0.9, ITEMS))
    popularity = train.toarray().sum(0)
    for groups in (1, 3):
        expected, before = {}, 0
        for item in sorted(range(ITEMS), key=lambda item: (-popularity[item], item)):
            expected[item] = min(before * groups // popularity.sum(), groups - 1)
            before += popularity[item]
        assert popularity_groups(train, groups).tolist() == [expected[item] for item in range(ITEMS)]
