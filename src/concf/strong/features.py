"""Features of a user and an item for the re-ranker, in addition to the votes.

A rank says how high an item is for its user, but not whether the score is high *for that item*. With s the
score divided by the standard deviation of all the head's scores, m_i and d_i the mean and the standard deviation of an
item's scores over all users, and o_i their mean over the users of the item:

    item z-score          (s - m_i) / d_i            relative to all users
    relative score        (s - m_i) / (o_i - m_i)    0: like the average user, 1: like the users of the item
    history similarity    ln(1/10 + l_k / l_k of all items), k = 2, 8; l_k the mean of c^k over the user's history,
                          c the cosine between the vectors of its items and the item's

Beside them the score itself, and three features of the item alone: ln d_i, ln(o_i - m_i), m_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.voters import LEAST_GAP, LEAST_STD, RELATIVE_SCORE, Z_SCORE
from concf.evaluation.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup

PAIR_FEATURES = 4  # of user and item: z-score, relative score, two similarities
ITEM_FEATURES = 3
N_FEATURES = PAIR_FEATURES + 1 + ITEM_FEATURES
LONGEST_HISTORY = 512  # most items of a user's history that are used, evenly spaced
SAMPLED_ITEMS = 4096  # sample of the items for the mean similarity to all items,
ITEM_BLOCK = 4096  # computed for so many items at a time
CPU_USERS, GPU_USERS = 64, 1024  # users of a block
PAIR_BLOCK = 1 << 16  # pairs of the log that are scored at a time
LEAST_SIMILARITY = 1e-9  # lower bound of the mean similarity to all items


class Histories:
    """Histories of users. train: log of all users; users: rows of those whose histories are needed."""

    def __init__(self, train: csr_array, users: slice, device: torch.device) -> None:
        log = train if users == slice(0, train.shape[0]) else train[users]
        self.train, self.device, self.offset = train, device, users.start
        self.first, self.items = self._tensor(log.indptr), self._tensor(log.indices)

    def _tensor(self, numbers: NDArray[Any]) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int64)).to(self.device)

    @cached_property
    def by_item(self) -> tuple[Tensor, Tensor]:
        """([items + 1], [pairs]) offsets and users of the log in CSC order."""
        if self.device.type == "cpu":
            columns = self.train.tocsc()
            return self._tensor(columns.indptr), self._tensor(columns.indices)
        item, count = self._tensor(self.train.indices), self._tensor(np.diff(self.train.indptr))
        user = torch.repeat_interleave(torch.arange(len(count), device=self.device), count)
        of_item = torch.bincount(item, minlength=self.train.shape[1])
        return torch.cat([of_item.new_zeros(1), of_item.cumsum(0)]), user[item.argsort(stable=True)]

    def blocks(self, users: Tensor) -> Iterator[Tensor]:
        """Yield blocks of users with histories of similar length, as indices [b] into `users`."""
        by_length = (self.first[users + 1] - self.first[users]).sort(stable=True).indices
        size = CPU_USERS if users.device.type == "cpu" else GPU_USERS
        for begin in range(0, len(users), size):
            yield by_length[begin : begin + size]

    def of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """([b, H], [b, H]) items of the histories of users [b], and a mask of the valid ones."""
        first, count = self.first[users], self.first[users + 1] - self.first[users]
        most = count.clamp(max=LONGEST_HISTORY)
        position = torch.arange(max(int(most.max()), 1), device=users.device)
        there = position < most[:, None]
        spaced = position * count[:, None] // most.clamp(min=1)[:, None]
        at = (first[:, None] + spaced).where(there, 0)
        return (self.items[at] if len(self.items) else torch.zeros_like(at)), there


class HeadFeatures:
    """Features of one head, from its vectors and from statistics of every item.

    least_std: lower bound of d_i
    typical: whether the mean similarity to all items is precomputed for every item, or computed when needed
    group:   each process has the vectors and the log of its local users; statistics are of all users
    direction, norm: [items, d] item vectors of length 1, and [items] their lengths
    """

    def __init__(
        self, factors: Factors, log: Histories, typical: bool = True, group: ProcessGroup = ALONE,
        least_std: float = LEAST_STD,
    ) -> None:  # fmt: skip
        self.user, self.bias, self.log, self.group = factors.user, factors.bias, log, group
        user, bias, item = self.user, self.bias, factors.item
        n, centre = sum(group.lengths(user)), user.sum(0)
        group.all_reduce([centre])
        centre /= n
        mean = item @ centre + (0 if bias is None else bias)
        away = user - centre
        spread = away.T @ away
        group.all_reduce([spread])
        square = ((item @ (spread / n)) * item).sum(1).clamp(min=0)
        self.unit = (square.mean() + mean.var(correction=0)).sqrt().clamp(min=torch.finfo(mean.dtype).tiny)
        self.mean, self.std = mean / self.unit, (square.sqrt() / self.unit).clamp(min=least_std)
        self.gap = (self._of_its_users(item, mean) / self.unit - self.mean).clamp(min=LEAST_GAP)
        self.item_features = torch.stack([self.std.log(), self.gap.log(), self.mean], -1)  # [items, 3]
        self.norm = item.norm(dim=1)
        self.direction = item / self.norm.clamp(min=torch.finfo(item.dtype).tiny)[:, None]
        every = torch.arange(len(item), device=item.device)
        self.typical = torch.cat([self._typical(rows) for rows in torch.split(every, ITEM_BLOCK)]) if typical else None

    def folded(self, user: Tensor, log: Histories) -> HeadFeatures:
        """Features for users who are not in the log, by their vectors [n, d]; item statistics stay."""
        others = copy(self)
        others.user, others.log = user, log
        return others

    def _of_its_users(self, vectors: Tensor, mean: Tensor) -> Tensor:
        """[items] o_i: mean score of each item by its users; `mean` [items] for one without. vectors: [items, d]"""
        first, user = self.log.by_item
        count = first.diff()
        item = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
        scores = torch.empty(len(item), dtype=vectors.dtype, device=item.device)
        for begin in range(0, len(item), PAIR_BLOCK):
            pairs = slice(begin, begin + PAIR_BLOCK)
            scores[pairs] = F.embedding(user[pairs], self.user).mul_(F.embedding(item[pairs], vectors)).sum(1)
        sums = torch.segment_reduce(scores, "sum", offsets=first, axis=0)
        self.group.all_reduce([sums])
        self.group.all_reduce([count])
        own = sums / count.clamp(min=1) + (0 if self.bias is None else self.bias)
        return own.where(count > 0, mean)

    def _typical(self, items: Tensor) -> Tensor:
        """[n, 2] mean of c^2 and of c^8 of items [n] over all other items, or a sample of them."""
        n = len(self.direction)
        others = torch.arange(min(n, SAMPLED_ITEMS), device=items.device) * n // min(n, SAMPLED_ITEMS)
        cosine = self.direction[items] @ self.direction[others].T
        return (_powers(cosine.masked_fill_(items[:, None] == others, 0)) / len(others)).clamp(min=LEAST_SIMILARITY)

    def __call__(self, users: Tensor, items: Tensor, histories: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[b, L, N_FEATURES] features of listed items [b, L] for users [b]: of the pair, the score, of the item.

        histories: `log.of(users)`, where it is known
        """
        directions = F.embedding(items, self.direction)  # [b, L, d]; five times as fast as an index
        used, valid = self.log.of(users) if histories is None else histories
        user = self.user[users + self.log.offset, None]
        both = torch.cat([F.embedding(used, self.direction), user], 1)  # [b, H + 1, d]
        products = torch.bmm(directions, both.transpose(1, 2))  # [b, L, H + 1]
        cosine, score = products[..., :-1], products[..., -1] * self.norm[items]
        if self.bias is not None:
            score = score + self.bias[items]
        score = score / self.unit
        above = score - self.mean[items]
        near = _powers(cosine.mul_(valid[:, None])) / valid.sum(1).clamp(min=1)[:, None, None]
        typical = self._typical(items.flatten()).view_as(near) if self.typical is None else self.typical[items]
        similarity = (near / typical + 0.1).log()
        relative = [(above / self.std[items]).clamp(*Z_SCORE), (above / self.gap[items]).clamp(*RELATIVE_SCORE)]
        return torch.cat([torch.stack(relative, -1), similarity, score[..., None], self.item_features[items]], -1)


def _powers(cosine: Tensor) -> Tensor:
    """[..., 2] sums of c^2 and c^8 over the last dimension; overwrites c."""
    square = cosine.square_()
    sums = square.sum(-1)
    return torch.stack([sums, square.square_().square_().sum(-1)], -1)
