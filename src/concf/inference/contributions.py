"""What lifted an item in a re-ranked list, and which items of the history speak for it.

The re-ranker's score is a sum of weights times features (`consensus/reranker.py`). Here the terms are added up by
group: a voter's rank of the item, its score compared with everyone's (the item z-score and its like), the similarity of
the item to the history by its vectors, and what is of the item alone (its popularity, and how the heads score it on the
whole). A contribution is relative to the mean over the
user's candidates: 0 is an average candidate, and the contributions add up to the score less the candidates' mean score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.features import ITEM_FEATURES, PAIR_FEATURES, HeadFeatures, Histories
from concf.consensus.reranker import (
    CURVE_FEATURES,
    LIST_FEATURES,
    TOP,
    VOTER_FEATURES,
    at_ranks,
    feature_rows,
    popularity_and_activity,
)
from concf.inference.votes import Votes
from concf.model.scorers import Factors

Kind = Literal["rank", "score", "similarity", "popularity"]
SPEAKERS = 3  # items of a history that are named


class Group(NamedTuple):
    """Terms of the re-ranker that are added up. voter: None where they are no voter's, as popularity."""

    voter: str | None
    kind: Kind


class Contributions:
    """The terms of a run's re-ranker, by group.

    groups: [G] fixed voters' scores are one group: a run does not keep them, and they are what the others leave over
    """

    def __init__(self, votes: Votes, voters: Mapping[str, Factors], log: csr_array, temperature: float) -> None:
        assert votes.weights is not None
        self.votes, self.temperature = votes, temperature
        self.centre, self.weights = votes.weights
        histories = Histories(log, slice(0, log.shape[0]), torch.device("cpu"))
        self.heads = [HeadFeatures(factors, histories, typical=False) for factors in voters.values()]
        self.popularity, self.activity = (each.float() for each in popularity_and_activity(log))
        self.n_fixed = len(votes.names) - len(voters)
        self.steady = [row for row, each in enumerate(votes.consistency) if each.any()]
        columns = _columns(votes.names, list(voters), self.steady)
        self.groups = list(dict.fromkeys(columns))
        self._group = torch.tensor([self.groups.index(each) for each in columns])

    def of_user(self, user: int) -> dict[int, NDArray[np.float64]]:
        """Candidate -> [G] contributions; user, candidates: positions."""
        assert self.votes.reranked is not None
        listed, scores = self.votes.reranked[0][user, :TOP], self.votes.reranked[1][user, :TOP]
        items, scores = listed[listed >= 0], scores[listed >= 0]
        if not len(items):  # voters were not asked for this user
            return {}
        features = self._features(user, torch.from_numpy(items))
        terms = (features - self.centre[: features.shape[1]]) * self.weights[: features.shape[1]]
        group = self._group[: features.shape[1]].expand_as(terms)
        totals = torch.zeros(len(items), len(self.groups), dtype=torch.float64).scatter_add_(1, group, terms).numpy()
        if self.n_fixed:
            totals[:, -1] = scores - totals.sum(1)
        return dict(zip(items.tolist(), totals - totals.mean(0), strict=True))

    def _features(self, user: int, items: Tensor) -> Tensor:
        """[L, F - those of fixed voters' scores], float64."""
        stored = self.votes.items[:, user]  # [voters, K]
        same = stored[:, :, None] == items.numpy()
        ranks = torch.from_numpy(np.where(same.any(1), same.argmax(1), stored.shape[1]))[:, None]
        row, item = torch.tensor([user]), items.long()[None]
        consistency = torch.from_numpy(self.votes.consistency[self.steady, user])[:, None, :, None]
        of_time = [
            at_ranks(each, ranks[voter], stored.shape[1]) for voter, each in zip(self.steady, consistency, strict=True)
        ]
        rows = feature_rows(
            ranks, self.popularity[item], self.activity[row], [each(row, item) for each in self.heads], [],
            stored.shape[1], self.temperature, of_time,
        )  # fmt: skip
        return rows[0].double()


def _columns(names: list[str], heads: list[str], steady: Sequence[int] = ()) -> list[Group]:
    """The group of each feature, in the order of `feature_rows`. steady: the voters with several rankings"""
    fixed = [name for name in names if name not in heads]
    columns = [Group(name, "rank") for name in names for _ in range(VOTER_FEATURES)]
    columns += [Group(None, "popularity")] * CURVE_FEATURES
    for head in heads:
        pair = [Group(head, "score")] * 2 + [Group(head, "similarity")] * (PAIR_FEATURES - 2)
        columns += [*pair, Group(head, "score"), *[Group(None, "popularity")] * ITEM_FEATURES, *pair * 2]
    columns += [Group(names[voter], "rank") for voter in steady]
    return columns + [Group(" and ".join(fixed), "score")] * LIST_FEATURES * len(fixed)


def similarity_shares(voters: Iterable[Factors], history: NDArray[np.int64], items: NDArray[np.int64]) -> Tensor:
    """[items, history] how much of an item's similarity to a history each item of it accounts for.

    The mean over voters, and over k = 2 and 8 (see `consensus/features.py`), of c^k / sum of c^k over the history, c
    the cosine of the two items' vectors, or 0 if that is negative. A row adds up to 1; to 0 if no cosine is positive.
    """
    shares, n = torch.zeros(len(items), len(history), dtype=torch.float64), 0
    for factors in voters:
        one, other = (torch.nn.functional.normalize(factors.item[rows].double(), dim=1) for rows in (items, history))
        square = (one @ other.T).clamp(min=0).square()
        for power in (square, square**4):
            shares += power / power.sum(1, keepdim=True).clamp(min=torch.finfo(power.dtype).tiny)
        n += 2
    return shares / max(n, 1)


def speakers(shares: Tensor) -> list[list[tuple[int, float]]]:
    """Of each item, the places in the history that account for most of its similarity, and their shares."""
    values, places = shares.sort(dim=1, descending=True, stable=True)
    pairs = zip(places[:, :SPEAKERS].tolist(), values[:, :SPEAKERS].tolist(), strict=True)
    return [[(place, share) for place, share in zip(*each, strict=True) if share > 0] for each in pairs]
