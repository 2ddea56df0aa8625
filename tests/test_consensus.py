"""The consensus against the paper's formulas, item by item, and its laws."""

from __future__ import annotations

from math import exp
from statistics import pstdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from concf.consensus import consensus as module
from concf.consensus.consensus import NOTHING, consensus

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
        lists[-1], list(lists), n_items, length, top_k=places, temperature=temperature,
        consistency_temperature=consistency,
    )  # fmt: skip
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


def test_short_lists_and_empty_places_vote_for_nothing() -> None:
    newest = torch.tensor([[[4, NOTHING, NOTHING]], [[2, 4, NOTHING]]], dtype=torch.int32)
    before = torch.tensor([[[2, 4, NOTHING]], [[2, NOTHING, NOTHING]]], dtype=torch.int32)
    for window in ([], [newest], [before, newest]):
        both, by_rank = consensus(newest, window, 6, 4, top_k=3, consistency_temperature=10.0)
        assert both.tolist() == by_rank.tolist() == [[4, 2, NOTHING, NOTHING]]


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


def test_users_are_independent_and_may_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    votes = [[[torch.randperm(40).tolist() for _ in range(3)] for _ in range(4)] for _ in range(9)]
    together, _ = fast(votes, 15, 10, 20, 10.0, 10.0)
    assert together == [fast([user], 15, 10, 20, 10.0, 10.0)[0][0] for user in votes]
    monkeypatch.setattr(module, "CPU_CELLS", 1)
    assert together == fast(votes, 15, 10, 20, 10.0, 10.0)[0]
