"""What several processes do as one: they begin alike, and add up what each found on its part of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.runtime.process_group import World
from concf.training.batches import Batch
from concf.training.config.settings import ConCFSettings
from concf.training.head_losses import Branches


def refuse_many(world: World, data: Split, settings: ConCFSettings) -> None:
    """Refuse what cannot be divided among processes."""
    users = data.train.shape[0]
    if world.size > users:
        raise ConfigError(f"{world.size} processes for {users} users: expected no more processes than users")
    if world.several and settings.training.selection == "one":
        raise ConfigError("training.selection = 'one' compares the pairs of a whole batch: run it in one process")


def add_up(
    world: World, branches: Branches, batch: Batch, lesson: Tensor | None, own: Tensor, taught: Tensor,
    of_tables: list[Tensor], of_others: list[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([heads], [heads]) both losses on the whole batch; the gradients become the whole batch's in place.

    All losses are sums over the batch's rows, or over its distinct users or items, each counted by one process alone;
    so their sums, and the sums of their gradients, are those of one process that has the whole batch.
    Of the copies' gradients [heads, n, d] only rows that the batch can touch travel: the others are 0 everywhere.
    lesson: what was taught, see `Branches.touched_by_lesson`
    of_tables: on users and items, then those of the lesson if there is one; nothing where tables are divided
    """
    assert batch.whole is not None
    touched = branches.touched(batch.whole) if of_tables else []
    if len(of_tables) > len(touched):
        touched += branches.touched_by_lesson(batch.whole, lesson)
    rows = [table if at is None else table[:, at] for table, at in zip(of_tables, touched, strict=True)]
    costs = torch.stack([own, taught])
    world.add([costs, *rows, *of_others])
    for table, at, total in zip(of_tables, touched, rows, strict=True):
        if at is not None:
            table.index_copy_(1, at, total)
    return costs[0], costs[1]
