"""Batches of observed pairs in random order, each with one uniform negative."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.runtime.arguments import derive_seed

Positions = NDArray[np.signedinteger[Any]]

DRAWS = 100  # most redraws of a negative; then the user is assumed to have used every item
Among = tuple[Tensor, Tensor]  # [n] ids of the global batch, [b] positions of this process's part in it


@dataclass(frozen=True)
class Batch:
    """[B] users, their positive items and their negative ones.

    whole: the global batch, in which this process's part begins at row `first`; None: this is the global batch
    """

    user: Tensor
    positive: Tensor
    negative: Tensor
    whole: Batch | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.user)

    def to(self, device: torch.device) -> Batch:
        """Move to a device; on a GPU as int64, so that all pairs of an epoch are converted at once."""
        kind = None if device.type == "cpu" else torch.int64
        return self._each(lambda part: part.to(device).to(kind or part.dtype))

    def clone(self) -> Batch:
        """Copy all tensors."""
        return self._each(torch.clone)

    def copy_(self, other: Batch) -> None:
        """Overwrite the tensors with those of another batch."""
        self.user.copy_(other.user)
        self.positive.copy_(other.positive)
        self.negative.copy_(other.negative)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        user, positive, negative = map(change, (self.user, self.positive, self.negative))
        return replace(self, user=user, positive=positive, negative=negative)

    def split(self, size: int) -> Iterator[Batch]:
        """Yield batches of `size` pairs as int64, the last one shorter."""
        for begin in range(0, len(self), size):
            rows = slice(begin, begin + size)
            yield Batch(self.user[rows].long(), self.positive[rows].long(), self.negative[rows].long())

    def part(self, rows: slice) -> Batch:
        """Return a part of this batch."""
        return Batch(self.user[rows], self.positive[rows], self.negative[rows], self, rows.start)

    @property
    def items(self) -> Tensor:
        """[2 B] positive items, then negative ones."""
        return torch.cat([self.positive, self.negative])

    def among_users(self) -> Among | None:
        """Users of the global batch, and the positions of this part in it."""
        return None if self.whole is None else (self.whole.user, self._at())

    def among_items(self) -> Among | None:
        """Items of the global batch, and the positions of this part in it."""
        if self.whole is None:
            return None
        return self.whole.items, torch.cat([self._at(), self._at() + len(self.whole)])

    def _at(self) -> Tensor:
        return torch.arange(self.first, self.first + len(self), device=self.user.device)


class Sampler:
    """Sampler of the pairs of an epoch, on the CPU, so that a seed gives the same pairs on every device.

    user, positive: [pairs], int32 where possible; observed: [pairs] their flat indices in the matrix [users, items]
    ends: [pairs] cumulative weights; None: all weights are 1
    """

    def __init__(self, train: csr_array) -> None:
        self.n_users, self.n_items = train.shape
        ordered = train if train.has_sorted_indices else train.sorted_indices()
        kind = np.int32 if max(*train.shape, train.nnz) < 2**31 else np.int64
        self.user: Positions = np.repeat(np.arange(self.n_users, dtype=kind), np.diff(train.indptr))
        self.positive: Positions = ordered.indices.astype(kind, copy=False)
        self.ends = None
        if (ordered.data != 1).any():
            self.ends = np.cumsum(ordered.data, dtype=np.float64)
            self.ends *= train.nnz / self.ends[-1]
        self.observed = self._cells(self.user, self.positive)

    def epoch(self, seed: int, epoch: int) -> Batch:
        """Draw every observed pair once, in an order that depends on seed and epoch alone, so there is no state.

        A pair of weight w is drawn floor(w) or ceil(w) times, w on average; the sum of all is the number of pairs.
        """
        random = np.random.Generator(np.random.Philox(derive_seed(seed, epoch, 0)))
        user, positive = self.user, self.positive
        if self.ends is not None:
            last = np.floor(self.ends + random.random()).astype(np.int64)
            last[-1] = len(user)
            chosen = np.repeat(np.arange(len(user)), np.diff(last, prepend=0))
            user, positive = user[chosen], positive[chosen]
        negative = random.integers(self.n_items, size=len(user)).astype(user.dtype)
        again: Positions = np.arange(len(negative), dtype=user.dtype)
        for _ in range(DRAWS):
            cells = self._cells(user[again], negative[again])
            at = np.searchsorted(self.observed, cells).clip(max=len(self.observed) - 1)
            again = np.asarray(again[self.observed[at] == cells])  # the user has used the item
            if not len(again):
                break
            negative[again] = random.integers(self.n_items, size=len(again))
        order: Positions = np.arange(len(negative), dtype=user.dtype)
        random.shuffle(order)
        users, used, unused = (torch.from_numpy(column[order]) for column in (user, positive, negative))
        return Batch(users, used, unused)

    def _cells(self, user: Positions, item: Positions) -> NDArray[np.int64]:
        return np.asarray(user.astype(np.int64) * self.n_items + item)


def unique(ids: Tensor, n: int) -> Tensor:
    """Distinct ids, of 0 .. n-1, ascending."""
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill_(0, ids.long(), True).nonzero()[:, 0]


def distinct(ids: Tensor, n: int, kind: torch.dtype, among: Among | None = None) -> tuple[Tensor | slice, Tensor]:
    """(rows, weights) that count each distinct id of ids [B], of 0 .. n-1, once.

    On a GPU, where shapes must be static, all rows with weight 1 / multiplicity; on a CPU the last row of each id.
    among: the ids of the global batch; an id is counted by the process that has its last row
    """
    row = torch.arange(len(ids), device=ids.device)
    all_ids, at = (ids, row) if among is None else among
    if ids.is_cuda:
        one = torch.ones(len(all_ids), dtype=kind, device=ids.device)
        times = torch.zeros(n, dtype=kind, device=ids.device).index_add_(0, all_ids, one)
        return slice(None), 1 / times[ids]
    every_row = torch.arange(len(all_ids))
    last = torch.full((n,), -1).scatter_reduce_(0, all_ids, every_row, "amax")
    rows = last[last >= 0]
    if among is not None:
        rows = torch.full_like(every_row, -1).index_copy_(0, at, row)[rows]
        rows = rows[rows >= 0]
        if not len(rows):
            return row[:1], torch.zeros(1, dtype=kind)  # avoids operations on no row at all
    return rows, torch.ones(len(rows), dtype=kind)
