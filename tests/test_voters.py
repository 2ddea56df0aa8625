"""Voters: literal lists and features, and what weight each has."""

from __future__ import annotations

from itertools import pairwise
from math import e

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal_reranker import listed_features, ranking
from small_reranker import DONE, EVERYONE, ITEMS, LAST_ITEM, NEW, TOP_K, USERS, Table, case, listed, used

from concf.consensus import features, voters
from concf.consensus.voters import by_factors, by_scores, voter_weights

pytestmark = pytest.mark.usefixtures("on_one_thread")


def test_nobody_is_listed_for_where_the_only_user_is_not_asked_about() -> None:
    """As in a process whose one user is not validated."""
    lists, scores = voters.first_items(Table(case().table), case().train[:1], torch.empty(0, dtype=torch.int64), TOP_K)
    assert lists.shape == scores.shape == (0, TOP_K)


@pytest.mark.parametrize("cells", [3 * ITEMS, 1 << 22], ids=["in threes", "at once"])
def test_a_voter_without_vectors_has_the_literal_lists_and_features(monkeypatch, cells: int) -> None:
    monkeypatch.setattr(voters, "CPU_CELLS", cells)
    users, table = (8, 2, LAST_ITEM, 0, DONE, 30, 11, NEW), case().table
    found = by_scores("table", Table(table), case().train, torch.tensor(users), TOP_K)
    assert (found.name, found.factors, found.lists.dtype) == ("table", None, torch.int32)
    assert listed(found.lists) == [ranking(table[u].tolist(), used()[u].tolist(), TOP_K) for u in users]
    for row, (u, items) in enumerate(zip(users, listed(found.lists), strict=True)):
        for place in range(TOP_K):
            expected = listed_features(table, used(), users, u, items[place]) if place < len(items) else [0, 0, 0]
            assert found.listed[row, place].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_voter_without_vectors_has_no_unit_and_may_know_nothing() -> None:
    everyone = torch.arange(USERS)
    one, thousand, shifted = (
        by_scores("table", Table(table), case().train, everyone, TOP_K)
        for table in (case().table, 1000 * case().table, case().table + 5)
    )
    assert torch.allclose(one.listed, thousand.listed, rtol=0, atol=1e-9)
    assert torch.allclose(one.listed[..., :2], shifted.listed[..., :2], rtol=0, atol=1e-9)
    assert all(torch.equal(one.lists, each.lists) for each in (thousand, shifted))
    nothing = by_scores("table", Table(torch.zeros(USERS, ITEMS)), case().train, everyone, TOP_K)
    assert not nothing.listed.any()
    assert listed(nothing.lists) == [[i for i in range(ITEMS) if not used()[u, i]][:TOP_K] for u in EVERYONE]


def test_scores_are_cut_where_the_features_of_vectors_are() -> None:
    table = torch.zeros(USERS, ITEMS, dtype=torch.float64)
    table[NEW, 3] = 1e6  # one user stands out, and nobody has used the item
    found = by_scores("table", Table(table), case().train, torch.arange(USERS), TOP_K)
    assert found.lists[NEW, 0] == 3
    assert found.listed[NEW, 0, 1] == features.RELATIVE_SCORE[1]
    assert found.listed[..., 0].abs().max() <= features.Z_SCORE[1]


def test_a_voter_with_vectors_has_the_literal_lists() -> None:
    users = (8, 2, LAST_ITEM, 0, DONE, 30, NEW)
    for head in case().heads:
        found = by_factors("head", head, case().train, torch.tensor(users), TOP_K)
        scores = head.scores(torch.arange(USERS)).tolist()
        assert listed(found.lists) == [ranking(scores[u], used()[u].tolist(), TOP_K) for u in users]
        assert (found.factors, found.listed) == (head, None)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), st.floats(0.01, 2), st.floats(0.1, 100))
def test_a_voter_weight_decays_with_its_validation(found: list[float], temperature: float, times: float) -> None:
    weights = voter_weights(found, temperature)
    assert max(weights) == weights[found.index(max(found))] == 1
    order = sorted(range(len(found)), key=found.__getitem__)
    assert all(weights[lower] <= weights[higher] for lower, higher in pairwise(order))
    assert voter_weights([times * each for each in found], temperature) == pytest.approx(weights, rel=1e-6)


def test_a_temperature_below_the_best_a_voter_has_the_weight_1_over_e() -> None:
    assert voter_weights([0.25, 0.24, 0.0], 0.04) == pytest.approx([1, 1 / e, e**-25])
    assert voter_weights([0.0, 0.0], 0.04) == [1, 1]
