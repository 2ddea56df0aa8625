"""Features of a user and an item for the re-ranker, in addition to the votes.

A rank says how high an item is for its user, but not whether the score is high *for that item*. With s the
score divided by the standard deviation of all the head's scores, m_i and d_i the mean and the standard deviation of an
item's scores over all users, and o_i their mean over the users of the item:

    item z-score          (s - m_i) / d_i            relative to all users
    relative score        (s - m_i) / (o_i - m_i)    0: like the average user, 1: like the users of the item
    history similarity    ln(1/10 + l_k / l_k of all items), k = 2, 8; l_k the mean of c^k over the user's history,
                          c the cosine between the vectors of its items and the item's

Beside them the score itself, and three features of the item alone, standardised over the pairs of the log, since with
more pairs their spread changes: ln d_i, ln(o_i - m_i), m_i.

Where a log is split by time, features of time may join (`Clock`). Ages are counted in spans of the log: 0 for its
newest pair, 1 for its oldest. With n_w the pairs of an item among the newest share w of the log, n all its pairs, and
e = 1/1000:

    trend       ln((n_w + 1) / (w n + 1)), w = .3, .1, .03, .01
    age         ln(e + age of the item's last pair), ln(e + age of its first pair)
    newest      mean cosine between the item and the items of the user's newest set of equal times; the same for the
                newest sets that have five items or more together
    idleness z  ln(e + age of the user's last pair), standardised

The features of a pair are trend, age and newest, and each of them times z. At a time after the newest pair all ages are
higher, by the same; z is standardised by the mean and deviation at the newest pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import products
from concf.baselines.neighbours import runs
from concf.baselines.sequences import Sequences
from concf.baselines.timed import ages
from concf.consensus.voters import LEAST_GAP, LEAST_STD, RELATIVE_SCORE, TIMED_LEAST_STD, Z_SCORE, shrunk, usable
from concf.evaluation.scorers import Factors
from concf.runtime.process_group import ALONE, ProcessGroup

PAIR_FEATURES = 4  # of user and item: z-score, relative score, two similarities
ITEM_FEATURES = 3
N_FEATURES = PAIR_FEATURES + 1 + ITEM_FEATURES
LONGEST_HISTORY = 512  # most items of a user's history that are used, evenly spaced
SAMPLED_ITEMS = 2048  # sample of the items for the mean similarity to all items,
ITEM_BLOCK = 4096  # items of a block in its computation
CPU_USERS, GPU_USERS = 64, 1024  # users of a block
PAIR_BLOCK = 1 << 16  # pairs of the log that are scored at a time
LEAST_NORM = 1e-12  # of an item vector; a shorter one has no direction
LEAST_SIMILARITY = 1e-9  # lower bound of the mean similarity to all items
SHARES = (0.3, 0.1, 0.03, 0.01)  # of the newest pairs
LEAST_AGE = 1e-3
NEWEST = 5  # fewest items of the second bag
TREND_FEATURES = len(SHARES) + 2
TIME_FEATURES = 2 * (TREND_FEATURES + 2)


class Histories:
    """Histories of users. train: log of all users; users: rows whose histories are needed"""

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
        valid = position < most[:, None]
        spaced = position * count[:, None] // most.clamp(min=1)[:, None]
        at = (first[:, None] + spaced).where(valid, 0)
        return (self.items[at] if len(self.items) else torch.zeros_like(at)), valid


class HeadFeatures:
    """Features of one head, from its vectors and from statistics of every item.

    least_std: lower bound of d_i; with that of a split by time, statistics are also shrunk (`shrunk`)
    typical: whether the mean similarity to all items is precomputed for every item, or computed when needed
    group:   each process has the vectors and the log of its local users; statistics are of all users
    direction: [items, d] item vectors of length 1
    of_items: [items, 8 or 10] length of the vector, bias, m_i, d_i, o_i - m_i, features of the item, mean similarities
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
        self.unit = usable((square.mean() + mean.var(correction=0)).sqrt())
        own, count = self._of_its_users(item, mean)
        mean, std = mean / self.unit, (square.sqrt() / self.unit).clamp(min=least_std)
        gap = (own / self.unit - mean).clamp(min=LEAST_GAP)
        if least_std == TIMED_LEAST_STD:
            std, gap = shrunk(std, gap, count)
        statistics = torch.stack([std.log(), gap.log(), mean], -1)  # [items, 3]
        share = count.to(statistics) / count.sum().clamp(min=1)
        statistics = statistics - share @ statistics
        statistics = statistics / (share @ statistics.square()).sqrt().clamp(min=LEAST_STD)
        norm = item.norm(dim=1)
        self.direction = (item / norm[:, None]).where(norm[:, None] > LEAST_NORM, 0.0)
        every = torch.split(torch.arange(len(item) if typical else 0, device=item.device), ITEM_BLOCK)
        similar = torch.cat([self._typical(rows) for rows in every], 1)
        bias = torch.zeros_like(norm) if bias is None else bias
        self.of_items = torch.stack([norm, bias, mean, std, gap, *statistics.T, *(similar if typical else ())], 1)

    def folded(self, user: Tensor, log: Histories) -> HeadFeatures:
        """Return features for users who are not in the log, by their vectors [n, d]; item statistics stay."""
        others = copy(self)
        others.user, others.log = user, log
        return others

    def _of_its_users(self, vectors: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """([items], [items]) o_i, the mean score over an item's users, or `mean` [items] if none; number of users."""
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
        return own.where(count > 0, mean), count

    def _typical(self, items: Tensor) -> Tensor:
        """[2, n] mean of c^2 and of c^8 of items [n] over all other items, or a sample of them."""
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
        inner = products(directions, both)  # [b, L, H + 1]
        norm, bias, mean, std, gap, *statistics = F.embedding(items, self.of_items).unbind(-1)
        score = (inner[..., -1] * norm + bias) / self.unit
        above = score - mean
        near = _powers(inner[..., :-1].mul_(valid[:, None])) / valid.sum(1).clamp(min=1)[:, None]
        if len(statistics) > ITEM_FEATURES:
            typical = torch.stack(statistics[ITEM_FEATURES:])
        else:
            typical = self._typical(items.flatten()).view_as(near)
        similarity = (near / typical + 0.1).log()
        relative = [(above / std).clamp(*Z_SCORE), (above / gap).clamp(*RELATIVE_SCORE)]
        return torch.stack([*relative, *similarity, score, *statistics[:ITEM_FEATURES]]).permute(1, 2, 0)


def _powers(cosine: Tensor) -> Tensor:
    """[2, ...] sums of c^2 and c^8 over the last dimension; overwrites c."""
    square = cosine.square_()
    sums = square.sum(-1)
    return torch.stack([sums, square.square_().square_().sum(-1)])


class Bags(NamedTuple):
    """Items of each user: those of user u are items[first[u] : first[u + 1]]."""

    first: Tensor
    items: Tensor

    def mean(self, users: Tensor, vectors: Tensor) -> Tensor:
        """[b, d] mean of the vectors [items, d] over the items of users [b]; 0 for a user without."""
        begin, count = self.first[users], self.first[users + 1] - self.first[users]
        return F.embedding_bag(self.items[runs(begin, count)], vectors, count.cumsum(0) - count, mode="mean")


class Clock(NamedTuple):
    """Times of a log. item: [items, 6] trend and ages; idleness: [users]; bags: newest set, and newest sets of five.

    now: time of the features; span: from the oldest to the newest pair; moments: mean and deviation for idleness
    """

    item: Tensor
    idleness: Tensor
    bags: tuple[Bags, Bags]
    now: float
    span: float
    moments: tuple[float, float]

    @classmethod
    def of(cls, log: csr_array, times: csr_array, device: str | torch.device, now: float | None = None) -> Clock:
        """Compute the features at `now`, or at the newest pair. log, times: [users, items] with the same cells."""
        newest, oldest = times.data.max(initial=-np.inf), times.data.min(initial=np.inf)
        now, span = float(newest if now is None else now), float(newest - oldest) if newest > oldest else 1.0
        later, (n_users, n_items) = (now - newest) / span if log.nnz else 0.0, log.shape
        age = ages(log, times) + later
        total = np.bincount(log.indices, minlength=n_items)
        columns, ordered = [], np.sort(age)
        for share in SHARES:
            recent = age <= ordered[: max(1, round(share * len(age)))].max(initial=0.0)
            count = np.bincount(log.indices[recent], minlength=n_items)
            columns.append(np.log((count + 1) / (recent.mean() * total + 1)))
        for end, start in ((np.minimum, np.inf), (np.maximum, 0.0)):
            of_item = np.full(n_items, start)
            end.at(of_item, log.indices, age)
            columns.append(np.log(LEAST_AGE + np.where(total > 0, of_item, 0.0)))
        idle = np.full(n_users, 1.0 + later)
        np.minimum.at(idle, np.repeat(np.arange(n_users), np.diff(log.indptr)), age)
        known = np.log(LEAST_AGE + idle[np.diff(log.indptr) > 0] - later)
        moments = float(known.mean()), max(float(known.std()), 1e-9)
        idle = (np.log(LEAST_AGE + idle) - moments[0]) / moments[1]
        dtype, tables = torch.get_default_dtype(), (np.stack(columns, 1), idle)
        item, idleness = (torch.from_numpy(each).to(device, dtype) for each in tables)
        return cls(item, idleness, _newest(log, times, torch.device(device)), now, span, moments)

    def local(self, users: slice) -> Clock:
        """Restrict the clock to some users; their indices are offset by the first."""
        bags = tuple(Bags(each.first[users.start : users.stop + 1], each.items) for each in self.bags)
        return self._replace(idleness=self.idleness[users], bags=(bags[0], bags[1]))

    def folded(self, histories: csr_array, times: csr_array | None = None) -> Clock:
        """Make the clock of new users. histories, times: [n, items]; times None: each history is one set, at `now`"""
        if times is None:
            times = csr_array((np.full(histories.nnz, self.now), histories.indices, histories.indptr), histories.shape)
        last = np.full(histories.shape[0], -np.inf)
        np.maximum.at(last, np.repeat(np.arange(len(last)), np.diff(histories.indptr)), times.data)
        age = np.where(np.isfinite(last), (self.now - last) / self.span, 0.0).clip(min=0.0)
        idleness = torch.from_numpy((np.log(LEAST_AGE + age) - self.moments[0]) / self.moments[1]).to(self.idleness)
        return self._replace(idleness=idleness, bags=_newest(histories, times, self.item.device))

    def __call__(self, users: Tensor, items: Tensor, direction: Tensor) -> Tensor:
        """[b, L, TIME_FEATURES] features of items [b, L] for users [b]. direction: [items, d] vectors of length 1."""
        means = torch.stack([bag.mean(users, direction) for bag in self.bags], -1)  # [b, d, 2]
        near = torch.bmm(F.embedding(items, direction), means)
        features = torch.cat([self.item[items], near], -1)
        return torch.cat([features, features * self.idleness[users, None, None]], -1)


def _newest(log: csr_array, times: csr_array, device: torch.device) -> tuple[Bags, Bags]:
    """Items of each user's newest set, and of its newest sets that have `NEWEST` items or more together."""
    ordered = Sequences.of(log, times)
    of_user = ordered.user[ordered.of_set]
    sizes = np.bincount(ordered.of_set, minlength=len(ordered.user))
    after = np.concatenate([sizes[::-1].cumsum()[::-1], [0]])  # pairs of this set and of all after it
    last = np.searchsorted(ordered.user, ordered.user, side="right")
    later: NDArray[np.int64] = after[1:][np.arange(len(sizes))] - after[last]  # pairs of the user in later sets
    bags = []
    for wanted in (ordered.later == 0, later < NEWEST):
        rows = wanted[ordered.of_set]
        first = np.searchsorted(of_user[rows], np.arange(log.shape[0] + 1))
        bags.append(Bags(*(torch.from_numpy(each).to(device) for each in (first, ordered.item[rows]))))
    return bags[0], bags[1]
