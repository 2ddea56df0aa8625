"""Explanations: votes of a consensus, and contributions to the re-ranker's scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict  # which the service's documents need before Python 3.12

from concf.baselines.table import timed_voters
from concf.consensus.consensus import rank_importance
from concf.consensus.voters import LEAST_STD, TIMED_LEAST_STD, by_lists
from concf.evaluation.scorers import Factors
from concf.inference.lookup import Id
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.runtime.text_tables import settings_line
from concf.strong import reranker
from concf.strong.features import ITEM_FEATURES, PAIR_FEATURES, TIME_FEATURES, TREND_FEATURES, HeadFeatures, Histories
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT, TIME

Kind = Literal["rank", "score", "similarity", "popularity", "trend", "newest"]
Aspect = Literal["taste", "order", "trend", "popularity", "taste and order"]
SPEAKERS = 3  # most items of a history that an explanation names
FIXED_VOTERS = {
    "rp3beta": "random walks", "userknn": "similar users", "ease": "linear regression on the history",
    "recent-popularity": "popular recently", "als-decayed": "what such users chose lately",
    "als-sequence": "what comes next", "slist": "what comes next",
}  # fmt: skip


class Vote(TypedDict):
    """Vote of one voter for an item of a user's list.

    head:  the voter: a head, or a fixed voter
    rank:  from 1, training items left out; None for a training item, and outside a fixed voter's first K
    R, C:  importance of the rank (Eq. 10) and consistency (Eq. 11); 0 outside the first K
    vote:  (R + C) times the voter's weight
    score: the head's own score of the item; None for a fixed voter, and in `Votes.cast`
    """

    head: str
    rank: int | None
    R: float
    C: float
    vote: float
    score: float | None


class Contribution(TypedDict):
    """Contribution to the re-ranker's score of an item, minus its mean over the user's candidates.

    voter: None for the item's popularity and trend, and its similarity to the user's newest items
    kind:  rank, score, similarity, popularity, trend or newest; aspect: see `Explanation`
    """

    voter: str | None
    kind: Kind
    aspect: Aspect
    value: float


class Because(TypedDict):
    """An item of the user's history. share: of the similarity between the history and the explained item"""

    item: int | str
    share: float


class Explanation(TypedDict):
    """Explanation of an item's rank in a user's consensus list.

    rank:       in the list of the consensus, from 1; None if the list does not have the item
    importance: the mean of the votes (Eq. 12)
    reranked:   the re-ranker's score, which orders the list; None without a re-ranker, for an item outside the list,
                and for a user without a consensus list, whose list is the student's
    used_in_training: whether the item is among the user's training items
    heads:      the vote of each head and fixed voter
    contributions: terms of the re-ranker's score; None if there is none, or the run kept no weights
    aspects:    their sums by aspect: taste (what the user likes), order (what comes next, and what resembles the
                newest items), trend (what is popular recently, and how old the item is), popularity (over all time)
    because:    up to three items of the user that are most similar to the item, by the voters' vectors
    """

    user: Id
    item: Id
    rank: int | None
    importance: float
    reranked: float | None
    used_in_training: bool
    heads: list[Vote]
    contributions: list[Contribution] | None
    aspects: dict[str, float] | None
    because: list[Because]


class Votes:
    """First K items of each voter, their consistency, and the voter's weight.

    They come from the votes and lists of a run's consensus (`RankingConsensus.votes`), or of folded-in histories.

    names:         the voters: heads, then fixed voters
    items:         [voters, users, K] positions, best first, -1 where a list is shorter
    earned:        [K] R (Eq. 10)
    consistency:   [voters, users, K] C (Eq. 11); 0 for the R-consensus
    voter_weights: [voters], 1 on average
    reranked:      [users, L] the consensus lists and the re-ranker's scores, if there is a re-ranker
    weights:       ([F], [F]) mean and weight of each feature of the re-ranker, float64
    """

    def __init__(self, votes: Mapping[str, Tensor], lists: Tensor | None, run: Run, by: str) -> None:
        settings, everyone = run.settings, [*run.heads, *run.fixed_voters]
        weight = votes.get("voter_weights", torch.ones(len(everyone))).cpu()  # 0: too large a log for this voter
        voting = [row for row, name in enumerate(everyone) if name not in settings.non_voting and weight[row] > 0]
        rows = voting if len(voting) < len(votes["items"]) else slice(None)  # all of them: no copy
        items = votes["items"][rows].cpu()
        consistency = torch.zeros(1).expand(items.shape)
        if by == CONSENSUS and "consistency" in votes:
            consistency = votes["consistency"][rows].cpu()
        weights = weight[voting].double().numpy()
        earned = rank_importance(torch.arange(items.shape[2]).double(), settings.consensus.temperature)
        self.names = [everyone[row] for row in voting]
        self.items: NDArray[np.int32] = items.numpy()
        self.earned: NDArray[np.float64] = earned.numpy()
        self.consistency: NDArray[np.float32] = consistency.numpy()
        self.voter_weights: NDArray[np.float64] = weights / weights.mean()
        self.reranked: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
        if by == CONSENSUS and "reranked" in votes and lists is not None:
            self.reranked = lists.cpu().numpy(), votes["reranked"].cpu().numpy()
        self.weights: tuple[Tensor, Tensor] | None = None
        if self.reranked is not None and "weights" in votes:
            self.weights = votes["centre"].cpu().double(), votes["weights"].cpu().double()

    def worth(self, user: int, items: NDArray[np.int32]) -> NDArray[np.float32]:
        """[k] scores of items [k] for a user: the mean vote, I (Eq. 12), or the re-ranker's score (-inf: none)."""
        if self.reranked is not None:
            listed, scores = (each[user] for each in self.reranked)
            same = listed == items[:, None]
            return np.where(same.any(1), scores[same.argmax(1)], -np.inf).astype(np.float32)
        listed = self.items[:, user]  # [voters, K]
        votes = self.voter_weights[:, None] * (self.earned + self.consistency[:, user])
        item, vote = np.divmod(np.flatnonzero(listed == items[:, None, None]), listed.size)
        total = np.bincount(item, votes.ravel()[vote], minlength=len(items))
        return np.asarray(total / len(listed), np.float32)

    def cast(self, user: int, item: int) -> list[Vote]:
        """Return the vote of each voter for an item, without the head's score; rank is None outside its first K."""
        votes: list[Vote] = []
        for voter, (name, weight) in enumerate(zip(self.names, self.voter_weights.tolist(), strict=True)):
            rank, r, c = None, 0.0, 0.0
            for at in np.flatnonzero(self.items[voter, user] == item).tolist()[:1]:
                rank, r, c = at + 1, float(self.earned[at]), float(self.consistency[voter, user, at])
            votes.append({"head": name, "rank": rank, "R": r, "C": c, "vote": weight * (r + c), "score": None})
        return votes


class Group(NamedTuple):
    """A group of terms of the re-ranker. voter, kind, aspect: see `Contribution`"""

    voter: str | None
    kind: Kind
    aspect: Aspect = "taste"


def aspect_of(voters: Iterable[str]) -> Aspect:
    """Aspect that the ranks and scores of voters express."""
    timed = dict.fromkeys(timed_voters(), "order") | {"recent-popularity": "trend", "als-decayed": "taste"}
    aspects = {timed.get(name, "taste") for name in voters}
    return "taste and order" if len(aspects) > 1 else cast(Aspect, aspects.pop())


class Contributions:
    """Terms of a run's re-ranker, by group.

    groups: [G] groups of terms. A run does not keep the scores of voters without vectors: they are one group, the rest
            of the total, except for voters that know times, whose scores are computed again if a CPU can afford it
    """

    def __init__(self, votes: Votes, run: Run) -> None:
        assert votes.weights is not None
        self.votes, self.run, self.temperature, log = votes, run, run.settings.consensus.temperature, run.log
        self.clock = run.clock if isinstance(run, StrongRun) else None
        least_std = TIMED_LEAST_STD if TIME in run.chosen else LEAST_STD
        self.centre, self.weights = votes.weights
        histories = Histories(log, slice(0, log.shape[0]), torch.device("cpu"))
        self.heads = [HeadFeatures(factors, histories, False, least_std=least_std) for factors in run.voters.values()]
        self.popularity, self.activity = (each.float() for each in reranker.popularity_and_activity(log))
        self.fixed = [name for name in votes.names if name not in run.voters]
        fold_in = run.fold_in if isinstance(run, StrongRun) else None
        known = [name for name in self.fixed if fold_in and name in timed_voters() and fold_in.affordable(name)]
        rest = [name for name in self.fixed if name not in known]
        # the group of each feature, in the order of `feature_rows`
        curve = Group(None, "popularity", "popularity")
        columns = [Group(name, "rank", aspect_of([name])) for name in votes.names for _ in reranker.TEMPERATURES]
        columns += [curve] * reranker.CURVE_FEATURES
        for head in run.voters:
            pair = [Group(head, "score")] * 2 + [Group(head, "similarity")] * (PAIR_FEATURES - 2)
            columns += [*pair, Group(head, "score"), *[curve] * ITEM_FEATURES, *pair * 2]
        if self.clock is not None:
            trend, newest = Group(None, "trend", "trend"), Group(None, "newest", "order")
            columns += ([trend] * TREND_FEATURES + [newest] * (TIME_FEATURES // 2 - TREND_FEATURES)) * 2
        used, width = list(range(len(columns))), len(columns)
        for name in known:
            columns += [Group(name, "score", aspect_of([name]))] * reranker.LIST_FEATURES
            first = width + reranker.LIST_FEATURES * self.fixed.index(name)
            used += range(first, first + reranker.LIST_FEATURES)
        self.known, self.has_rest = known, bool(rest)
        self.groups = list(dict.fromkeys(columns))
        self.groups += [Group(" and ".join(rest), "score", aspect_of(rest))] if rest else []
        self._group = torch.tensor([self.groups.index(each) for each in columns])
        self.centre, self.weights = self.centre[used], self.weights[used]

    def _listed(self, name: str, user: int, ranks: Tensor) -> Tensor:
        """[1, L, 4] features of the items that a voter without vectors lists. ranks: [voters, 1, L]"""
        assert isinstance(self.run, StrongRun)
        voter, fold_in = self.votes.names.index(name), self.run.fold_in
        listed = torch.from_numpy(self.votes.items[voter, user])[None]
        values = fold_in.fitted(name).scores(torch.tensor([user])).gather(1, listed.long().clamp(min=0))
        features = by_lists(name, listed, values, fold_in.votes["of_items"][self.fixed.index(name)]).listed
        assert features is not None
        return reranker.listed_features(features, ranks[voter], listed.shape[1])

    def of_pair(self, user: int, item: int) -> list[Contribution] | None:
        """Contributions to the score of an item; None if it is no candidate."""
        terms = self.of_user(user).get(item)
        if terms is None:
            return None
        return [{**each._asdict(), "value": value} for each, value in zip(self.groups, terms.tolist(), strict=True)]  # type: ignore[typeddict-item]

    def of_user(self, user: int) -> dict[int, NDArray[np.float64]]:
        """Map each candidate to its [G] contributions. user, candidates: positions"""
        assert self.votes.reranked is not None
        listed, scores = self.votes.reranked[0][user, : reranker.TOP], self.votes.reranked[1][user, : reranker.TOP]
        items, scores = listed[listed >= 0], scores[listed >= 0]
        if not len(items):  # no consensus was computed for this user
            return {}
        stored = self.votes.items[:, user]  # [voters, K]
        same = stored[:, :, None] == items
        ranks = torch.from_numpy(np.where(same.any(1), same.argmax(1), stored.shape[1]))[:, None]
        row, item = torch.tensor([user]), torch.from_numpy(items).long()[None]
        of_time = [] if self.clock is None else [self.clock(row, item, self.heads[0].direction)]
        features = reranker.feature_rows(
            ranks, self.popularity[item], self.activity[row], [each(row, item) for each in self.heads],
            [self._listed(name, user, ranks) for name in self.known], stored.shape[1], self.temperature, of_time,
        )[0].double()  # fmt: skip
        terms = (features - self.centre) * self.weights  # [L, F without the scores of the rest]
        group = self._group.expand_as(terms)
        totals = torch.zeros(len(items), len(self.groups), dtype=torch.float64).scatter_add_(1, group, terms).numpy()
        if self.has_rest:
            totals[:, -1] = scores - totals.sum(1)
        return dict(zip(items.tolist(), totals - totals.mean(0), strict=True))


def ranks_of(factors: Factors, user: int, hidden: NDArray[np.int64]) -> NDArray[np.int64]:
    """[items] ranks for a user, from 0; ties by index, hidden items last."""
    scores = factors.scores(torch.tensor([user]))[0].numpy()
    scores[hidden] = -np.inf
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return ranks


def similarity_shares(voters: Iterable[Factors], history: NDArray[np.int64], items: NDArray[np.int64]) -> Tensor:
    """[items, history] share of an item's similarity to a history that each item of the history accounts for.

    The mean over voters, and over k = 2 and 8 (see `strong/features.py`), of c^k / sum of c^k over the history, c
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
    """Find, for each item, the indices in the history with the largest shares of its similarity, and these shares."""
    values, positions = shares.sort(dim=1, descending=True, stable=True)
    pairs = zip(positions[:, :SPEAKERS].tolist(), values[:, :SPEAKERS].tolist(), strict=True)
    return [[(position, share) for position, share in zip(*row, strict=True) if share > 0] for row in pairs]


def about(run: Run, name: str) -> str:
    """Describe a head or fixed voter in a few words; empty where its name says it."""
    objective, chosen = run.objective(name) or FIXED_VOTERS.get(name, ""), run.chosen.get(name, {})
    if isinstance(run, StrongRun) and name in run.settings.foreign:
        return "given, with vectors" if name in run.settings.given_vectors else "given, as lists"
    words = ["" if objective == name else objective, settings_line(chosen) if chosen else ""]
    return ", ".join(word for word in words if word)


def cross_fitted(run: Run) -> list[str]:
    """Recommenders whose validation is cross-fitted: the re-ranker behind each list was fitted to other users."""
    return [] if not isinstance(run, StrongRun) else [name for name in (STUDENT, CONSENSUS) if name in run.best]
