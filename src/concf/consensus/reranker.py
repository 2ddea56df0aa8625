"""The re-ranker: a linear model over votes and head features, fitted on the validation part (stacking).

The consensus of the voters is re-ranked by

    s(u, i) = sum_v sum_t w_vt e^(-r/t) + sum_h [a_h + b_h p_i + c_h q_u] . x_h + d_h . y_h
              + e . (p_i, p_i^2, p_i^3, p_i q_u, p_i^2 q_u)

with r the rank that voter v gives the item (an item outside its first K earns nothing), t a quarter of T, T and four
times T; x_h the features of head h for the pair, y_h its score and its features of the item alone (`features.py`); p_i
and q_u the logarithms of the item's number of users and of the user's number of items, standardised. The weights
maximise the log-likelihood of a softmax of s over each user's list, of what that user holds out for validation. A ridge
penalty draws them to the plain consensus, where w_vT is the voter's weight and all else 0: with few users there is
little to learn from. The problem is convex and solved by Newton's method from there, so that the weights depend on the
features and the validation part alone. Validation itself uses cross-fitting over users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, block_of_users, rank_importance, ranks_over_time
from concf.consensus.features import N_FEATURES, PAIR_FEATURES, HeadFeatures, Histories
from concf.evaluation.validation import Validation
from concf.model.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup

TEMPERATURES = (0.25, 1.0, 4.0)  # t / T
PLAIN = 1  # where T is
VOTER_FEATURES, CURVE_FEATURES = len(TEMPERATURES), 5  # of a voter, and of popularity and activity alone ...
HEAD_FEATURES = N_FEATURES + 2 * PAIR_FEATURES  # ... and of a head
PENALTY = 10.0  # of a weight's square, times the variance of its feature; a user's cost has weight 1
LEAST_VARIANCE = 1e-6  # of a feature that never changes, and so gets no weight
TOP = 150  # items of a list that are re-ranked; the rest stays as it is
MOST_LEARNERS = 8192  # users that weights are fitted on, at most
STEPS = 50  # of Newton, at most
USERS = 256  # that go through a step of Newton together ...
SCORED_USERS = 1024  # ... and whose features are held at a time, of those not fitted on


class Reranked(NamedTuple):
    """Re-ranked lists.

    lists: [users, L]; scores: [users, L], descending; cross_fitted: [users, L] lists to validate by: each validated
    user's is ranked by weights that were fitted on the other half of the users
    """

    lists: Tensor
    scores: Tensor
    cross_fitted: Tensor


class Candidates(NamedTuple):
    """What is re-ranked.

    lists: [users, L] the items; ranks: [voters, users, L] the rank that each voter gives them; heads: the features of
    the heads that have vectors
    """

    lists: Tensor
    ranks: Tensor
    heads: Sequence[HeadFeatures]


class TrainingSet(NamedTuple):
    """What the weights are fitted on.

    features: [users, L, F], centred; empty: [users, L] where a list is shorter; held_out: [users, L] the items that the
    users hold out for validation; prior: [F] the weights of the plain consensus, float64; penalty: [F] of the squared
    distance from them; centre: [F] what was subtracted from all features
    """

    features: Tensor
    empty: Tensor
    held_out: Tensor
    prior: Tensor
    penalty: Tensor
    centre: Tensor


class Reranker:
    """Fits the weights anew at every consensus. top_k: K; temperature: T; users: whom this process ranks for."""

    def __init__(
        self, train: csr_array, validation: Validation, top_k: int, temperature: float, users: slice,
        device: torch.device, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        self.popularity, activity = (
            each.to(device, torch.get_default_dtype()) for each in popularity_and_activity(train)
        )
        self.activity = activity[users]
        self.log = Histories(train, users, device)
        self.validation, self.top_k, self.temperature, self.group = validation, top_k, temperature, group
        everyone = validation.validated
        stride = max(1, -(-len(everyone) // MOST_LEARNERS))
        learners = everyone[::stride]
        self.folds = (validation.users + users.start) // stride % 2
        self.learners = torch.from_numpy(np.isin(validation.users.cpu().numpy() + users.start, learners)).to(device)
        self.weights = torch.zeros(0, dtype=torch.float64)

    def __call__(
        self, lists: Tensor, voters: Sequence[Tensor], voter_weights: Sequence[float], heads: Sequence[Factors]
    ) -> Reranked:
        """The lists, re-ranked.

        lists: [users, L] int32; voters: the rankings [users, M] of each; voter_weights: of each;
        heads: the vectors of those that have some
        """
        first = lists[:, :TOP]
        candidates = Candidates(first, self._ranks(first, voters), [HeadFeatures(each, self.log) for each in heads])
        users, folds = self.validation.users[self.learners], self.folds[self.learners]
        training = self._training_set(users, candidates, voter_weights)
        some = training.held_out.any(1)
        self.weights = self._fit(training, some, training.prior)
        by_half = [self._fit(training, some & (folds == fold), self.weights) for fold in (0, 1)]
        scores = self._scores(users, candidates, training)
        cross_fitted = scores.clone()
        for fold, weights in enumerate(reversed(by_half)):
            half = folds == fold
            cross_fitted[users[half]] = training.features[half] @ weights.to(training.features)
        reranked, scores = _ordered(lists, scores)
        return Reranked(reranked, scores, _ordered(lists, cross_fitted)[0])

    def _training_set(self, users: Tensor, candidates: Candidates, voter_weights: Sequence[float]) -> TrainingSet:
        features = self._features(users, candidates)
        empty, held_out = candidates.lists[users] == NOTHING, self.validation.held_out(candidates.lists)[self.learners]
        weights = torch.tensor(voter_weights, dtype=torch.float64, device=features.device)
        prior = torch.zeros(features.shape[2], dtype=torch.float64, device=features.device)
        prior[PLAIN : VOTER_FEATURES * len(voter_weights) : VOTER_FEATURES] = weights / weights.mean()
        centre, variance = self._moments(features, empty)
        return TrainingSet(
            features.sub_(centre), empty, held_out, prior, PENALTY * variance.clamp(min=LEAST_VARIANCE), centre
        )

    def _scores(self, learners: Tensor, candidates: Candidates, training: TrainingSet) -> Tensor:
        """[users, L] by the weights: of those fitted on, whose features are there, and of all others."""
        everyone = torch.arange(len(candidates.lists), device=learners.device)
        weights = self.weights.to(training.features)
        scores = training.features.new_empty(candidates.lists.shape)
        scores[learners] = training.features @ weights
        others = everyone[~torch.isin(everyone, learners)]
        for begin in range(0, len(others), SCORED_USERS):
            mine = others[begin : begin + SCORED_USERS]
            scores[mine] = (self._features(mine, candidates) - training.centre) @ weights
        return scores

    def _ranks(self, lists: Tensor, voters: Sequence[Tensor]) -> Tensor:
        """[voters, users, L] int32 the rank that each voter gives the listed items; K where it does not list them."""
        size = block_of_users(lists.device, len(self.popularity))
        blocks = []
        for begin in range(0, len(lists), size):
            mine = slice(begin, begin + size)
            ranked = [each[mine, : self.top_k].long() for each in voters]
            blocks.append(ranks_over_time(lists[mine].long(), ranked, len(self.popularity)))
        return torch.cat(blocks, 1)

    def _features(self, users: Tensor, candidates: Candidates) -> Tensor:
        """[b, L, F] the features of what is listed for users [b]."""
        n_features = VOTER_FEATURES * len(candidates.ranks) + CURVE_FEATURES + HEAD_FEATURES * len(candidates.heads)
        features = self.popularity.new_empty(len(users), candidates.lists.shape[1], n_features)
        for block in self.log.blocks(users):
            mine = users[block]
            items = candidates.lists[mine].long().clamp(min=0)
            of_heads = [each(mine, items) for each in candidates.heads]
            ranks, popularity, activity = candidates.ranks[:, mine], self.popularity[items], self.activity[mine]
            features[block] = feature_rows(ranks, popularity, activity, of_heads, self.top_k, self.temperature)
        return features

    def _moments(self, features: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
        """([F], [F]) the mean of each feature, and its variance, float64. features: [users, L, F]; empty: [users, L].

        No softmax notices a mean that is taken away, but the rounding of single precision does.
        """
        total = torch.zeros(features.shape[2], dtype=torch.float64, device=features.device)
        square, count = torch.zeros_like(total), (~empty).sum().double()[None]
        for begin in range(0, len(features), USERS):
            mine = slice(begin, begin + USERS)
            rows = features[mine][~empty[mine]].double()
            total, square = total + rows.sum(0), square + rows.square().sum(0)
        self.group.all_reduce([count, total, square])
        mean = total / count.clamp(min=1)
        return mean.to(features.dtype), square / count.clamp(min=1) - mean.square()

    def _fit(self, training: TrainingSet, rows: Tensor, begin: Tensor) -> Tensor:
        """[F] float64 the best weights. rows: [users] whom to fit on; begin: the first weights."""
        users = rows.nonzero()[:, 0]
        weights, (cost, step) = begin, self._newton_step(begin, training, users)
        for _ in range(STEPS):
            if step.abs().max() < torch.finfo(training.features.dtype).eps ** 0.5:
                break
            further = self._newton_step(weights - step, training, users)
            if further[0] > cost * (1 + 1e-6):  # too far: Newton's steps are for the neighbourhood of the minimum
                step = step / 2
            else:
                weights, (cost, step) = weights - step, further
        return weights

    def _newton_step(self, weights: Tensor, training: TrainingSet, users: Tensor) -> tuple[float, Tensor]:
        """The penalised cost of the weights, and Newton's step to its minimum. users: [n] rows to fit on."""
        cost, slope = weights.new_zeros(1), torch.zeros_like(weights)
        curvature = torch.zeros(len(weights), len(weights), dtype=weights.dtype, device=weights.device)
        for begin in range(0, len(users), USERS):
            mine = users[begin : begin + USERS]
            features, empty, held_out = training.features[mine], training.empty[mine], training.held_out[mine]
            scores = (features @ weights.to(features)).masked_fill(empty, -torch.inf)
            wanted = held_out.to(features) / held_out.sum(1, keepdim=True)
            cost += (scores.logsumexp(1) - (wanted * scores.masked_fill(empty, 0)).sum(1)).sum()
            share = scores.softmax(1)
            slope += torch.einsum("ul,ulf->f", share - wanted, features)
            mean = torch.einsum("ul,ulf->uf", share, features)
            curvature += (features * share[:, :, None]).flatten(0, 1).T @ features.flatten(0, 1) - mean.T @ mean
        self.group.all_reduce([cost, slope, curvature])
        away = weights - training.prior
        curvature.diagonal().add_(2 * training.penalty)
        step = torch.linalg.solve(curvature, slope + 2 * training.penalty * away)
        return float(cost + (training.penalty * away.square()).sum()), step


def _ordered(lists: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """([users, L], [users, L]) lists by the scores [users, TOP] of their first items, and the scores of all.

    Ties as before, -1 at the end. What is not re-ranked stays behind, each a step of 1 below the one above.
    """
    reranked = scores.shape[1]
    scores = scores.masked_fill(lists[:, :reranked] == NOTHING, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    below = scores[:, -1:] - torch.arange(1, lists.shape[1] - reranked + 1, device=lists.device)
    return torch.cat([lists[:, :reranked].gather(1, order), lists[:, reranked:]], 1), torch.cat([scores, below], 1)


def popularity_and_activity(train: csr_array) -> tuple[Tensor, Tensor]:
    """([items], [users]) p and q."""
    counts = np.bincount(train.indices, minlength=train.shape[1]), np.diff(train.indptr)
    logs = [torch.from_numpy(np.log(np.maximum(each, 1.0))) for each in counts]
    popularity, activity = ((each - each.mean()) / each.std(correction=0).clamp(min=1e-9) for each in logs)
    return popularity, activity


def feature_rows(
    ranks: Tensor, popularity: Tensor, activity: Tensor, of_heads: Sequence[Tensor], top_k: int, temperature: float
) -> Tensor:
    """[b, L, F] the features: voter by voter, popularity's curve, then head by head.

    ranks: [voters, b, L], K where a voter does not list an item; popularity: [b, L] p; activity: [b] q;
    of_heads: of each head [b, L, N_FEATURES]
    """
    ranked = ranks < top_k
    importance = [rank_importance(ranks.to(popularity), temperature * factor) * ranked for factor in TEMPERATURES]
    votes = torch.stack(importance, -1).permute(1, 2, 0, 3).flatten(2)  # [b, L, 3 voters]
    p, q = popularity[..., None], activity[:, None, None].expand_as(popularity[..., None])
    curve = torch.cat([p, p**2, p**3, p * q, p**2 * q], -1)
    with_context = [
        torch.cat([each, each[..., :PAIR_FEATURES] * p, each[..., :PAIR_FEATURES] * q], -1) for each in of_heads
    ]
    return torch.cat([votes, curve, *with_context], -1)
