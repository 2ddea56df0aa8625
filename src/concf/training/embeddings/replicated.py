"""Embedding tables that this process holds whole: what `divided` is for those that it does not."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from concf.model.model import Model
from concf.model.rows import added_groups, sums_of_groups
from concf.training.batches import Batch
from concf.training.embeddings.row_index import Rows


class ReplicatedTables:
    """The tables of users and items of a model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def fetched(self, batch: Batch, consensus_target: Tensor | None) -> Sequence[Rows]:  # noqa: ARG002
        """What a step needs: everything."""
        return [Rows(self.model.user, self.model.item)]

    def sums(self, place: int, found: list[Tensor], rows: Sequence[Rows], first: int) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """([heads], [heads]) |whole|^2 and <mine, whole> of `sums_of_groups`; the table's gradient is set.

        place: 0 users, 1 items; found: [heads, n, d], then those of the consensus loss, of the heads `first` and on, if
        any
        """
        table = (self.model.user, self.model.item)[place]
        total, square, product = summed(found, first, len(table))
        table.grad = total.reshape(table.shape).contiguous()
        return square, product


def summed(found: Sequence[Tensor], first: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `sums_of_groups`; where every head has a table of its own nothing is summed over heads."""
    mine, more = found[0], found[1] if len(found) > 1 else None
    return sums_of_groups(mine, more, first) if groups == 1 else added_groups(mine, more, first)
