"""Observed pairs in random order, each with one unobserved item drawn uniformly."""

from __future__ import annotations

from collections.abc import Iterator
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


Among = tuple[Tensor, Tensor]  # [n] what all processes have, [b] at which of its places this one's are


@dataclass(frozen=True)
class Batch:
    """[B] users, items they used, and items they did not.

    whole: the batch of all processes that this is a part of, from its row `first` on; None: this is all of it
    """

    user: Tensor
    positive: Tensor
    negative: Tensor
    whole: Batch | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.user)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(self.user.to(device), self.positive.to(device), self.negative.to(device))

    def copy_(self, other: Batch) -> None:
        """Take over the other's pairs."""
        for mine, theirs in ((self.user, other.user), (self.positive, other.positive), (self.negative, other.negative)):
            mine.copy_(theirs)

    def split(self, size: int) -> Iterator[Batch]:
        """Batches of `size` pairs, the last one shorter."""
        for begin in range(0, len(self), size):
            rows = slice(begin, begin + size)
            yield Batch(self.user[rows], self.positive[rows], self.negative[rows])

    def part(self, rows: slice) -> Batch:
        """Some of the rows, as a part of this batch."""
        return Batch(self.user[rows], self.positive[rows], self.negative[rows], self, rows.start)

    @property
    def items(self) -> Tensor:
        """[2 B] the used ones, then the others."""
        return torch.cat([self.positive, self.negative])

    def among_users(self) -> Among | None:
        """The users of the whole batch, and where in it this part's are."""
        return None if self.whole is None else (self.whole.user, self._at())

    def among_items(self) -> Among | None:
        """The same for the items of both kinds."""
        if self.whole is None:
            return None
        return self.whole.items, torch.cat([self._at(), self._at() + len(self.whole)])

    def _at(self) -> Tensor:
        return torch.arange(self.first, self.first + len(self), device=self.user.device)


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
        user, positive, unused = map(torch.from_numpy, drawn)
        return Batch(user, positive, unused)

    def _is_observed(self, user: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.bool_]:
        asked = user * self.n_items + item
        place = np.searchsorted(self.observed, asked).clip(max=len(self.observed) - 1)
        return np.asarray(self.observed[place] == asked)
