"""The consensus against the paper's formulas on dense rank tables, and its laws."""

from __future__ import annotations

from math import exp
from statistics import pstdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concf.learning.consensus import NOTHING, STEPS, Ranking, consensus

Votes = list[list[list[int]]]  # [heads][times] one user's list of items


def literal(votes: Votes, places: int, kept: int, temperature: float, steadiness: float | None) -> list[int]:
    """One user's consensus by Eq. 10-12, item by item."""
    total: dict[int, float] = {}
    best: dict[int, int] = {}
    for head in votes:
        for rank, item in enumerate(head[-1][:places]):
            earned = exp(-rank / temperature)
            if steadiness is not None:
                ranks = [listed[:kept].index(item) if item in listed[:kept] else kept for listed in head]
                earned += exp(-pstdev(ranks) / steadiness)
            total[item] = total.get(item, 0.0) + earned
            best[item] = min(best.get(item, places), rank)
    steps = {item: round(value / len(votes) * STEPS) for item, value in total.items()}
    return sorted(total, key=lambda item: (-steps[item], best[item], item))


def fast(votes: list[Votes], length: int, places: int, kept: int, temperature: float, steadiness: float | None):
    """All users at once. votes: [users][heads][times] lists."""
    n_heads, n_times = len(votes[0]), len(votes[0][0])
    histories = [
        [Ranking.of(torch.tensor([user[head][time][:kept] for user in votes])) for time in range(n_times)]
        for head in range(n_heads)
    ]
    return consensus(histories, length, places=places, temperature=temperature, steadiness=steadiness)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[Votes], int, int]:
    n_users, n_heads, n_times, n_items = (draw(st.integers(1, high)) for high in (3, 4, 4, 9))
    votes = [
        [[draw(st.permutations(range(n_items))) for _ in range(n_times)] for _ in range(n_heads)]
        for _ in range(n_users)
    ]
    kept = draw(st.integers(1, n_items))
    return votes, draw(st.integers(1, kept)), kept


@given(rankings(), st.sampled_from([None, 1.0, 10.0, 100.0]), st.sampled_from([1.0, 10.0]))
def test_consensus_is_the_paper_s(drawn, steadiness: float | None, temperature: float) -> None:
    votes, places, kept = drawn
    length = len(votes[0]) * places
    found = fast(votes, length, places, kept, temperature, steadiness).tolist()
    for user, row in zip(votes, found, strict=True):
        expected = literal(user, places, kept, temperature, steadiness)
        assert row == expected + [NOTHING] * (length - len(expected))


@given(rankings(), st.randoms())
def test_relabelling_users_and_items_relabels_the_consensus(drawn, random) -> None:
    """Item labels decide exact ties alone, so they are relabelled in a way that keeps their order."""
    votes, places, kept = drawn
    labels = sorted(random.sample(range(100), len(votes[0][0][0])))
    renamed = [[[[labels[i] for i in listed] for listed in head] for head in user] for user in votes]
    order = random.sample(range(len(votes)), len(votes))
    found = fast(votes, places, places, kept, 10.0, 10.0)
    again = fast([renamed[user] for user in order], places, places, kept, 10.0, 10.0)
    expected = [[labels[i] if i != NOTHING else NOTHING for i in found[user].tolist()] for user in order]
    assert again.tolist() == expected


def test_one_head_that_never_changes_is_its_own_consensus() -> None:
    listed = [5, 2, 8, 0, 1]
    assert fast([[[listed, listed, listed]]], 5, 5, 5, 10.0, 10.0).tolist() == [listed]
    assert fast([[[listed]]], 5, 5, 5, 10.0, None).tolist() == [listed]


def test_a_steady_item_overtakes_a_higher_one_that_jumps() -> None:
    steady_second = [[[3, 7, 1, 9, 4], [9, 7, 3, 4, 1], [4, 7, 9, 1, 3]]]
    assert fast([steady_second], 1, 5, 5, 10.0, None).tolist() == [[4]]
    assert fast([steady_second], 1, 5, 5, 10.0, 1.0).tolist() == [[7]]


def test_the_order_of_heads_does_not_matter() -> None:
    torch.manual_seed(0)
    votes = [[[torch.randperm(30).tolist() for _ in range(5)] for _ in range(6)] for _ in range(20)]
    found = fast(votes, 30, 20, 25, 10.0, 100.0)
    again = fast([user[::-1] for user in votes], 30, 20, 25, 10.0, 100.0)
    assert found.tolist() == again.tolist()


def test_short_lists_and_empty_places_vote_for_nothing() -> None:
    votes = [[[[4, NOTHING, NOTHING]], [[2, 4, NOTHING]]]]
    assert fast(votes, 4, 3, 3, 10.0, None).tolist() == [[4, 2, NOTHING, NOTHING]]


@given(st.lists(st.permutations(range(12)), min_size=1, max_size=4), st.integers(1, 12))
def test_a_rank_is_found_where_it_stands(lists: list[list[int]], kept: int) -> None:
    ranking = Ranking.of(torch.tensor(lists)[:, :kept])
    asked = torch.arange(12).expand(len(lists), -1).contiguous()
    expected = [[row[:kept].index(item) if item in row[:kept] else kept for item in range(12)] for row in lists]
    assert ranking.rank(asked).tolist() == expected


def test_users_are_independent() -> None:
    torch.manual_seed(1)
    votes = [[[torch.randperm(40).tolist() for _ in range(3)] for _ in range(4)] for _ in range(9)]
    together = fast(votes, 15, 10, 20, 10.0, 10.0)
    alone = torch.cat([fast([user], 15, 10, 20, 10.0, 10.0) for user in votes])
    assert together.tolist() == alone.tolist()
    assert together.shape == (9, 15)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_monotone_scores_give_the_same_consensus(scale: float) -> None:
    torch.manual_seed(2)
    scores = torch.randn(3, 2, 6, 15, dtype=torch.float64)  # times, heads, users, items
    histories = [
        [
            [Ranking.of(transform(scores[time, head]).argsort(1, descending=True)) for time in range(3)]
            for head in range(2)
        ]
        for transform in (lambda s: s, lambda s: torch.tanh(s / 4) * scale + 7)
    ]
    first, second = (consensus(each, 10, places=12) for each in histories)
    assert first.tolist() == second.tolist()
