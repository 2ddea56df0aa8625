"""Times of a log as features of the re-ranker: trend and age of an item, idleness of a user, and its newest items.

Ages are counted in spans of the log: 0 for its newest pair, 1 for its oldest. With n_w the pairs of an item among the
newest share w of the log, n all its pairs, and e = 1/1000:

    trend       ln((n_w + 1) / (w n + 1)), w = .3, .1, .03, .01
    age         ln(e + age of the item's last pair), ln(e + age of its first pair)
    newest      mean cosine between the item and the items of the user's newest set of equal times; the same for the
                newest sets that have five items or more together
    idleness z  ln(e + age of the user's last pair), standardised

The features of a pair are trend, age and newest, and each of them times z.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.sequences import Sequences
from concf.baselines.timed import ages

SHARES = (0.3, 0.1, 0.03, 0.01)  # of the newest pairs
LEAST_AGE = 1e-3
NEWEST = 5  # items of the second bag, at least
ITEM_FEATURES = len(SHARES) + 2
TIME_FEATURES = 2 * (ITEM_FEATURES + 2)


class Bags(NamedTuple):
    """Items of each user: those of user u are items[first[u] : first[u + 1]]."""

    first: Tensor
    items: Tensor

    def mean(self, users: Tensor, vectors: Tensor) -> Tensor:
        """[b, d] mean of the vectors [items, d] over the items of users [b]; 0 for a user without."""
        begin, count = self.first[users], self.first[users + 1] - self.first[users]
        offset = count.cumsum(0) - count
        position = torch.arange(int(count.sum()), device=users.device)
        at = position + torch.repeat_interleave(begin - offset, count)
        return F.embedding_bag(self.items[at], vectors, offset, mode="mean")


class Clock(NamedTuple):
    """Times of a log. item: [items, 6] trend and ages; idleness: [users]; bags: newest set, and newest sets of five."""

    item: Tensor
    idleness: Tensor
    bags: tuple[Bags, Bags]

    @classmethod
    def of(cls, log: csr_array, times: csr_array, device: torch.device) -> Clock:
        """Compute it as of the newest pair of a log. log, times: [users, items] with the same cells."""
        age, (n_users, n_items) = ages(log, times), log.shape
        total = np.bincount(log.indices, minlength=n_items)
        columns, ordered = [], np.sort(age)
        for share in SHARES:
            recent = age <= ordered[: max(1, round(share * len(age)))].max(initial=0.0)
            count = np.bincount(log.indices[recent], minlength=n_items)
            columns.append(np.log((count + 1) / (recent.mean() * total + 1)))
        for end, start in ((np.minimum, 1.0), (np.maximum, 0.0)):
            of_item = np.full(n_items, start)
            end.at(of_item, log.indices, age)
            columns.append(np.log(LEAST_AGE + np.where(total > 0, of_item, 0.0)))
        idle = np.ones(n_users)
        np.minimum.at(idle, np.repeat(np.arange(n_users), np.diff(log.indptr)), age)
        idle = np.log(LEAST_AGE + idle)
        known = idle[np.diff(log.indptr) > 0]
        idle = (idle - known.mean()) / max(known.std(), 1e-9)
        item, idleness = (
            torch.from_numpy(each).to(device, torch.get_default_dtype()) for each in (np.stack(columns, 1), idle)
        )
        return cls(item, idleness, _newest(log, times, device))

    def local(self, users: slice) -> Clock:
        """The same for some users, counted from the first of them."""
        bags = tuple(Bags(each.first[users.start : users.stop + 1], each.items) for each in self.bags)
        return Clock(self.item, self.idleness[users], (bags[0], bags[1]))

    def folded(self, histories: csr_array) -> Clock:
        """Of new users, who are active now, and whose histories [n, items] are one set."""
        device = self.item.device
        bag = Bags(
            *(torch.from_numpy(each.astype(np.int64)).to(device) for each in (histories.indptr, histories.indices))
        )
        idleness = self.idleness.min() if len(self.idleness) else self.item.new_zeros(())
        return Clock(self.item, idleness.expand(histories.shape[0]), (bag, bag))

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
