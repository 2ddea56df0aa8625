"""Plain fusions of ranked lists, as baselines for the re-ranker.

Each gives an item the sum of votes, and ranks by it; an item that a voter does not list gets nothing from it. Ties
go to the item with the better best rank, then to the one with the lower position.

    reciprocal ranks    1 / (60 + r), r from 1 (Cormack et al., 2009)
    Borda               K + 1 - r
    CombSUM             the score, from 0 for the last to 1 for the first of the list (Fox and Shaw, 1994)
    CombMNZ             the same, times the number of voters that list the item
    weighted            reciprocal ranks, times the voter's validation metric
    greedy              reciprocal ranks, times how often greedy selection has chosen the voter (Caruana et al., 2004)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from concf.consensus.consensus import STEPS, by_votes, ranks_over_time
from concf.consensus.voters import Voter

OFFSET = 60  # of reciprocal ranks
ROUNDS = 20  # most rounds of greedy selection


def reciprocal_ranks(ranks: Tensor, top_k: int) -> Tensor:
    """[voters, n, C] 1 / (60 + r), or 0. ranks: [voters, n, C] from 0, K where a voter does not list a candidate"""
    return (1 / (OFFSET + 1 + ranks.double())).masked_fill(ranks >= top_k, 0.0)


def greedy_selection(measure: Callable[[Tensor], float], voters: int) -> Tensor:
    """[voters] how often each voter is chosen: a round adds the one that improves the metric most, until none does.

    measure: validation metric of an ensemble with these voter weights
    """
    chosen, best = torch.zeros(voters, dtype=torch.float64), -1.0
    for _ in range(ROUNDS):
        tried = [chosen + one for one in torch.eye(voters, dtype=torch.float64)]
        metrics = [measure(each) for each in tried]
        if max(metrics) <= best:
            break
        best = max(metrics)
        chosen = tried[metrics.index(best)]
    return chosen


class Fusions:
    """Fusions of the lists of voters for users [n].

    candidates: [n, C] int32 union of the voters' lists, by best rank, then by position; -1 where there are fewer
    ranks:      [voters, n, C] from 0, K where a voter does not list a candidate
    scores:     [voters, n, K] of the lists, descending; lengths: [voters, n] of the lists
    """

    def __init__(self, voters: Sequence[Voter], users: Tensor, top_k: int, n_items: int) -> None:
        items = torch.stack([voter.lists[:, :top_k] for voter in voters])
        self.top_k, self.lengths = items.shape[2], (items >= 0).sum(2)
        self.scores = torch.stack([scores_of(voter, users)[:, :top_k] for voter in voters])
        most = min(len(voters) * self.top_k, n_items)
        self.candidates = by_votes(items, torch.zeros_like(items), n_items, most)
        self.ranks = ranks_over_time(self.candidates, list(items), n_items)

    def fit(self, metrics: Sequence[float], measure: Callable[[Tensor], float], depth: int) -> dict[str, Tensor]:
        """Map each weighted fusion to its voter weights [voters], by validation.

        metrics: validation metrics of the voters; measure: validation metric of lists [n, depth]
        """
        votes = reciprocal_ranks(self.ranks, self.top_k)
        chosen = greedy_selection(lambda weights: measure(self._first(_times(votes, weights), depth)), len(metrics))
        return {"weighted": torch.tensor(metrics, dtype=torch.float64), "greedy": chosen}

    def lists(self, weights: dict[str, Tensor], length: int) -> dict[str, Tensor]:
        """Map each fusion to its lists [n, length]."""
        ranks, scores, ends = reciprocal_ranks(self.ranks, self.top_k), self.scores, (self.lengths - 1).clamp(min=0)
        first, last = scores[..., :1].double(), scores.gather(2, ends[..., None]).double()
        own = scores.gather(2, self.ranks.long().clamp(max=self.top_k - 1)).double()
        scaled = ((own - last) / (first - last)).where(first > last, 1.0).masked_fill(self.ranks >= self.top_k, 0.0)
        votes = {
            "reciprocal ranks": ranks,
            "Borda": self.top_k - self.ranks.double(),
            "CombSUM": scaled,
            "CombMNZ": scaled * (self.ranks < self.top_k).sum(0),
        }
        votes |= {name: _times(ranks, each) for name, each in weights.items()}
        return {name: self._first(each, length) for name, each in votes.items()}

    def _first(self, votes: Tensor, length: int) -> Tensor:
        """[n, length] candidates by their votes [voters, n, C], rounded to integers so that ties are exact."""
        most = self.candidates.shape[1]
        room = 1 << most.bit_length()
        total = (votes * (STEPS / room)).round().long().sum(0).masked_fill(self.candidates < 0, -1)
        ahead = torch.arange(most - 1, -1, -1, device=total.device)  # ties: the first candidate
        order = (total * room + ahead).topk(min(length, most), dim=1).indices
        return self.candidates.gather(1, order)


def scores_of(voter: Voter, users: Tensor) -> Tensor:
    """[n, K] scores of the items that a voter lists for users [n]; 0 for padding."""
    if voter.factors is None:
        assert voter.listed is not None
        return voter.listed[..., 2]
    factors, items = voter.factors, voter.lists.long().clamp(min=0)
    scores = torch.stack([factors.item[listed] @ factors.user[user] for listed, user in zip(items, users, strict=True)])
    scores = scores if factors.bias is None else scores + factors.bias[items]
    return scores.masked_fill(voter.lists < 0, 0.0)


def _times(votes: Tensor, weights: Tensor) -> Tensor:
    return votes * (weights / weights.sum()).to(votes)[:, None, None]
