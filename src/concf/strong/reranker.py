"""The re-ranker: a linear model over votes and features of the voters, fitted on the validation part (stacking).

The consensus of the voters is re-ranked by

    s(u, i) = sum_v sum_t w_vt e^(-r/t) + sum_h [a_h + b_h p_i + c_h q_u] . x_h + d_h . y_h
              + e . (p_i, p_i^2, p_i^3, p_i q_u, p_i^2 q_u)

with r the rank that voter v gives the item (an item outside its first K earns nothing), t a quarter of T, T and four
times T; x_h the features of voter h for the pair, y_h its score and its features of the item alone (`features.py`; of a
voter without vectors what `voters.py` knows of the items that it lists, and whether it lists this one), and of a voter
that was ranked by at several times its consistency C (Eq. 11): Eq. 12 with weights that are fitted; p_i and q_u the
logarithms of the item's number of users and of the user's number of items (or sums of their weights), standardised. The
weights maximise the log-likelihood of a softmax of s over each user's list, of what that user holds out for validation.
A ridge penalty draws them to the plain consensus, where w_vT is the voter's weight and all else 0: with few users there
is little to learn from. The problem is convex and solved by Newton's method from there, so that the weights depend on
the features and the validation part alone.

Whoever helped to fit the weights is not judged by them: each fold of the validated users is re-ranked by weights fitted
on the others (cross-fitting). No feature has a unit: ranks, standardised logarithms and scores divided by their
deviation mean the same for voters that are fitted on more data, so that the weights can be carried over to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, block_of_users, consensus, rank_importance, ranks_over_time
from concf.consensus.voters import LISTED_FEATURES, Voter
from concf.errors import DataError
from concf.evaluation.scorers import Factors
from concf.runtime.executors import in_blocks
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong.features import N_FEATURES, PAIR_FEATURES, HeadFeatures, Histories
from concf.strong.stacking import TrainingSet, fit_weights

TEMPERATURES = (0.25, 1.0, 4.0)  # t / T
PLAIN = 1  # where T is
VOTER_FEATURES, CURVE_FEATURES = len(TEMPERATURES), 5  # of a voter, and of popularity and activity alone ...
HEAD_FEATURES = N_FEATURES + 2 * PAIR_FEATURES  # ... of a voter with vectors ...
LIST_FEATURES = LISTED_FEATURES + 2 * (LISTED_FEATURES - 1) + 1  # ... and of one without
PENALTY = 10.0  # of a weight's square, times the variance of its feature; a user's cost has weight 1
PENALTY_BEFORE = 100.0  # the same, where earlier weights are stayed near
LEAST_VARIANCE = 1e-6  # of a feature that never changes, and so gets no weight
TOP = 150  # items of a list that are re-ranked; the rest stays as it is
MOST_LEARNERS = 8192  # users that weights are fitted on, at most
FOLDS = 5
USERS = 512  # that go through a step of Newton together ...
SCORED_USERS = 1024  # ... and whose features are held at a time when they are re-ranked


class Weights(NamedTuple):
    """Fitted weights.

    centre: [F] the mean of each feature; everyone: [F] float64 fitted on all learners; folds: [FOLDS, F] float64 on
    all but those of each fold
    """

    centre: Tensor
    everyone: Tensor
    folds: Tensor


class Context(NamedTuple):
    """What the features of some users are made of, beside the votes.

    popularity: [items] p; activity: [users] q; log: their histories; heads: the features of each voter with vectors;
    moments: what q is standardised by
    """

    popularity: Tensor
    activity: Tensor
    log: Histories
    heads: list[HeadFeatures]
    moments: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls, train: csr_array, factors: Sequence[Factors], device: torch.device, group: ProcessGroup = ALONE
    ) -> Context:
        """Of the users [users, items] that the voters were fitted to; of several processes each has its own users."""
        log = Histories(train, slice(0, train.shape[0]), device)
        p, q = (each.to(device, torch.get_default_dtype()) for each in popularity_and_activity(train, group))

        def of_head(each: Factors) -> HeadFeatures:
            return HeadFeatures(each, log, group=group)

        if factors:
            _ = log.by_item  # once, before threads ask for it
        heads = list(map(of_head, factors) if group.several else in_blocks(of_head, factors, device))
        return cls(p, q, log, heads, _moments_of(group.join(_logarithms(train))))

    def folded(self, histories: csr_array, users: Sequence[Tensor]) -> Context:
        """Of other users [n, items], as it would be had they been fitted to. users: of each head [n, d].

        Whoever is less or more active than all users of the log counts as the least or the most active of them: the
        weights of the re-ranker know nothing of others, and where all are alike one item fewer is deviations away.
        """
        log = Histories(histories, slice(0, histories.shape[0]), self.popularity.device)
        mean, deviation = self.moments
        known = self.activity[self.log.first.diff() > 0]
        activity = ((_logarithms(histories) - mean) / deviation).to(self.activity).clamp(known.min(), known.max())
        heads = [each.folded(user, log) for each, user in zip(self.heads, users, strict=True)]
        return self._replace(activity=activity, log=log, heads=heads)


class Reranker:
    """The votes of some voters, fitted on one log, and what can be told of the pairs that they name.

    users: [n] the positions of those whom the voters list items for; lists: [n, length] the plain consensus by rank
    (Eq. 12 with R alone), of which the first TOP are re-ranked
    group: of several processes each has its own users, in log, vectors and lists; what is fitted is of all of them
    """

    def __init__(
        self, train: csr_array, users: Tensor, voters: Sequence[Voter], voter_weights: Sequence[float], *,
        length: int, top_k: int, temperature: float, context: Context | None = None, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        self.users, self.voters, self.voter_weights = users, voters, voter_weights
        self.n_items, self.top_k, self.temperature = train.shape[1], top_k, temperature
        factors = [each.factors for each in voters if each.factors is not None]
        context = Context.of(train, factors, users.device, group) if context is None else context
        self.group, self.first = group, sum(group.lengths(users)[: group.rank])
        self.popularity, self.activity, self.log, self.heads = context[:4]
        self.lists = torch.empty(len(users), length, dtype=torch.int32, device=users.device)

        def agree(mine: slice) -> None:
            rankings = torch.stack([each.lists[mine, :top_k] for each in voters])
            self.lists[mine] = consensus(
                rankings, [], self.n_items, length, voter_weights=voter_weights, top_k=top_k, temperature=temperature,
                consistency_temperature=None,
            )[1]  # fmt: skip

        size = block_of_users(users.device, self.n_items)
        blocks = [slice(begin, begin + size) for begin in range(0, len(users), size)]
        for _ in in_blocks(agree, blocks, users.device):
            pass
        self.made: tuple[Tensor, Tensor] | None = None  # [n] places in what `fit` has made: features, centred

    def fit(self, held_out: Tensor, before: Tensor | None = None) -> Weights:
        """The weights.

        held_out: [n, TOP or fewer] where the lists have what a user holds out for validation
        before:   [F] weights that were fitted to more users, which the penalty draws to, and more strongly; None: it
                  draws to the plain consensus
        """
        rows = torch.arange(len(self.users), device=self.users.device)[: max(0, MOST_LEARNERS - self.first)]
        fold = ((rows + self.first) % FOLDS).where(held_out[rows].any(1), FOLDS)
        fold, order = fold.sort(stable=True)  # what is fitted on lies together, fold by fold
        blocks = _blocks(torch.bincount(fold, minlength=FOLDS).tolist()[:FOLDS])
        features, empty = self.features(order)
        centre, variance = self._moments(features, empty, list(chain(*blocks)))
        self.made = order.argsort(), features.sub_(centre)
        prior = self._plain(features.shape[2]) if before is None else before.to(rows.device, torch.float64)
        wanted = held_out[order].to(features)
        wanted /= wanted.sum(1, keepdim=True).clamp(min=1)
        penalty = (PENALTY if before is None else PENALTY_BEFORE) * variance.clamp(min=LEAST_VARIANCE)
        training = TrainingSet(features, empty, wanted, blocks, prior, penalty, self.group)
        everyone, curvature = fit_weights(training, None, prior)
        folds = [fit_weights(training, left_out, everyone, curvature)[0] for left_out in range(FOLDS)]
        if not everyone.isfinite().all():
            raise DataError(
                "the re-ranker's weights are not finite: the scores of some voter are too large or too small"
            )
        return Weights(centre, everyone, torch.stack(folds))

    def _moments(self, features: Tensor, empty: Tensor, blocks: Sequence[slice]) -> tuple[Tensor, Tensor]:
        """([F], [F]) the mean of each feature, and its variance, float64, over some blocks of users.

        No softmax notices a mean that is taken away, but the rounding of single precision does.
        """
        total = torch.zeros(features.shape[2], dtype=torch.float64, device=features.device)
        square, count = torch.zeros_like(total), torch.zeros_like(total[0])
        for rows in blocks:
            there = features[rows][~empty[rows]].double()
            total, square, count = total + there.sum(0), square + there.square().sum(0), count + len(there)
        self.group.all_reduce([total, square, count])
        mean = total / count.clamp(min=1)
        return mean.to(features.dtype), square / count.clamp(min=1) - mean.square()

    def _plain(self, n_features: int) -> Tensor:
        """[F] the weights of the plain consensus."""
        plain = torch.zeros(n_features, dtype=torch.float64, device=self.users.device)
        votes = torch.tensor(self.voter_weights, dtype=torch.float64, device=self.users.device)
        plain[PLAIN : VOTER_FEATURES * len(votes) : VOTER_FEATURES] = votes / votes.mean()
        return plain

    def rerank(self, weights: Weights, *, cross_fitted: bool = False) -> tuple[Tensor, Tensor]:
        """([n, length], [n, length]) the lists re-ranked, and the scores, descending.

        cross_fitted: everyone is re-ranked by the weights that their own fold did not help to fit
        """
        rows = torch.arange(len(self.users), device=self.users.device)
        choices = (weights.folds if cross_fitted else weights.everyone[None]).to(self.popularity)
        lists, scores = (
            torch.empty(*self.lists.shape, dtype=dtype, device=rows.device)
            for dtype in (self.lists.dtype, self.popularity.dtype)
        )
        for mine in torch.split(rows, SCORED_USERS):
            features = self._centred(mine, weights.centre)
            found = torch.bmm(features, choices[(mine + self.first) % len(choices), :, None])[..., 0]
            lists[mine], scores[mine] = _ordered(self.lists[mine], found)
        return lists, scores

    def _centred(self, rows: Tensor, centre: Tensor) -> Tensor:
        """[b, L, F] the features of rows [b], as `fit` has made them or made now."""
        if self.made is not None and len(rows) and int(rows[-1]) < len(self.made[0]):
            return self.made[1][self.made[0][rows]]
        return self.features(rows)[0].sub_(centre)

    def features(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """([b, L, F], [b, L]) the features of what is listed in rows [b] of `users`, and where a list is shorter."""
        lists, users = self.lists[rows, :TOP], self.users[rows]
        ranks = self._ranks(lists, rows)
        without = [
            (ranks[place], each.listed[rows]) for place, each in enumerate(self.voters) if each.listed is not None
        ]
        steady = [
            (ranks[place], each.consistency[rows])
            for place, each in enumerate(self.voters)
            if each.consistency is not None
        ]
        width = n_features(len(self.voters), len(self.heads), len(without), len(steady))
        features = self.popularity.new_empty(*lists.shape, width)

        def fill(block: Tensor) -> None:
            mine, items = users[block], lists[block].long().clamp(min=0)
            histories = self.log.of(mine)
            of_heads = [each(mine, items, histories) for each in self.heads]
            of_lists = [listed_features(listed[block], ranked[block], self.top_k) for ranked, listed in without]
            popularity, activity = self.popularity[items], self.activity[mine]
            of_time = [at_ranks(each[block, :, None], ranked[block], self.top_k) for ranked, each in steady]
            features[block] = feature_rows(
                ranks[:, block], popularity, activity, of_heads, of_lists, self.top_k, self.temperature, of_time
            )

        for _ in in_blocks(fill, list(self.log.blocks(users)), lists.device):
            pass
        return features, lists == NOTHING

    def _ranks(self, lists: Tensor, rows: Tensor) -> Tensor:
        """[voters, b, L] int32 the rank that each voter gives the listed items; K where it does not list them."""
        size = block_of_users(lists.device, self.n_items)
        blocks = []
        for begin in range(0, max(len(lists), 1), size):  # nobody may have anything to learn from
            mine = slice(begin, begin + size)
            ranked = [each.lists[rows[mine], : self.top_k] for each in self.voters]
            blocks.append(ranks_over_time(lists[mine].long(), ranked, self.n_items))
        return torch.cat(blocks, 1)


def n_features(voters: int, heads: int, without: int, steady: int = 0) -> int:
    """Of so many voters, with vectors and without, and those with several rankings among them."""
    return VOTER_FEATURES * voters + CURVE_FEATURES + HEAD_FEATURES * heads + LIST_FEATURES * without + steady


def _blocks(counts: list[int]) -> list[list[slice]]:
    """Of each fold, its rows in blocks. counts: rows of each fold, which lie together."""
    bounds = list(accumulate(counts, initial=0))
    return [
        [slice(begin, min(begin + USERS, last)) for begin in range(first, last, USERS)]
        for first, last in pairwise(bounds)
    ]


def _ordered(lists: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """([users, L], [users, L]) lists by the scores [users, TOP] of their first items, and the scores of all.

    Ties as before, -1 at the end. What is not re-ranked stays behind, each a step of 1 below the one above.
    """
    reranked = scores.shape[1]
    scores = scores.masked_fill(lists[:, :reranked] == NOTHING, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    below = scores[:, -1:] - torch.arange(1, lists.shape[1] - reranked + 1, device=lists.device)
    return torch.cat([lists[:, :reranked].gather(1, order), lists[:, reranked:]], 1), torch.cat([scores, below], 1)


def popularity_and_activity(train: csr_array, group: ProcessGroup = ALONE) -> tuple[Tensor, Tensor]:
    """([items], [users]) p and q; of several processes each has the log of its own users."""
    sums = torch.from_numpy(np.bincount(train.indices, train.data, train.shape[1]).astype(np.float64))
    group.all_reduce([sums])
    of_items, of_users = _logarithms_of(sums.numpy()), _logarithms(train)
    parts = (of_items, _moments_of(of_items)), (of_users, _moments_of(group.join(of_users)))
    popularity, activity = ((each - mean) / deviation for each, (mean, deviation) in parts)
    return popularity, activity


def _logarithms(rows: csr_array) -> Tensor:
    """[n] of the sum of the weights of each row, at least 1."""
    return _logarithms_of(np.asarray(rows.sum(axis=1, dtype=np.float64)))


def _logarithms_of(sums: NDArray[np.float64]) -> Tensor:
    """[n] of sums [n], at least 1."""
    return torch.from_numpy(np.log(np.maximum(sums, 1.0)))


def _moments_of(logs: Tensor) -> tuple[Tensor, Tensor]:
    return logs.mean(), logs.std(correction=0).clamp(min=1e-9)


def listed_features(listed: Tensor, ranks: Tensor, top_k: int) -> Tensor:
    """[b, L, 4] of a voter without vectors: what is known of the items that it lists, and 1; 0 of all others.

    listed: [b, K, 3]; ranks: [b, L], K where an item is not listed
    """
    there = (ranks < top_k)[..., None]
    return torch.cat([at_ranks(listed, ranks, top_k), there.to(listed)], -1)


def at_ranks(listed: Tensor, ranks: Tensor, top_k: int) -> Tensor:
    """[b, L, c] what is known [b, K, c] of a list at ranks [b, L]; 0 where an item is not listed."""
    place = ranks.long().clamp(max=listed.shape[1] - 1)[..., None].expand(-1, -1, listed.shape[2])
    return listed.gather(1, place) * (ranks < top_k)[..., None]


def feature_rows(
    ranks: Tensor, popularity: Tensor, activity: Tensor, of_heads: Sequence[Tensor], of_lists: Sequence[Tensor],
    top_k: int, temperature: float, of_time: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """[b, L, F] the features: of voters, popularity's curve, of heads, of consistency, then of voters without vectors.

    ranks: [voters, b, L], K where a voter does not list an item; popularity: [b, L] p; activity: [b] q;
    of_heads: of each head [b, L, N_FEATURES]; of_lists: of each voter without vectors [b, L, 4]; of_time: of each voter
    with several rankings [b, L, 1]
    """
    ranked = ranks < top_k
    importance = [rank_importance(ranks.to(popularity), temperature * factor) * ranked for factor in TEMPERATURES]
    votes = torch.stack(importance, -1).permute(1, 2, 0, 3).flatten(2)  # [b, L, 3 voters]
    p, q = popularity[..., None], activity[:, None, None].expand_as(popularity[..., None])
    curve = torch.cat([p, p**2, p**3, p * q, p**2 * q], -1)
    heads, lists = (
        [torch.cat([each, each[..., :pair] * p, each[..., :pair] * q], -1) for each in some]
        for some, pair in ((of_heads, PAIR_FEATURES), (of_lists, LISTED_FEATURES - 1))
    )
    return torch.cat([votes, curve, *heads, *of_time, *lists], -1)
