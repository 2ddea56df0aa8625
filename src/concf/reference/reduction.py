"""All-reduce of a step: the losses and gradients of a whole batch from those of its parts.

Every loss is a sum over the batch's rows, or over its distinct users or items, each counted by one process alone. So
the sums of losses and gradients over all processes are those of one process that has the whole batch.
"""

from __future__ import annotations

from torch import Tensor

from concf.reference.batches import Batch, unique
from concf.reference.encoders import MLP, Encoder
from concf.reference.head_losses import HeadLosses
from concf.runtime.process_group import ProcessGroup

Rows = list[Tensor | None]  # ids of users, then of items; None: all of them


def all_reduce(group: ProcessGroup, losses: Tensor, tables: list[Tensor], rows: Rows, others: list[Tensor]) -> None:
    """Sum over all processes, in place.

    losses: any shape; tables: gradients [heads, n, d] of the embeddings, of which only `rows` are sent: elsewhere they
    are 0; others: gradients of all other parameters
    """
    sent = [table if ids is None else table[:, ids] for table, ids in zip(tables, rows, strict=True)]
    group.all_reduce([losses, *sent, *others])
    for table, ids, total in zip(tables, rows, sent, strict=True):
        if ids is not None:
            table.index_copy_(1, ids, total)


def rows_of_own_losses(losses: HeadLosses, batch: Batch) -> Rows:
    """Users and items whose embeddings may have a gradient of L_CF."""
    if _propagates(losses):
        return [None, None]
    users = unique(batch.user, losses.model.n_users)
    if "everything" in {objective.needs for objective in losses.objectives.values()}:
        return [users, None]
    return [users, unique(losses.items_of_batch(batch), losses.model.n_items)]


def rows_of_consensus_losses(losses: HeadLosses, batch: Batch, target: Tensor) -> Rows:
    """Users and items whose embeddings may have a gradient of L_CL. target: [users, L] consensus lists."""
    if _propagates(losses):
        return [None, None]
    listed = target[batch.user].flatten()
    items = unique(listed[listed >= 0], losses.model.n_items)
    return [unique(batch.user, losses.model.n_users), items]


def _propagates(losses: HeadLosses) -> bool:
    """Whether an encoding may depend on other rows' embeddings; assumed of every encoder but MLP and MF."""
    return type(losses.model.encoder) not in (Encoder, MLP)
