"""Observed pairs in random order, each with one unobserved item drawn uniformly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

DRAWS = 100  # after so many draws a user is taken to have used everything


def stream(*key: int) -> int:
    """A seed for one purpose: from the run's seed, the epoch and what it is for."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True)
class Batch:
    """[B] users, items they used, and items they did not."""

    user: Tensor
    positive: Tensor
    negative: Tensor

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


class Sampler:
    """Draws epochs on the CPU, so that a seed gives the same pairs on every device."""

    def __init__(self, train: csr_array) -> None:
        self.n_items = train.shape[1]
        cells = train.tocoo()
        user, item = (torch.from_numpy(np.asarray(places, np.int64)) for places in cells.coords)
        self.observed = (user * self.n_items + item).sort().values

    def epoch(self, seed: int, epoch: int) -> Batch:
        """Every observed pair once, in an order that seed and epoch alone decide: no state to keep."""
        generator = torch.Generator().manual_seed(stream(seed, epoch, 0))
        order = torch.randperm(len(self.observed), generator=generator)
        user, positive = self.observed[order] // self.n_items, self.observed[order] % self.n_items
        negative = torch.randint(self.n_items, (len(order),), generator=generator)
        again = torch.arange(len(order))
        for _ in range(DRAWS):
            again = again[self._is_observed(user[again], negative[again])]
            if not len(again):
                break
            negative[again] = torch.randint(self.n_items, (len(again),), generator=generator)
        return Batch(user, positive, negative)

    def _is_observed(self, user: Tensor, item: Tensor) -> Tensor:
        asked = user * self.n_items + item
        place = torch.searchsorted(self.observed, asked).clamp(max=len(self.observed) - 1)
        return torch.eq(self.observed[place], asked)
