"""Which rows of the embedding tables are at hand: all of them, or those that a step has fetched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


EVERYWHERE = Places()


@dataclass(frozen=True)
class Rows:
    """Rows [g, n, d] of the users' table and [g, m, d] of the items', and whose they are."""

    user: Tensor
    item: Tensor
    places: Places = EVERYWHERE

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
