"""Re-ranker: a linear model over votes and features of the voters, fitted on the validation part (stacking).

It re-ranks the consensus of the voters by

    s(u, i) = sum_v sum_t w_vt e^(-r/t) + sum_h [a_h + b_h p_i + c_h q_u] . x_h + d_h . y_h
              + e . (p_i, p_i^2, p_i^3, p_i q_u, p_i^2 q_u)

with r the rank that voter v gives the item (0 beyond its first K), and t one of T / 4, T and 4 T; x_h the features of
voter h for the pair, y_h its score and its features of the item alone (`features.py`; for a voter without vectors the
features of its listed items, see `voters.py`, and whether it lists this one); p_i and q_u the standardised logarithms
of the item's number of users and of the user's number of items (or sums of their weights). The weights w are fitted to
the held-out items of users (`consensus/fitting.py`).

No feature has a unit: ranks, standardised logarithms and scores divided by their standard deviation mean the same for
voters that are fitted on more data, so the weights can be carried over to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, consensus, rank_importance, ranks_over_time
from concf.consensus.fitting import FOLDS, USERS, TrainingSet, Weights
from concf.consensus.voters import LEAST_STD, LISTED_FEATURES, Voter
from concf.evaluation.scorers import Factors
from concf.runtime.executors import each_block, in_blocks
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong.features import N_FEATURES, PAIR_FEATURES, TIME_FEATURES, Clock, HeadFeatures, Histories

TEMPERATURES = (0.25, 1.0, 4.0)  # t / T
PLAIN = 1  # index of T among the temperatures
VOTER_FEATURES, CURVE_FEATURES = len(TEMPERATURES), 5  # features of a voter's rank; of popularity and activity
HEAD_FEATURES = N_FEATURES + 2 * PAIR_FEATURES  # further features of a voter with vectors
LIST_FEATURES = LISTED_FEATURES + 2 * (LISTED_FEATURES - 1) + 1  # further features of a voter without vectors
TOP = 150  # items of a list that are re-ranked; the rest stays as it is
MOST_LEARNERS = 8192  # most users that weights are fitted on
SCORED_USERS = 512  # users of a block in re-ranking


class Context(NamedTuple):
    """Inputs of the features other than the votes.

    popularity: [items] p; activity: [users] q; log: the users' histories; heads: features of each voter with vectors;
    moments: mean and standard deviation that q is standardised by, its lowest and highest value of a user with pairs;
    clock: times of the log, if they are used
    """

    popularity: Tensor
    activity: Tensor
    log: Histories
    heads: list[HeadFeatures]
    moments: tuple[Tensor, ...]
    clock: Clock | None = None

    @classmethod
    def of(
        cls, train: csr_array, factors: Sequence[Factors], device: torch.device, group: ProcessGroup = ALONE,
        clock: Clock | None = None, least_std: float = LEAST_STD,
    ) -> Context:  # fmt: skip
        """Compute it from the log [local users, items] that the voters were fitted to. clock: times of local users"""
        log = Histories(train, slice(0, train.shape[0]), device)
        p, q = (each.to(device, torch.get_default_dtype()) for each in popularity_and_activity(train, group))
        of_head = partial(HeadFeatures, log=log, group=group, least_std=least_std)
        if factors:
            _ = log.by_item  # computed once, before threads use it
        heads = list(map(of_head, factors) if group.several else in_blocks(of_head, factors, device))
        known = q[log.first.diff() > 0]
        known = known if len(known) else q.new_zeros(1)
        moments = *_moments_of(group.join(_logarithms(train))), known.min(), known.max()
        return cls(p, q, log, heads, moments, clock)

    def folded(self, histories: csr_array, users: Sequence[Tensor], times: csr_array | None = None) -> Context:
        """Context of new users by their histories and times [n, items]. users: for each head their vectors [n, d]

        Activity is clamped to its range in the log: the weights do not extrapolate, and where all users are equally
        active one item less would be many standard deviations away.
        """
        log = Histories(histories, slice(0, histories.shape[0]), self.popularity.device)
        mean, deviation, *known = self.moments
        activity = ((_logarithms(histories) - mean) / deviation).to(self.activity).clamp(*known)
        heads = [each.folded(user, log) for each, user in zip(self.heads, users, strict=True)]
        clock = None if self.clock is None else self.clock.folded(histories, times)
        return self._replace(activity=activity, log=log, heads=heads, clock=clock)


class Reranker:
    """Re-ranker of the consensus of voters that were fitted on one log.

    users: [n] users that the voters list items for; lists: [n, length] plain consensus by rank (Eq. 12 with R alone),
    whose first TOP items are re-ranked
    group: each process has the log, vectors and lists of its local users; weights are fitted to all users
    """

    def __init__(
        self, train: csr_array, users: Tensor, voters: Sequence[Voter], voter_weights: Sequence[float], *,
        length: int, top_k: int, temperature: float, context: Context, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        self.users, self.voters, self.voter_weights = users, voters, voter_weights
        self.n_items, self.top_k, self.temperature = train.shape[1], top_k, temperature
        self.group, self.first = group, sum(group.lengths(users)[: group.rank])
        self.popularity, self.activity, self.log, self.heads = context[:4]
        self.clock = context.clock if self.heads else None
        self.lists = torch.empty(len(users), length, dtype=torch.int32, device=users.device)

        def agree(block: slice) -> None:
            rankings = torch.stack([voter.lists[block, :top_k] for voter in voters])
            self.lists[block] = consensus(
                rankings, [], self.n_items, length, voter_weights=voter_weights, top_k=top_k, temperature=temperature,
                consistency_temperature=None,
            )[1]  # fmt: skip

        each_block(agree, len(users), users.device)
        self.cached: tuple[Tensor, Tensor] | None = (
            None  # [n] first rows, in some order, and [n, L, F] of them, centred
        )

    def training(self, held_out: Tensor) -> TrainingSet:
        """Training data of the weights. held_out: [n, TOP or fewer] whether a listed item is held out for validation

        The features are cached for `rerank`.
        """
        rows = torch.arange(len(self.users), device=self.users.device)[: max(0, MOST_LEARNERS - self.first)]
        fold = ((rows + self.first) % FOLDS).where(held_out[rows].any(1), FOLDS)
        fold, order = fold.sort(stable=True)  # users of a fold are adjacent
        ends = list(accumulate(torch.bincount(fold, minlength=FOLDS).tolist()[:FOLDS], initial=0))
        features, empty = self.features(order)
        target, self.cached = held_out[order].to(features), (order, features)
        blocks = [
            [slice(begin, min(begin + USERS, last)) for begin in range(first, last, USERS)]
            for first, last in pairwise(ends)
        ]
        there, every = (~empty).to(features), list(chain(*blocks))
        count = there[: ends[-1]].sum(dtype=torch.float64)
        self.group.all_reduce([count])
        centre = (self._sum(features, there, every, 1) / count.clamp(min=1)).to(features)
        features.sub_(centre)  # changes no softmax, but reduces rounding errors
        variance = self._sum(features, there, every, 2) / count.clamp(min=1)
        target /= target.sum(1, keepdim=True).clamp(min=1)
        prior = self._plain(features.shape[2])
        return TrainingSet(features, empty, target, blocks, prior, variance, centre, count, self.group)

    @property
    def of_time(self) -> slice:
        """Slice of the features of time."""
        first = n_features(len(self.voters), len(self.heads), listed=0)
        return slice(first, first + TIME_FEATURES * (self.clock is not None))

    def _sum(self, features: Tensor, there: Tensor, blocks: Sequence[slice], power: int) -> Tensor:
        """[F] sum of a power, float64, of each feature over blocks of users. there: [users, L] 0 for padding, else 1"""
        total = torch.zeros(features.shape[2], dtype=torch.float64, device=features.device)

        def of_block(rows: slice) -> Tensor:  # a product is several times as fast as a sum
            return torch.bmm(there[rows, None], features[rows].pow(power)).double().sum((0, 1))

        for more in in_blocks(of_block, blocks, features.device):
            total += more
        self.group.all_reduce([total])
        return total

    def _plain(self, n_features: int) -> Tensor:
        """[F] weights of the plain consensus."""
        plain = torch.zeros(n_features, dtype=torch.float64, device=self.users.device)
        votes = torch.tensor(self.voter_weights, dtype=torch.float64, device=self.users.device)
        plain[PLAIN : VOTER_FEATURES * len(votes) : VOTER_FEATURES] = votes / votes.mean()
        return plain

    def rerank(self, weights: Weights, *, cross_fitted: bool = False) -> tuple[Tensor, Tensor]:
        """([n, length], [n, length]) re-ranked lists, and their scores, descending.

        Ties keep their order, padding goes last. Items beyond TOP stay behind, each 1 below the one above.
        cross_fitted: use for each user the weights fitted on the other folds
        """
        everyone = torch.arange(len(self.users), device=self.users.device)
        choices = (weights.folds if cross_fitted else weights.everyone[None]).to(self.popularity)
        lists, scores = torch.empty_like(self.lists), self.popularity.new_empty(self.lists.shape)

        def score(rows: Tensor, features: Tensor | None) -> None:
            if features is None:
                features = self.features(rows)[0].sub_(weights.centre)
            plain, top = self.lists[rows], features.shape[1]
            top_scores = torch.bmm(features, choices[(rows + self.first) % len(choices), :, None])[..., 0]
            top_scores = top_scores.masked_fill(plain[:, :top] == NOTHING, -torch.inf)
            top_scores, order = top_scores.sort(dim=1, descending=True, stable=True)
            below = top_scores[:, -1:] - torch.arange(1, plain.shape[1] - top + 1, device=plain.device)
            lists[rows] = torch.cat([plain[:, :top].gather(1, order), plain[:, top:]], 1)
            scores[rows] = torch.cat([top_scores, below], 1)

        jobs: list[tuple[Tensor, Tensor | None]] = []
        if self.cached is not None:
            jobs += zip(*(torch.split(each, SCORED_USERS) for each in self.cached), strict=True)
            everyone = everyone[len(self.cached[0]) :]
        jobs += ((rows, None) for rows in torch.split(everyone, SCORED_USERS))
        for _ in in_blocks(lambda job: score(*job), jobs, lists.device):
            pass
        return lists, scores

    def features(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """([b, L, F], [b, L]) features of the listed items in rows [b] of `users`, and the padding of shorter lists."""
        lists, users = self.lists[rows, :TOP], self.users[rows]
        ranks = ranks_over_time(lists, [voter.lists[rows, : self.top_k] for voter in self.voters], self.n_items)
        pairs = list(zip(ranks, self.voters, strict=True))
        listed = [(ranked, voter.listed[rows]) for ranked, voter in pairs if voter.listed is not None]
        width = n_features(len(self.voters), len(self.heads), len(listed), self.clock is not None)
        features = self.popularity.new_empty(*lists.shape, width)

        def fill(block: Tensor) -> None:
            owners, items = users[block], lists[block].long().clamp(min=0)
            histories = self.log.of(owners)
            of_heads = [head(owners, items, histories) for head in self.heads]
            of_lists = [listed_features(values[block], ranked[block], self.top_k) for ranked, values in listed]
            popularity, activity = self.popularity[items], self.activity[owners]
            of_time = [] if self.clock is None else [self.clock(owners, items, self.heads[0].direction)]
            features[block] = feature_rows(
                ranks[:, block], popularity, activity, of_heads, of_lists, self.top_k, self.temperature, of_time
            )

        for _ in in_blocks(fill, list(self.log.blocks(users)), lists.device):
            pass
        return features, lists == NOTHING


def n_features(voters: int, heads: int, listed: int, timed: bool = False) -> int:
    """Number of features F. heads, listed: voters with vectors, and without."""
    others = CURVE_FEATURES + TIME_FEATURES * timed
    return VOTER_FEATURES * voters + HEAD_FEATURES * heads + LIST_FEATURES * listed + others


def popularity_and_activity(train: csr_array, group: ProcessGroup = ALONE) -> tuple[Tensor, Tensor]:
    """([items], [local users]) standardised logarithms p and q of a log [local users, items]."""
    sums = torch.from_numpy(np.bincount(train.indices, train.data, train.shape[1]).astype(np.float64))
    group.all_reduce([sums])
    of_items, of_users = _logarithms_of(sums.numpy()), _logarithms(train)
    sides = (of_items, _moments_of(of_items)), (of_users, _moments_of(group.join(of_users)))
    popularity, activity = ((logs - mean) / deviation for logs, (mean, deviation) in sides)
    return popularity, activity


def _logarithms(rows: csr_array) -> Tensor:
    """[n] logarithm of the sum of weights of each row, at least 1."""
    return _logarithms_of(np.asarray(rows.sum(axis=1, dtype=np.float64)))


def _logarithms_of(sums: NDArray[np.float64]) -> Tensor:
    """[n] logarithm of sums [n], at least 1."""
    return torch.from_numpy(np.log(np.maximum(sums, 1.0)))


def _moments_of(logs: Tensor) -> tuple[Tensor, Tensor]:
    return logs.mean(), logs.std(correction=0).clamp(min=1e-9)


def listed_features(listed: Tensor, ranks: Tensor, top_k: int) -> Tensor:
    """[b, L, 4] features of a voter without vectors: of an item that it lists, and 1; 0 for all others.

    listed: [b, K, 3]; ranks: [b, L], K where an item is not listed
    """
    ranked = (ranks < top_k)[..., None]
    index = ranks.long().clamp(max=listed.shape[1] - 1)[..., None].expand(-1, -1, listed.shape[2])
    return torch.cat([listed.gather(1, index) * ranked, ranked.to(listed)], -1)


def feature_rows(
    ranks: Tensor, popularity: Tensor, activity: Tensor, of_heads: Sequence[Tensor], of_lists: Sequence[Tensor],
    top_k: int, temperature: float, of_time: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """[b, L, F] all features: votes, popularity curve, heads, time, then voters without vectors.

    ranks: [voters, b, L], K where a voter does not list an item; popularity: [b, L] p; activity: [b] q;
    of_heads: [b, L, N_FEATURES] for each head; of_lists: [b, L, 4] for each voter without vectors; of_time:
    [b, L, TIME_FEATURES] where times are used
    """
    ranked = ranks < top_k
    importance = [rank_importance(ranks.to(popularity), temperature * factor) * ranked for factor in TEMPERATURES]
    p, q = popularity, activity[:, None]
    votes, curve = torch.stack(importance, 1).flatten(0, 1), torch.stack([p, p**2, p**3, p * q, p**2 * q])
    heads, lists = (
        [torch.cat([part, part[:pair] * p, part[:pair] * q]) for part in (each.permute(2, 0, 1) for each in parts)]
        for parts, pair in ((of_heads, PAIR_FEATURES), (of_lists, LISTED_FEATURES - 1))
    )
    times = [each.permute(2, 0, 1) for each in of_time]
    return torch.cat([votes, curve, *heads, *times, *lists]).permute(1, 2, 0)  # rows of features are slow to write
