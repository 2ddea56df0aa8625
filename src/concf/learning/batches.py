"""Observed pairs in random order, each with one unobserved item drawn uniformly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

DRAWS = 100  # after so many draws a user is taken to have used everything


def stream(*key: int) -> int:
    """A seed for one purpose: from the run's seed, the epoch and what it is for."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class Batch:
    """[B] users, items they used, and items they did not.

    drawn: [2, n] items, then users, for all rows of the batch alike, see `sampled`; None: no softmax is sampled
    """

    user: Tensor
    positive: Tensor
    negative: Tensor
    drawn: Tensor | None = None

    def __len__(self) -> int:
        return len(self.user)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return self._each(lambda part: part.to(device))

    def clone(self) -> Batch:
        """The same in memory of its own."""
        return self._each(torch.clone)

    def copy_(self, other: Batch) -> None:
        """Take over the other's pairs and draws."""
        for mine, theirs in ((self.user, other.user), (self.positive, other.positive), (self.negative, other.negative)):
            mine.copy_(theirs)
        if self.drawn is not None and other.drawn is not None:
            self.drawn.copy_(other.drawn)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        drawn = None if self.drawn is None else change(self.drawn)
        return Batch(change(self.user), change(self.positive), change(self.negative), drawn)

    def split(self, size: int) -> Iterator[Batch]:
        """Batches of `size` pairs, the last one shorter."""
        for begin in range(0, len(self), size):
            rows = slice(begin, begin + size)
            yield Batch(self.user[rows], self.positive[rows], self.negative[rows])


class Sampler:
    """Draws epochs on the CPU, so that a seed gives the same pairs on every device."""

    def __init__(self, train: csr_array) -> None:
        self.n_users, self.n_items = train.shape
        user, item = (np.asarray(places, np.int64) for places in train.tocoo().coords)
        self.observed = np.sort(user * self.n_items + item)
        self.user, self.positive = np.divmod(self.observed, self.n_items)

    def epoch(self, seed: int, epoch: int, by_user: bool = False) -> Batch:
        """Every observed pair once, in an order that seed and epoch alone decide: no state to keep.

        by_user: a user's pairs come one after the other, so that a batch has few users
        """
        random = np.random.Generator(np.random.Philox(stream(seed, epoch, 0)))
        negative = random.integers(self.n_items, size=len(self.observed))
        again = np.arange(len(self.observed))
        for _ in range(DRAWS):
            again = again[self._is_observed(self.user[again], negative[again])]
            if not len(again):
                break
            negative[again] = random.integers(self.n_items, size=len(again))
        order = random.permutation(len(self.observed))
        if by_user:
            order = order[np.argsort(random.permutation(self.n_users)[self.user[order]], kind="stable")]
        drawn = (self.user[order], self.positive[order], negative[order])
        return Batch(*(torch.from_numpy(column) for column in drawn))

    def _is_observed(self, user: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.bool_]:
        asked = user * self.n_items + item
        place = np.searchsorted(self.observed, asked).clip(max=len(self.observed) - 1)
        return np.asarray(self.observed[place] == asked)
