"""What several processes do as one: they begin alike, and add up what each found on its part of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.runtime.process_group import ProcessGroup
from concf.training.batches import Batch
from concf.training.config.settings import ConCFSettings
from concf.training.head_losses import HeadLosses


def refuse_unsplittable(group: ProcessGroup, data: Split, settings: ConCFSettings) -> None:
    """Refuse what cannot be divided among processes."""
    users = data.train.shape[0]
    if group.size > users:
        raise ConfigError(f"{group.size} processes for {users} users: expected no more processes than users")
    if group.several and settings.training.selection == "one":
        raise ConfigError("training.selection = 'one' compares the pairs of a whole batch: run it in one process")


def add_up(
    group: ProcessGroup, head_losses: HeadLosses, batch: Batch, consensus_target: Tensor | None, own: Tensor,
    consensus_loss: Tensor, of_tables: list[Tensor], of_others: list[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([heads], [heads]) both losses on the whole batch; the gradients become the whole batch's in place.

    All losses are sums over the batch's rows, or over its distinct users or items, each counted by one process alone;
    so their sums, and the sums of their gradients, are those of one process that has the whole batch.
    Of the copies' gradients [heads, n, d] only rows that the batch can touch travel: the others are 0 everywhere.
    consensus_target: what was consensus_loss, see `HeadLosses.touched_by_consensus`
    of_tables: on users and items, then those of the consensus loss if there is one; nothing where tables are divided
    """
    assert batch.whole is not None
    touched = head_losses.touched(batch.whole) if of_tables else []
    if len(of_tables) > len(touched):
        touched += head_losses.touched_by_consensus(batch.whole, consensus_target)
    rows = [table if at is None else table[:, at] for table, at in zip(of_tables, touched, strict=True)]
    costs = torch.stack([own, consensus_loss])
    group.all_reduce([costs, *rows, *of_others])
    for table, at, total in zip(of_tables, touched, rows, strict=True):
        if at is not None:
            table.index_copy_(1, at, total)
    return costs[0], costs[1]
