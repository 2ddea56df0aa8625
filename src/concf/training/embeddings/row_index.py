"""Which rows of the embedding tables a process has: all, or those that a step has fetched; which are distinct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.training.batches import Among


@dataclass(frozen=True)
class RowIndex:
    """[n] the users and [m] the items whose rows are at hand, ascending; None: all of them."""

    users: Tensor | None = None
    items: Tensor | None = None

    def of_users(self, users: Tensor) -> Tensor:
        """At which rows those users are."""
        return _rows(self.users, users)

    def of_items(self, items: Tensor) -> Tensor:
        """At which rows those items are."""
        return _rows(self.items, items)


ALL_ROWS = RowIndex()


@dataclass(frozen=True)
class Rows:
    """Rows [g, n, d] of the users' table and [g, m, d] of the items', and whose they are."""

    user: Tensor
    item: Tensor
    index: RowIndex = ALL_ROWS

    def copies(self, heads: int, of_users: slice, of_items: slice) -> tuple[Tensor, Tensor]:
        """([h, n, d], [h, m, d]) the rows as leaves, one for each of those runs of heads, of so many in all."""
        user, item = (
            table.detach().expand(heads, -1, -1)[run].requires_grad_()
            for table, run in ((self.user, of_users), (self.item, of_items))
        )
        return user, item


def _rows(held: Tensor | None, ids: Tensor) -> Tensor:
    return ids if held is None else torch.searchsorted(held, ids.to(held.dtype)).to(ids.dtype)


def unique(ids: Tensor, n: int) -> Tensor:
    """The distinct ids, of 0 .. n-1, ascending."""
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill_(0, ids.long(), True).nonzero()[:, 0]


def distinct(
    ids: Tensor, n: int, kind: torch.dtype, most: int | None = None, among: Among | None = None
) -> tuple[Tensor | slice, Tensor]:
    """(rows, weights) that count each distinct one of the ids [B] (of 0 .. n-1) once.

    most: no more than so many are distinct; None: not known. On a GPU, where shapes must stay the same, so many rows,
    those to spare with weight 0, or all rows with weight 1 / multiplicity; elsewhere as many as there are.
    among: the ids of all processes, of which each is counted by one alone: the one that has its last row
    """
    row = torch.arange(len(ids), device=ids.device)
    everyone, at = (ids, row) if among is None else among
    if ids.is_cuda and (most is None or most >= len(everyone)):  # in all processes alike
        one = torch.ones(len(everyone), dtype=kind, device=ids.device)
        times = torch.zeros(n, dtype=kind, device=ids.device).index_add_(0, everyone, one)
        return slice(None), 1 / times[ids]
    every_row = torch.arange(len(everyone), device=ids.device)
    last = torch.full((n,), -1, device=ids.device).scatter_reduce_(0, everyone, every_row, "amax")
    if ids.is_cuda and most is not None:
        rows = torch.nonzero_static(last[ids] == at, size=most, fill_value=-1)[:, 0]
        return rows.clamp(min=0), (rows >= 0).to(kind)
    rows = last[last >= 0]
    if among is not None:
        rows = torch.full_like(every_row, -1).index_copy_(0, at, row)[rows]
        rows = rows[rows >= 0]
        if not len(rows):
            return row[:1], torch.zeros(1, dtype=kind)  # an operation on no row at all is a case of its own
    return rows, torch.ones(len(rows), dtype=kind)


def most_users(degree: NDArray[np.int64], pairs: int) -> int:
    """How many users so many pairs can belong to at most, where a user's pairs come one after the other."""
    fewest = np.sort(degree[degree > 0])
    whole = int(np.searchsorted(np.cumsum(fewest), pairs, side="right"))  # users that fit in whole ...
    return min(whole + 2, len(fewest))  # ... and two at the ends of which only a part does
