"""The re-ranker: what counts how much, learned from the validation part.

What the voters agree on is ranked anew by

    s(u, i) = sum_v sum_t w_vt e^(-r/t) + sum_h [a_h + b_h p_i + c_h q_u] . x_h + d_h . y_h
              + e . (p_i, p_i^2, p_i^3, p_i q_u, p_i^2 q_u)

with r the rank that voter v gives the item (one outside its first K places earns nothing), t a quarter of T, T and four
times T; x_h what head h says of the user and the item, and y_h its score and what it says of the item alone
(`evidence.py`); p_i and q_u the logarithms of how many users used the item and of how many items the user used, both
with mean 0 and spread 1. The weights are those under which a softmax of s over a user's list gives most to what that
user holds out for validation. A penalty draws them to the plain consensus, where w_vT is the voter's voter weight and
all else
0: with few users there is little to learn. The problem is convex, and solved by Newton's steps from there, so that the
weights depend on what is heard and on the validation part alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, block_of_users, rank_importance, ranks_over_time
from concf.consensus.features import FIGURES, PAIR_FEATURES, HeadFeatures, Histories
from concf.evaluation.validation import Validation
from concf.model.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup

SHARPNESS = (0.25, 1.0, 4.0)  # t / T
PLAIN = 1  # where T is
VOTER, CURVE = len(SHARPNESS), 5  # figures of a voter, and of popularity and activity alone ...
HEAD = FIGURES + 2 * PAIR_FEATURES  # ... and of a head
PENALTY = 10.0  # of a weight's square, times the variance of what it is of; a user's cost has weight 1
LEAST_VARIANCE = 1e-6  # of what never changes: it tells nothing, and has no weight
TOP = 150  # places of a list that are re-ranked; the rest stays as it is
LEARNERS = 8192  # users that are learned from, at most
STEPS = 50  # of Newton, at most
USERS = 256  # that go through a step of Newton together ...
OTHERS = 1024  # ... and of whom the figures are held at a time, of those that are not learned from


class Reranked(NamedTuple):
    """What a re-ranker makes of lists.

    lists: [users, L] in its order; scores: [users, L], descending; cross-fitted: [users, L] lists to validate by:
    whoever is validated is ranked by weights that were learned from the other half of the users
    """

    lists: Tensor
    scores: Tensor
    cross_fitted: Tensor


class Candidates(NamedTuple):
    """Who is asked about what.

    lists: [users, L] the places that are re-ranked; ranks: [voters, users, L] where each voter has them;
    head_features: the heads that are heard by their vectors too
    """

    lists: Tensor
    ranks: Tensor
    head_features: Sequence[HeadFeatures]


class TrainingSet(NamedTuple):
    """What is learned from.

    told: [users, L, F] the figures of their listed items; empty: [users, L] places without one;
    held: [users, L] what they hold out for validation; plain: [F] the weights of the plain consensus, float64;
    drawn: [F] how strongly each is drawn there; centre: [F] what was taken away from all figures
    """

    told: Tensor
    empty: Tensor
    held: Tensor
    plain: Tensor
    drawn: Tensor
    centre: Tensor


class Reranker:
    """Learns the weights anew at every consensus. places: K; temperature: T; users: whom this process ranks for."""

    def __init__(
        self, train: csr_array, validation: Validation, places: int, temperature: float, users: slice,
        device: torch.device, group: ProcessGroup = ALONE,
    ) -> None:  # fmt: skip
        self.popularity, activity = (each.to(device, torch.get_default_dtype()) for each in standing(train))
        self.activity = activity[users]
        self.log = Histories(train, users, device)
        self.validation, self.places, self.temperature, self.group = validation, places, temperature, group
        everyone = validation.validated
        stride = max(1, -(-len(everyone) // LEARNERS))
        learners = everyone[::stride]
        self.folds = (validation.users + users.start) // stride % 2
        self.learners = torch.from_numpy(np.isin(validation.users.cpu().numpy() + users.start, learners)).to(device)
        self.weights = torch.zeros(0, dtype=torch.float64)

    def __call__(
        self, lists: Tensor, voters: Sequence[Tensor], voter_weights: Sequence[float], heads: Sequence[Factors]
    ) -> Reranked:
        """The lists in the re-ranker's order.

        lists: [users, L] int32; voters: the rankings [users, M] of each; voter weights: how loud each is;
        heads: those whose vectors are looked at too
        """
        asked = lists[:, :TOP]
        candidates = Candidates(asked, self._ranks(asked, voters), [HeadFeatures(each, self.log) for each in heads])
        users, folds = self.validation.users[self.learners], self.folds[self.learners]
        case = self._case(users, candidates, voter_weights)
        some = case.held.any(1)
        self.weights = self._learned(case, some, case.plain)
        by_half = [self._learned(case, some & (folds == fold), self.weights) for fold in (0, 1)]
        scores = self._scores(users, candidates, case)
        cross_fitted = scores.clone()
        for fold, weights in enumerate(reversed(by_half)):
            half = folds == fold
            cross_fitted[users[half]] = case.told[half] @ weights.to(case.told)
        reranked, scores = _ordered(lists, scores)
        return Reranked(reranked, scores, _ordered(lists, cross_fitted)[0])

    def _case(self, users: Tensor, candidates: Candidates, voter_weights: Sequence[float]) -> TrainingSet:
        told = self._told(users, candidates)
        empty, held = candidates.lists[users] == NOTHING, self.validation.held(candidates.lists)[self.learners]
        loud = torch.tensor(voter_weights, dtype=torch.float64, device=told.device)
        plain = torch.zeros(told.shape[2], dtype=torch.float64, device=told.device)
        plain[PLAIN : VOTER * len(voter_weights) : VOTER] = loud / loud.mean()
        centre, variance = self._moments(told, empty)
        return TrainingSet(told.sub_(centre), empty, held, plain, PENALTY * variance.clamp(min=LEAST_VARIANCE), centre)

    def _scores(self, learners: Tensor, candidates: Candidates, case: TrainingSet) -> Tensor:
        """[users, L] by the weights: of those learned from, whose figures are there, and of all others."""
        everyone, weights = torch.arange(len(candidates.lists), device=learners.device), self.weights.to(case.told)
        scores = case.told.new_empty(candidates.lists.shape)
        scores[learners] = case.told @ weights
        others = everyone[~torch.isin(everyone, learners)]
        for begin in range(0, len(others), OTHERS):
            mine = others[begin : begin + OTHERS]
            scores[mine] = (self._told(mine, candidates) - case.centre) @ weights
        return scores

    def _ranks(self, lists: Tensor, voters: Sequence[Tensor]) -> Tensor:
        """[voters, users, L] int32 where each voter has the listed items; K where it does not name them."""
        size = block_of_users(lists.device, len(self.popularity))
        blocks = []
        for begin in range(0, len(lists), size):
            mine = slice(begin, begin + size)
            named = [each[mine, : self.places].long() for each in voters]
            blocks.append(ranks_over_time(lists[mine].long(), named, len(self.popularity)))
        return torch.cat(blocks, 1)

    def _told(self, users: Tensor, candidates: Candidates) -> Tensor:
        """[b, L, F] the figures of what is listed for users [b]."""
        n_figures = VOTER * len(candidates.ranks) + CURVE + HEAD * len(candidates.head_features)
        told = self.popularity.new_empty(len(users), candidates.lists.shape[1], n_figures)
        for block in self.log.blocks(users):
            mine = users[block]
            items = candidates.lists[mine].long().clamp(min=0)
            said = [each(mine, items) for each in candidates.head_features]
            ranks, popularity, activity = candidates.ranks[:, mine], self.popularity[items], self.activity[mine]
            told[block] = figures(ranks, popularity, activity, said, self.places, self.temperature)
        return told

    def _moments(self, told: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
        """([F], [F]) the mean of each figure, and its variance, float64. told: [users, L, F]; empty: [users, L].

        No softmax notices a mean that is taken away, but the rounding of single precision does.
        """
        total = torch.zeros(told.shape[2], dtype=torch.float64, device=told.device)
        square, count = torch.zeros_like(total), (~empty).sum().double()[None]
        for begin in range(0, len(told), USERS):
            mine = slice(begin, begin + USERS)
            figures = told[mine][~empty[mine]].double()
            total, square = total + figures.sum(0), square + figures.square().sum(0)
        self.group.all_reduce([count, total, square])
        mean = total / count.clamp(min=1)
        return mean.to(told.dtype), square / count.clamp(min=1) - mean.square()

    def _learned(self, case: TrainingSet, rows: Tensor, begin: Tensor) -> Tensor:
        """[F] float64 the best weights. rows: [users] whom to learn from; begin: the first weights."""
        users = rows.nonzero()[:, 0]
        weights, (cost, step) = begin, self._explained(begin, case, users)
        for _ in range(STEPS):
            if step.abs().max() < torch.finfo(case.told.dtype).eps ** 0.5:
                break
            further = self._explained(weights - step, case, users)
            if further[0] > cost * (1 + 1e-6):  # too far: Newton's steps are for the neighbourhood of the minimum
                step = step / 2
            else:
                weights, (cost, step) = weights - step, further
        return weights

    def _explained(self, weights: Tensor, case: TrainingSet, users: Tensor) -> tuple[float, Tensor]:
        """The cost of the weights, and Newton's step towards its minimum. users: [n] places of those learned from."""
        cost, slope = weights.new_zeros(1), torch.zeros_like(weights)
        curvature = torch.zeros(len(weights), len(weights), dtype=weights.dtype, device=weights.device)
        for begin in range(0, len(users), USERS):
            mine = users[begin : begin + USERS]
            told, empty, held = case.told[mine], case.empty[mine], case.held[mine]
            scores = (told @ weights.to(told)).masked_fill(empty, -torch.inf)
            wanted = held.to(told) / held.sum(1, keepdim=True)
            cost += (scores.logsumexp(1) - (wanted * scores.masked_fill(empty, 0)).sum(1)).sum()
            share = scores.softmax(1)
            slope += torch.einsum("ul,ulf->f", share - wanted, told)
            mean = torch.einsum("ul,ulf->uf", share, told)
            curvature += (told * share[:, :, None]).flatten(0, 1).T @ told.flatten(0, 1) - mean.T @ mean
        self.group.all_reduce([cost, slope, curvature])
        away = weights - case.plain
        curvature.diagonal().add_(2 * case.drawn)
        step = torch.linalg.solve(curvature, slope + 2 * case.drawn * away)
        return float(cost + (case.drawn * away.square()).sum()), step


def _ordered(lists: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """([users, L], [users, L]) lists by the scores [users, TOP] of their first places, and the scores of all.

    Ties as before, empty places at the end. What is not re-ranked stays behind, each a step of 1 below the one above.
    """
    reranked = scores.shape[1]
    scores = scores.masked_fill(lists[:, :reranked] == NOTHING, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    below = scores[:, -1:] - torch.arange(1, lists.shape[1] - reranked + 1, device=lists.device)
    return torch.cat([lists[:, :reranked].gather(1, order), lists[:, reranked:]], 1), torch.cat([scores, below], 1)


def standing(train: csr_array) -> tuple[Tensor, Tensor]:
    """([items], [users]) p and q."""
    counts = np.bincount(train.indices, minlength=train.shape[1]), np.diff(train.indptr)
    logs = [torch.from_numpy(np.log(np.maximum(each, 1.0))) for each in counts]
    popularity, activity = ((each - each.mean()) / each.std(correction=0).clamp(min=1e-9) for each in logs)
    return popularity, activity


def figures(
    ranks: Tensor, popularity: Tensor, activity: Tensor, said: Sequence[Tensor], places: int, temperature: float
) -> Tensor:
    """[b, L, F] what the weights are of: voter by voter, popularity's curve, then head by head.

    ranks: [voters, b, L], K where a voter does not name an item; popularity: [b, L] p; activity: [b] q;
    said: of each head [b, L, FIGURES]
    """
    named = ranks < places
    earned = [rank_importance(ranks.to(popularity), temperature * sharpness) * named for sharpness in SHARPNESS]
    votes = torch.stack(earned, -1).permute(1, 2, 0, 3).flatten(2)  # [b, L, 3 voters]
    p, q = popularity[..., None], activity[:, None, None].expand_as(popularity[..., None])
    curve = torch.cat([p, p**2, p**3, p * q, p**2 * q], -1)
    heard = [torch.cat([each, each[..., :PAIR_FEATURES] * p, each[..., :PAIR_FEATURES] * q], -1) for each in said]
    return torch.cat([votes, curve, *heard], -1)
