"""Plain fusions are their formulas, written out pair by pair."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import Tensor

from concf.consensus.fusion import Fusions, greedy_selection, scores_of
from concf.consensus.voters import Voter
from concf.evaluation.scorers import Factors

VOTERS, USERS, ITEMS, K = 3, 7, 9, 5


def voters(seed: int) -> list[Voter]:
    """Lists of scores that differ, some shorter."""
    random = np.random.default_rng(seed)
    found = []
    for voter in range(VOTERS):
        scores = np.sort(random.random((USERS, K)), axis=1)[:, ::-1].copy()
        lists = np.stack([random.permutation(ITEMS)[:K] for _ in range(USERS)])
        lists[2, 3:] = lists[4, : K * (voter == 1)] = -1
        listed = torch.zeros(USERS, K, 3, dtype=torch.float64)
        listed[..., 2] = torch.from_numpy(np.where(lists < 0, 0, scores))
        found.append(Voter(str(voter), torch.from_numpy(lists.astype(np.int32)), None, listed))
    return found


def literal(kind: str, some: list[Voter], user: int, weights: list[float]) -> list[int]:
    """The list of a user, by loops."""
    total: dict[int, float] = defaultdict(float)
    best: dict[int, int] = {}
    for voter, weight in zip(some, weights, strict=True):
        assert voter.listed is not None
        row = [item for item in voter.lists[user].tolist() if item >= 0]
        scores = voter.listed[user, : len(row), 2].tolist()
        for rank, (item, score) in enumerate(zip(row, scores, strict=True), 1):
            width = scores[0] - scores[-1]
            scaled = (score - scores[-1]) / width if width else 1.0
            listing = sum(item in each.lists[user].tolist() for each in some)
            total[item] += {
                "reciprocal ranks": 1 / (60 + rank), "weighted": weight / (60 + rank), "greedy": weight / (60 + rank),
                "Borda": K + 1 - rank, "CombSUM": scaled, "CombMNZ": scaled * listing,
            }[kind]  # fmt: skip
            best[item] = min(best.get(item, K), rank)
    return sorted(total, key=lambda item: (-round(total[item], 9), best[item], item))


@pytest.mark.parametrize("kind", ["reciprocal ranks", "Borda", "CombSUM", "CombMNZ", "weighted", "greedy"])
def test_a_fusion_is_its_formula(kind: str) -> None:
    for seed in range(4):
        some, weights = voters(seed), [0.21, 0.5, 0.31]
        fusions = Fusions(some, torch.arange(USERS), K, ITEMS)
        lists = fusions.lists({"weighted": torch.tensor(weights), "greedy": torch.tensor(weights)}, ITEMS)[kind]
        for user in range(USERS):
            expected = literal(kind, some, user, weights)
            assert lists[user].tolist() == expected + [-1] * (ITEMS - len(expected))


def test_greedy_selection_takes_what_helps_most_and_stops_when_nothing_helps() -> None:
    def measure(counts: Tensor) -> float:
        share = counts / counts.sum()
        return 1 - float((share - torch.tensor([0.5, 0.3, 0.2])).square().sum())

    chosen, best = [0, 0, 0], -1.0
    while True:  # by hand
        tried = [[count + (voter == each) for each, count in enumerate(chosen)] for voter in range(3)]
        figures = [measure(torch.tensor(each).double()) for each in tried]
        if max(figures) <= best:
            break
        best = max(figures)
        chosen = tried[figures.index(best)]
    assert greedy_selection(measure, 3).tolist() == chosen


def test_weights_are_what_validation_says() -> None:
    fusions = Fusions(voters(0), torch.arange(USERS), K, ITEMS)
    first = voters(0)[2].lists[:, 0]
    weights = fusions.fit([0.1, 0.2, 0.4], lambda lists: float((lists[:, 0] == first).double().mean()), 2)
    assert weights["weighted"].tolist() == [0.1, 0.2, 0.4]
    assert weights["greedy"].tolist() == [0, 0, 1]  # the third alone puts its own first


def test_scores_of_vectors_are_inner_products() -> None:
    random = torch.Generator().manual_seed(0)
    user, item, bias = (torch.randn(*shape, generator=random) for shape in ((USERS, 4), (ITEMS, 4), (ITEMS,)))
    lists = torch.tensor([[0, 2], [3, -1]], dtype=torch.int32)
    found = scores_of(Voter("mine", lists, Factors(user, item, bias)), torch.tensor([5, 2]))
    expected = [[user[5] @ item[0] + bias[0], user[5] @ item[2] + bias[2]], [user[2] @ item[3] + bias[3], 0.0]]
    assert torch.allclose(found, torch.tensor(expected))
