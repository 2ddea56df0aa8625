"""The judge: how much every vote counts, learned from the validation part.

What the voters agree on is ranked anew by

    s(u, i) = sum_v [sum_t w_vt e^(-r/t) + e^(-r/T) (a_v p_i + b_v q_u)] + c . (p_i, p_i^2, p_i^3, p_i q_u, p_i^2 q_u)

with r the rank that voter v gives the item (one outside its first K places earns nothing), t a quarter of T, T and four
times T, p_i and q_u the logarithms of how many users used the item and of how many items the user used, both with mean
0 and spread 1. The weights are those under which a softmax of s over a user's list gives most to what that user holds
out for validation. A penalty draws them to the plain consensus, where w_vT is the voter's voice and all else 0: with
few users there is little to learn. The problem is convex, and solved by Newton's steps from there, so that the weights
depend on the votes and the validation part alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.learning.consensus import NOTHING, block_of_users, rank_importance, ranks_over_time
from concf.learning.validation import Validation
from concf.learning.world import ALONE, World

SHARPNESS = (0.25, 1.0, 4.0)  # t / T
PLAIN = 1  # where T is
VOTER, CURVE = 5, 5  # figures of a voter, and of popularity and activity alone
PENALTY = 1.0  # of a weight's square; a user's cost has weight 1
TOP = 100  # places of a list that are learned from
STEPS = 50  # of Newton, at most
USERS = 256  # whose figures are held at a time


class Judge:
    """Learns the weights anew at every consensus. places: K; temperature: T; users: whom this process ranks for."""

    def __init__(
        self, train: csr_array, validation: Validation, places: int, temperature: float, users: slice,
        device: torch.device, world: World = ALONE,
    ) -> None:  # fmt: skip
        self.popularity, activity = (each.to(device, torch.get_default_dtype()) for each in standing(train))
        self.activity = activity[users]
        self.validation, self.places, self.temperature, self.world = validation, places, temperature, world
        self.folds = (validation.users + users.start) % 2
        self.weights = torch.zeros(0, dtype=torch.float64)

    def __call__(self, lists: Tensor, voters: Sequence[Tensor], voices: Sequence[float]) -> tuple[Tensor, Tensor]:
        """([users, L], [users, L]) the lists in the judge's order, by weights learned from all; and to validate by.

        In the second, whoever is validated is ranked by weights that were learned from the other half of the users.
        lists: [users, L] int32; voters: the rankings [users, M] of each; voices: how loud each is
        """
        plain = torch.zeros(VOTER * len(voices) + CURVE, dtype=torch.float64, device=lists.device)
        loud = torch.tensor(voices, dtype=torch.float64, device=lists.device)
        plain[PLAIN:-CURVE:VOTER] = loud / loud.mean()
        ranks = self._ranks(lists, voters)
        held = self.validation.held(lists[:, :TOP])
        told = held.any(1)
        self.weights = self._learned(lists, ranks, held, told, plain, plain)
        halves = (told & (self.folds == fold) for fold in (0, 1))
        by_half = [self._learned(lists, ranks, held, half, plain, self.weights) for half in halves]
        everyone = torch.arange(len(lists), device=lists.device)
        judged = self._ordered(lists, ranks, everyone, self.weights)
        crossed = judged.clone()
        for fold, weights in enumerate(reversed(by_half)):
            mine = self.validation.users[self.folds == fold]
            crossed[mine] = self._ordered(lists, ranks, mine, weights)
        return judged, crossed

    def _ranks(self, lists: Tensor, voters: Sequence[Tensor]) -> Tensor:
        """[voters, users, L] int32 where each voter has the listed items; K where it does not name them."""
        size = block_of_users(lists.device, len(self.popularity))
        blocks = []
        for begin in range(0, len(lists), size):
            mine = slice(begin, begin + size)
            named = [each[mine, : self.places].long() for each in voters]
            blocks.append(ranks_over_time(lists[mine].long(), named, len(self.popularity)))
        return torch.cat(blocks, 1)

    def _learned(
        self, lists: Tensor, ranks: Tensor, held: Tensor, rows: Tensor, plain: Tensor, begin: Tensor
    ) -> Tensor:
        """[5 voters + 5] float64. held: [validated users, TOP]; rows: whom to learn from; begin: the first weights."""
        users, held = self.validation.users[rows], held[rows]
        weights, (cost, step) = begin, self._explained(begin, plain, lists, ranks, held, users)
        for _ in range(STEPS):
            if step.abs().max() < torch.finfo(self.popularity.dtype).eps ** 0.5:
                break
            further = self._explained(weights - step, plain, lists, ranks, held, users)
            if further[0] > cost * (1 + 1e-6):  # too far: Newton's steps are for the neighbourhood of the minimum
                step = step / 2
            else:
                weights, (cost, step) = weights - step, further
        return weights

    def _explained(
        self, weights: Tensor, plain: Tensor, lists: Tensor, ranks: Tensor, held: Tensor, users: Tensor
    ) -> tuple[float, Tensor]:
        """The cost of the weights, and Newton's step towards its minimum. held: [users, TOP]."""
        cost, slope = weights.new_zeros(1), torch.zeros_like(weights)
        curvature = torch.zeros(len(weights), len(weights), dtype=weights.dtype, device=weights.device)
        for begin in range(0, len(users), USERS):
            mine = slice(begin, begin + USERS)
            told, empty = self._figures(lists[:, :TOP], ranks[:, :, :TOP], users[mine])
            scores = (told @ weights.to(told)).masked_fill(empty, -torch.inf)
            wanted = held[mine].to(told) / held[mine].sum(1, keepdim=True)
            cost += (scores.logsumexp(1) - (wanted * scores.masked_fill(empty, 0)).sum(1)).sum()
            share = scores.softmax(1)
            slope += torch.einsum("ul,ulf->f", share - wanted, told)
            mean = torch.einsum("ul,ulf->uf", share, told)
            curvature += (told * share[:, :, None]).flatten(0, 1).T @ told.flatten(0, 1) - mean.T @ mean
        self.world.add([cost, slope, curvature])
        away = weights - plain
        curvature.diagonal().add_(2 * PENALTY)
        step = torch.linalg.solve(curvature, slope + 2 * PENALTY * away)
        return float(cost + PENALTY * away.square().sum()), step

    def _figures(self, lists: Tensor, ranks: Tensor, users: Tensor) -> tuple[Tensor, Tensor]:
        """([b, L, F], [b, L]) the figures of listed items, and which places are empty."""
        listed = lists[users].long()
        popularity = self.popularity[listed.clamp(min=0)]
        told = figures(ranks[:, users], popularity, self.activity[users], self.places, self.temperature)
        return told, listed == NOTHING

    def _ordered(self, lists: Tensor, ranks: Tensor, users: Tensor, weights: Tensor) -> Tensor:
        """[users, L] their lists, best first; ties as before, empty places at the end."""
        ordered = []
        for begin in range(0, len(users), USERS):
            mine = users[begin : begin + USERS]
            told, empty = self._figures(lists, ranks, mine)
            scores = (told @ weights.to(told)).masked_fill(empty, -torch.inf)
            order = scores.sort(dim=1, descending=True, stable=True).indices
            ordered.append(lists[mine].gather(1, order))
        return torch.cat(ordered) if ordered else lists[:0]


def standing(train: csr_array) -> tuple[Tensor, Tensor]:
    """([items], [users]) p and q."""
    counts = np.bincount(train.indices, minlength=train.shape[1]), np.diff(train.indptr)
    logs = [torch.from_numpy(np.log(np.maximum(each, 1.0))) for each in counts]
    popularity, activity = ((each - each.mean()) / each.std(correction=0).clamp(min=1e-9) for each in logs)
    return popularity, activity


def figures(ranks: Tensor, popularity: Tensor, activity: Tensor, places: int, temperature: float) -> Tensor:
    """[b, L, 5 voters + 5] of popularity's type: what the weights are of, voter by voter, then popularity's curve.

    ranks: [voters, b, L], K where a voter does not name an item; popularity: [b, L] p; activity: [b] q
    """
    named = ranks < places
    earned = [rank_importance(ranks.to(popularity), temperature * sharpness) * named for sharpness in SHARPNESS]
    p, q = popularity, activity[:, None].expand_as(popularity)
    votes = torch.stack([*earned, earned[PLAIN] * p, earned[PLAIN] * q], -1)  # [voters, b, L, 5]
    curve = torch.stack([p, p**2, p**3, p * q, p**2 * q], -1)
    return torch.cat([votes.permute(1, 2, 0, 3).flatten(2), curve], -1)
