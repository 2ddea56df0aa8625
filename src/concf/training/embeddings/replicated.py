"""Embedding tables that every process holds whole; `sharded` is for those that it does not.

What a step needs of its tables: the rows that it reads (`fetch`), the sums over all processes of what each of them
found on its part of the batch (`reduce`), and the gradient of a table with the norms that balancing needs
(`set_gradient`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from concf.model.model import Model
from concf.model.rows import added_groups, sums_of_groups
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.training.batches import Batch
from concf.training.embeddings.row_index import Rows
from concf.training.head_losses import HeadLosses

USERS, ITEMS = 0, 1  # the two tables


class ReplicatedTables:
    """The tables of users and items of a model."""

    def __init__(self, model: Model, head_losses: HeadLosses, group: ProcessGroup = ALONE) -> None:
        self.model, self.head_losses, self.group = model, head_losses, group

    def fetch(self, batch: Batch, consensus_target: Tensor | None) -> Sequence[Rows]:  # noqa: ARG002
        """The rows for the heads' own losses, then those for the consensus loss: all of them."""
        return [Rows(self.model.user, self.model.item)]

    def reduce(
        self, batch: Batch, consensus_target: Tensor, losses: Tensor, tables: list[Tensor], others: list[Tensor]
    ) -> Tensor:
        """[2, heads] both losses on the whole batch; the gradients become the whole batch's in place.

        All losses are sums over the batch's rows, or over its distinct users or items, each counted by one process
        alone; so their sums, and the sums of their gradients, are those of one process that has the whole batch.
        Of gradients on tables only rows that the batch can touch travel: the others are 0 everywhere.
        losses: [2, heads]; tables: [heads, n, d] on users and items, then those of the consensus loss if it counts;
        others: on all other parameters
        """
        if batch.whole is None:
            return losses
        touched = self.head_losses.touched(batch.whole)
        if len(tables) > len(touched):
            touched += self.head_losses.touched_by_consensus(batch.whole, consensus_target)
        rows = [table if at is None else table[:, at] for table, at in zip(tables, touched, strict=True)]
        self.group.all_reduce([losses, *rows, *others])
        for table, at, total in zip(tables, touched, rows, strict=True):
            if at is not None:
                table.index_copy_(1, at, total)
        return losses

    def set_gradient(
        self, side: int, gradients: list[Tensor], rows: Sequence[Rows], first: int  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Set the gradient of a table, the sum over heads: ([heads], [heads]) |g|^2 and <own g, g> of each head.

        side: USERS or ITEMS; gradients: [heads, n, d] of the own losses, then [h, n, d] of the consensus losses of the
        heads from `first` on, if they count
        """
        table = (self.model.user, self.model.item)[side]
        total, square, product = summed(gradients, first, len(table))
        table.grad = total.reshape(table.shape).contiguous()
        return square, product


def summed(gradients: Sequence[Tensor], first: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `sums_of_groups`; where every head has a table of its own nothing is summed over heads."""
    own, more = gradients[0], gradients[1] if len(gradients) > 1 else None
    return sums_of_groups(own, more, first) if groups == 1 else added_groups(own, more, first)
