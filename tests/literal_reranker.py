"""The re-ranker and its voters written out: one user, one item, one voter at a time, dense tables, plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import NamedTuple

import torch
from literal_features import features, pstdev
from torch import Tensor

STEPS = 2**40  # a vote is a whole number of steps of 2^-40


class Table(NamedTuple):
    """A scorer without vectors. table: [users, items]."""

    table: Tensor

    def scores(self, users: Tensor) -> Tensor:
        return self.table[users]


@dataclass
class LiteralVoter:
    """scores: [users, items] of all users; vectors: [items, d], if the voter has some."""

    scores: Tensor
    vectors: Tensor | None = None


def ranking(scores: Sequence[float], used: Sequence[bool], k: int) -> list[int]:
    """The best k items that were not used, of equals the lower one."""
    unseen = [item for item in range(len(scores)) if not used[item]]
    return sorted(unseen, key=lambda item: (-scores[item], item))[:k]


def within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def listed_features(scores: Tensor, used: Tensor, users: Sequence[int], u: int, i: int) -> list[float]:
    """[3] item z-score, relative score and score of a voter without vectors, whose scores of `users` are known."""
    table = [scores[user].tolist() for user in users]
    unit = pstdev([score for row in table for score in row])
    column = [row[i] / unit for row in table]
    mean, spread = fmean(column), max(pstdev(column), 1e-3)
    of_users = [score for score, user in zip(column, users, strict=True) if used[user, i]]
    gap = max(fmean(of_users) - mean, 0.05) if of_users else 0.05
    mine = float(scores[u, i]) / unit
    return [within((mine - mean) / spread, -20, 20), within((mine - mean) / gap, -2, 3), mine]


class LiteralReranker:
    """used: [users, items] of all users; users: the positions of those who are ranked for, in order."""

    def __init__(
        self, used: Tensor, users: Sequence[int], voters: Sequence[LiteralVoter], voter_weights: Sequence[float],
        *, length: int, top_k: int, temperature: float,
    ) -> None:  # fmt: skip
        self.used, self.users, self.voters, self.voter_weights = used, users, voters, voter_weights
        self.top_k, self.temperature, flags = top_k, temperature, used.tolist()
        self.rankings = [[ranking(voter.scores[u].tolist(), flags[u], top_k) for u in users] for voter in voters]
        self.lists = [self.plain(row)[:length] for row in range(len(users))]

    def plain(self, row: int) -> list[int]:
        """Everything that has a vote, by the sum of its weighted votes (Eq. 12 with R alone)."""
        votes: dict[int, int] = {}
        best: dict[int, int] = {}
        for lists, weight in zip(self.rankings, self.voter_weights, strict=True):
            for rank, item in enumerate(lists[row]):
                votes[item] = votes.get(item, 0) + round(weight * exp(-rank / self.temperature) * STEPS)
                best[item] = min(best.get(item, rank), rank)
        return sorted(votes, key=lambda item: (-votes[item], best[item], item))

    def features(self, row: int, item: int) -> list[float]:
        """[F] of one user and item: votes, popularity's curve, voters with vectors, voters without."""
        u = self.users[row]
        popular, active = ([log(max(n, 1)) for n in self.used.sum(side).tolist()] for side in (0, 1))
        p, q = ((each[at] - fmean(each)) / pstdev(each) for each, at in ((popular, item), (active, u)))
        votes: list[float] = []
        with_vectors: list[float] = []
        without: list[float] = []
        for voter, lists in zip(self.voters, self.rankings, strict=True):
            ranked = item in lists[row]
            rank = lists[row].index(item) if ranked else 0
            votes += [exp(-rank / (self.temperature * factor)) if ranked else 0.0 for factor in (0.25, 1, 4)]
            if voter.vectors is not None:
                mine = features(voter.scores, voter.vectors, self.used, u, item)
                with_vectors += [*mine, *(each * p for each in mine[:4]), *(each * q for each in mine[:4])]
            else:
                mine = listed_features(voter.scores, self.used, self.users, u, item) if ranked else [0.0, 0.0, 0.0]
                without += [*mine, float(ranked), *(each * p for each in mine[:2]), *(each * q for each in mine[:2])]
        return [*votes, p, p**2, p**3, p * q, p**2 * q, *with_vectors, *without]

    def table(self, row: int) -> Tensor:
        """[L, F] of the user's list."""
        return torch.tensor([self.features(row, item) for item in self.lists[row]], dtype=torch.float64)

    def prior(self) -> Tensor:
        """[F] the weights of the plain consensus."""
        weights = torch.zeros(len(self.features(0, 0)), dtype=torch.float64)
        for place, weight in enumerate(self.voter_weights):
            weights[3 * place + 1] = weight / fmean(self.voter_weights)
        return weights


class LiteralCost:
    """What the weights minimise. wanted: row -> the items that the user holds out."""

    def __init__(self, reranker: LiteralReranker, wanted: Sequence[set[int]]) -> None:
        self.prior, self.lists, self.wanted = reranker.prior(), reranker.lists, wanted
        self.learners = [row for row, items in enumerate(self.lists) if wanted[row] & set(items)]
        self.tables = {row: reranker.table(row) for row in self.learners}
        everything = torch.cat(list(self.tables.values()))
        self.centre = everything.mean(0)
        self.penalty = 10 * everything.var(0, correction=0).clamp(min=1e-6)

    def __call__(self, weights: Tensor, left_out: int | None = None) -> Tensor:
        """Of the learners outside a fold; a user's fold is its row modulo 5."""
        total = (self.penalty * (weights - self.prior) ** 2).sum()
        for row in self.learners:
            if row % 5 != left_out:
                scores = self.tables[row] @ weights
                mine = [place for place, item in enumerate(self.lists[row]) if item in self.wanted[row]]
                for place in mine:
                    total = total - (scores[place] - scores.exp().sum().log()) / len(mine)
        return total

    def gradient(self, weights: Tensor, left_out: int | None = None) -> Tensor:
        weights = weights.clone().requires_grad_()
        return torch.autograd.grad(self(weights, left_out), weights)[0]
