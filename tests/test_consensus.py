"""The consensus against the paper's formulas, item by item, and its laws."""

from __future__ import annotations

from math import exp
from statistics import pstdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from concf.consensus import consensus as module
from concf.consensus.consensus import NOTHING, consensus, consistency, rank_importance, ranks_over_time
from concf.evaluation.ranking import rank

STEPS = 2**40
Votes = list[list[list[int]]]  # [heads][times] one user's list of items


def keys(
    votes: Votes, places: int, kept: int, temperature: float, consistency: float | None
) -> dict[int, tuple[int, int]]:
    """item -> (minus its importance by Eq. 10-12, its best rank): what a user's consensus is sorted by."""
    found: dict[int, tuple[int, int]] = {}
    for head in votes:
        for place, item in enumerate(head[-1][:places]):
            earned = round(exp(-place / temperature) * STEPS)
            if consistency is not None:
                ranks = [listed[:kept].index(item) if item in listed[:kept] else kept for listed in head]
                earned += round(exp(-pstdev(ranks) / consistency) * STEPS)
            total, best = found.get(item, (0, place))
            found[item] = (total - earned, min(best, place))
    return found


def literal(*asked) -> list[int]:
    found = keys(*asked)
    return sorted(found, key=lambda item: (*found[item], item))


def fast(
    votes: list[Votes], length: int, places: int, kept: int, temperature: float, consistency: float | None
) -> tuple[list[list[int]], list[list[int]]]:
    """Both consensuses of all users at once. votes: [users][heads][times] lists."""
    n_items = 1 + max(item for user in votes for head in user for listed in head for item in listed)
    lists = torch.tensor(votes, dtype=torch.int32)[..., :kept].permute(2, 1, 0, 3)  # [times, heads, users, M]
    found = consensus(
        lists[-1],
        list(lists),
        n_items,
        length,
        top_k=places,
        temperature=temperature,
        consistency_temperature=consistency,
    )
    return found[0].tolist(), found[1].tolist()


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[Votes], int, int]:
    n_users, n_heads, n_times, n_items = (draw(st.integers(1, high)) for high in (3, 4, 4, 9))
    votes = [
        [[draw(st.permutations(range(n_items))) for _ in range(n_times)] for _ in range(n_heads)]
        for _ in range(n_users)
    ]
    kept = draw(st.integers(1, n_items))
    return votes, draw(st.integers(1, kept)), kept


def padded(items: list[int], length: int) -> list[int]:
    return items[:length] + [NOTHING] * (length - len(items))


@given(rankings(), st.sampled_from([None, 1.0, 10.0, 100.0]), st.sampled_from([1.0, 10.0]), st.integers(1, 40))
def test_consensus_is_the_paper_s(drawn, consistency: float | None, temperature: float, length: int) -> None:
    votes, places, kept = drawn
    both, by_rank = fast(votes, length, places, kept, temperature, consistency)
    for user, found, alone in zip(votes, both, by_rank, strict=True):
        assert found == padded(literal(user, places, kept, temperature, consistency), length)
        assert alone == padded(literal(user, places, kept, temperature, None), length)


def test_with_all_places_it_is_equation_12_to_the_letter() -> None:
    """A dense table of importances, without a word of K and M."""
    torch.manual_seed(0)
    heads, users, items, times = 5, 7, 11, 4
    ranks = torch.rand(times, heads, users, items).argsort(3)  # [.., item] the rank of an item
    lists = ranks.argsort(3).to(torch.int32)
    both, by_rank = consensus(
        lists[-1], list(lists), items, items, top_k=items, temperature=10.0, consistency_temperature=10.0
    )
    r = torch.exp(-ranks[-1].double() / 10)
    c = torch.exp(-ranks.double().var(0, correction=0).sqrt() / 10)
    for found, importance in ((both, (r + c).mean(0)), (by_rank, r.mean(0))):
        assert found.tolist() == importance.argsort(dim=1, descending=True).tolist()


@settings(max_examples=40)
@given(rankings(), st.randoms())
def test_relabelling_users_and_items_relabels_the_consensus(drawn, random) -> None:
    """Only items that no rule but the last tells apart may change places."""
    votes, places, kept = drawn
    n_items = len(votes[0][0][0])
    labels = random.sample(range(n_items), n_items)
    renamed = [[[[labels[i] for i in listed] for listed in head] for head in user] for user in votes]
    order = random.sample(range(len(votes)), len(votes))
    found, _ = fast(votes, n_items, places, kept, 10.0, 10.0)
    again, _ = fast([renamed[user] for user in order], n_items, places, kept, 10.0, 10.0)
    for user, row in zip(order, again, strict=True):
        back = [labels.index(item) if item != NOTHING else NOTHING for item in row]
        known = keys(votes[user], places, kept, 10.0, 10.0)
        groups = [[known.get(item) for item in items] for items in (found[user], back)]
        assert groups[0] == groups[1]
        assert sorted(found[user]) == sorted(back)


@settings(max_examples=40)
@given(rankings(), st.randoms())
def test_relabelling_items_in_their_order_keeps_ties_too(drawn, random) -> None:
    votes, places, kept = drawn
    labels = sorted(random.sample(range(100), len(votes[0][0][0])))
    renamed = [[[[labels[i] for i in listed] for listed in head] for head in user] for user in votes]
    found, _ = fast(votes, places, places, kept, 10.0, 10.0)
    again, _ = fast(renamed, places, places, kept, 10.0, 10.0)
    assert again == [[labels[i] if i != NOTHING else NOTHING for i in row] for row in found]


@settings(max_examples=40)
@given(rankings(), st.randoms())
def test_the_order_of_heads_does_not_matter(drawn, random) -> None:
    votes, places, kept = drawn
    order = random.sample(range(len(votes[0])), len(votes[0]))
    again = [[user[head] for head in order] for user in votes]
    assert fast(again, 9, places, kept, 10.0, 100.0) == fast(votes, 9, places, kept, 10.0, 100.0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_monotone_scores_give_the_same_consensus(scale: float) -> None:
    torch.manual_seed(2)
    scores = torch.randn(3, 2, 6, 15, dtype=torch.float64)  # times, heads, users, items
    both = []
    for transform in (lambda s: s, lambda s: torch.tanh(s / 4) * scale + 7):
        tables = transform(scores)
        lists = [
            torch.stack([torch.from_numpy(rank(lambda users, t=t: t[users], np.arange(6), 15)) for t in time])
            for time in tables
        ]
        both.append(consensus(lists[-1], lists, 15, 10, top_k=12)[0].tolist())
    assert both[0] == both[1]


def test_one_head_that_never_changes_is_its_own_consensus() -> None:
    listed = [5, 2, 8, 0, 1]
    assert fast([[[listed, listed, listed]]], 5, 5, 5, 10.0, 10.0) == ([listed], [listed])
    assert fast([[[listed]]], 5, 5, 5, 10.0, None) == ([listed], [listed])


def test_a_consistent_item_overtakes_a_higher_one_that_jumps() -> None:
    consistent_second = [[[3, 7, 1, 9, 4], [9, 7, 3, 4, 1], [4, 7, 9, 1, 3]]]
    assert fast([consistent_second], 1, 5, 5, 10.0, 1.0) == ([[7]], [[4]])


def test_ties_go_to_the_better_best_rank_then_to_the_lower_item() -> None:
    """So high a temperature makes every vote the same."""
    assert fast([[[[8, 5, 2]], [[5, 2, 8]]]], 3, 3, 3, 1e15, None)[0] == [[5, 8, 2]]
    assert fast([[[[8, 5, 2]], [[5, 2, 8]]]], 3, 3, 3, 10.0, None)[0] == [[5, 8, 2]]
    assert fast([[[[2, 5, 8]], [[8, 5, 2]]]], 3, 3, 3, 10.0, None)[0] == [[2, 8, 5]]


def test_without_a_window_consistency_says_nothing() -> None:
    newest = torch.tensor([[[4, 2, 0]], [[2, 0, 4]]], dtype=torch.int32)
    both, by_rank = consensus(newest, [], 5, 3, top_k=3, consistency_temperature=1.0)
    assert both.tolist() == by_rank.tolist() == [[2, 4, 0]]


def test_short_lists_and_empty_places_vote_for_nothing() -> None:
    newest = torch.tensor([[[4, NOTHING, NOTHING]], [[2, 4, NOTHING]]], dtype=torch.int32)
    before = torch.tensor([[[2, 4, NOTHING]], [[2, NOTHING, NOTHING]]], dtype=torch.int32)
    for window in ([], [newest], [before, newest]):
        both, by_rank = consensus(newest, window, 6, 4, top_k=3, consistency_temperature=10.0)
        assert both.tolist() == by_rank.tolist() == [[4, 2, NOTHING, NOTHING]]


def test_a_user_without_anything_to_rank_has_an_empty_consensus() -> None:
    newest = torch.full((2, 1, 3), NOTHING, dtype=torch.int32)
    assert consensus(newest, [newest, newest], 6, 2, top_k=3)[0].tolist() == [[NOTHING, NOTHING]]


@given(st.lists(st.permutations(range(12)), min_size=1, max_size=4), st.integers(1, 12))
def test_a_rank_is_found_where_it_stands(lists: list[list[int]], kept: int) -> None:
    asked = torch.arange(12).expand(len(lists), -1)
    reverse = torch.tensor(lists).flip(1)[:, :kept]
    found = ranks_over_time(asked, [torch.tensor(lists)[:, :kept], reverse], 12)
    for ranks, rows in zip(found.tolist(), (lists, [row[::-1] for row in lists]), strict=True):
        expected = [[row[:kept].index(item) if item in row[:kept] else kept for item in range(12)] for row in rows]
        assert ranks == expected


class LargestTensor(TorchDispatchMode):
    """The elements of the largest tensor that any operation made; a view makes none."""

    elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, words: Any = (), named: Any = None) -> Any:
        made = operation(*words, **(named or {}))
        if isinstance(made, torch.Tensor) and made._base is None:
            self.elements = max(self.elements, made.numel())
        return made


def test_a_long_window_is_not_copied() -> None:
    """|Q| = all keeps every ranking: a copy of all of them was larger than everything else together."""
    window = [torch.rand(3, 4, 200).argsort(2).to(torch.int32) for _ in range(50)]
    with LargestTensor() as largest:
        consensus(window[-1], window, 200, 10, top_k=10)
    assert largest.elements <= 50 * 4 * 10  # the ranks over time of a head's items; the window has 50 x 3 x 4 x 200


def test_importance_and_consistency_are_exponentials() -> None:
    assert rank_importance(torch.tensor([0.0, 5.0]), 10.0).tolist() == pytest.approx([1.0, exp(-0.5)])
    ranks = torch.tensor([[3, 0], [3, 4], [3, 2]])
    assert consistency(ranks, 2.0).tolist() == pytest.approx([1.0, exp(-pstdev([0, 4, 2]) / 2)])


def test_users_are_independent_and_may_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    votes = [[[torch.randperm(40).tolist() for _ in range(3)] for _ in range(4)] for _ in range(9)]
    together, _ = fast(votes, 15, 10, 20, 10.0, 10.0)
    assert together == [fast([user], 15, 10, 20, 10.0, 10.0)[0][0] for user in votes]
    monkeypatch.setattr(module, "CPU_CELLS", 41 * 4)
    assert together == fast(votes, 15, 10, 20, 10.0, 10.0)[0]
    monkeypatch.setattr(module, "CPU_CELLS", 1)
    assert together == fast(votes, 15, 10, 20, 10.0, 10.0)[0]
