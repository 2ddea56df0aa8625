"""Which rows of the embedding tables are at hand: all of them, or those that a step has fetched; which are distinct."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.training.batches import Among


@dataclass(frozen=True)
class Places:
    """[n] the users and [m] the items whose rows are at hand, ascending; None: all of them."""

    users: Tensor | None = None
    items: Tensor | None = None

    def of_users(self, users: Tensor) -> Tensor:
        """At which rows those users are."""
        return _found(self.users, users)

    def of_items(self, items: Tensor) -> Tensor:
        """At which rows those items are."""
        return _found(self.items, items)


ALL_ROWS = Places()


@dataclass(frozen=True)
class Rows:
    """Rows [g, n, d] of the users' table and [g, m, d] of the items', and whose they are."""

    user: Tensor
    item: Tensor
    places: Places = ALL_ROWS

    def copies(self, heads: int, of_users: slice, of_items: slice) -> tuple[Tensor, Tensor]:
        """([h, n, d], [h, m, d]) the rows as leaves, one for each of those runs of heads, of so many in all."""
        user, item = (
            table.detach().expand(heads, -1, -1)[run].requires_grad_()
            for table, run in ((self.user, of_users), (self.item, of_items))
        )
        return user, item


def _found(held: Tensor | None, asked: Tensor) -> Tensor:
    return asked if held is None else torch.searchsorted(held, asked.to(held.dtype)).to(asked.dtype)


def marked(places: Tensor, n: int) -> Tensor:
    """The distinct ones of the places, of 0 .. n-1, ascending."""
    return torch.zeros(n, dtype=torch.bool, device=places.device).index_fill_(0, places.long(), True).nonzero()[:, 0]


def distinct(
    places: Tensor, n: int, kind: torch.dtype, most: int | None = None, among: Among | None = None
) -> tuple[Tensor | slice, Tensor]:
    """(rows, weights) that count each distinct one of the places [B] (of 0 .. n-1) once.

    most: no more than so many are distinct; None: not known. On a GPU, where shapes must stay the same, so many rows,
    those to spare with weight 0, or all rows with weight 1 / multiplicity; elsewhere as many as there are.
    among: the places of all processes, of which each is counted by one alone: the one that has its last row
    """
    row = torch.arange(len(places), device=places.device)
    everyone, at = (places, row) if among is None else among
    if places.is_cuda and (most is None or most >= len(everyone)):  # in all processes alike
        one = torch.ones(len(everyone), dtype=kind, device=places.device)
        times = torch.zeros(n, dtype=kind, device=places.device).index_add_(0, everyone, one)
        return slice(None), 1 / times[places]
    every_row = torch.arange(len(everyone), device=places.device)
    last = torch.full((n,), -1, device=places.device).scatter_reduce_(0, everyone, every_row, "amax")
    if places.is_cuda and most is not None:
        rows = torch.nonzero_static(last[places] == at, size=most, fill_value=-1)[:, 0]
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
