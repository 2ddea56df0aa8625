"""The ranking consensus of the heads (Eq. 10-12), on truncated lists: never a users x items matrix.

Every p epochs each head ranks the items; the newest |Q| rankings are kept. An item outside the first K
of a head's newest ranking gets no vote from that head. For its standard deviation the first M items of every ranking
are kept, and an item outside them has rank M there. With K = M = all items this is exactly the paper's consensus.

A ranking is [heads, users, M] int32: items, best first, padded with -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

NOTHING = -1  # padding at the end of a list
STEPS = 2.0**40  # votes are counted in whole steps of 2^-40, so that their sum does not depend on its order
CPU_CELLS, GPU_CELLS = 1 << 19, 1 << 24  # cells of a table [users, items] in memory at a time ...
SMALLEST_BLOCK = 64  # ... and its fewest users: each block costs hundreds of small operations


def rank_importance(rank: Tensor, temperature: float) -> Tensor:
    """R = exp(-rank / T) (Eq. 10)."""
    return torch.exp(-rank / temperature)


def consistency(ranks: Tensor, temperature: float) -> Tensor:
    """C = exp(-std / T_c) (Eq. 11). ranks: [Q, ...] over time; the population standard deviation."""
    return torch.exp(-ranks.double().std(0, correction=0) / temperature)


def consensus(
    newest: Tensor, window: Sequence[Tensor], n_items: int, length: int, *, voters: Sequence[int] | None = None,
    voter_weights: Sequence[float] | None = None, top_k: int = 100, temperature: float = 10.0,
    consistency_temperature: float | None = 10.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([users, length], [users, length]) RC-consensus and R-consensus; -1 where there are too few items.

    Items are sorted by importance, the mean over heads of R + C or of R alone (Eq. 12); ties go to the item with the
    better best rank, then to the lower item.
    newest: the ranking that votes; window: the rankings over which consistency is measured, may be empty;
    voters: the heads that vote, None: all; voter_weights: of each of them, None: 1;
    top_k: K; temperature: T; consistency_temperature: T_c, or None for R in both
    """
    heads, agreed = list(range(len(newest)) if voters is None else voters), []
    blocks = blocks_of_users(newest.shape[1], newest.device, n_items)
    table = _table(blocks, newest.device, n_items)
    for users in blocks:
        listed, consistency_votes = newest[heads, users, :top_k].long(), None
        if window and consistency_temperature is not None:
            consistency_votes = _consistency(listed, heads, users, window, n_items, consistency_temperature)
        agreed.append(_agree(listed, consistency_votes, voter_weights, table, length, temperature))
    if not agreed:  # a rank may have no users
        return newest.new_empty(0, length), newest.new_empty(0, length)
    both, by_rank = (torch.cat(parts) for parts in zip(*agreed, strict=True))
    return both, by_rank


def by_votes(items: Tensor, votes: Tensor, n_items: int, length: int) -> Tensor:
    """[users, length] int32 items by the sum of their votes, ties as in `consensus`; -1 where there are too few.

    items: [heads, users, K], padded with -1; votes: [heads, users, K], 0 or more
    """
    blocks = blocks_of_users(items.shape[1], items.device, n_items)
    table = _table(blocks, items.device, n_items)
    lists = [
        _by_total(_steps(votes[:, users].double()), *_listed(items[:, users].long(), table), table, length)
        for users in blocks
    ]
    return torch.cat(lists)


def consistencies(listed: Tensor, window: Sequence[Tensor], n_items: int, temperature: float) -> Tensor:
    """[heads, users, K] C (Eq. 11) of the items listed [heads, users, K] by each head. window: of [heads, users, M]."""
    blocks = [
        _consistency(listed[:, users].long(), range(len(listed)), users, window, n_items, temperature)
        for users in blocks_of_users(listed.shape[1], listed.device, n_items)
    ]
    return torch.cat(blocks, 1).float()


def blocks_of_users(n_users: int, device: torch.device, n_items: int) -> list[slice]:
    """Blocks of users whose table [users, items] fits into memory."""
    size = max(SMALLEST_BLOCK, (CPU_CELLS if device.type == "cpu" else GPU_CELLS) // (n_items + 1))
    return [slice(begin, min(begin + size, n_users)) for begin in range(0, n_users, size)]


def _table(blocks: Sequence[slice], device: torch.device, n_items: int) -> Tensor:
    """[b, items + 1] int64 zeros that blocks of users share: making a table takes longer than using it.

    The first block is the largest; the last column is for no item.
    """
    return torch.zeros(blocks[0].stop if blocks else 0, n_items + 1, dtype=torch.int64, device=device)


def _consistency(
    listed: Tensor, heads: Sequence[int], users: slice, window: Sequence[Tensor], n_items: int, temperature: float
) -> Tensor:
    """[heads, b, K] C (Eq. 11) of the items that these heads list [heads, b, K]. window: rankings of all users.

    Rankings of the window are read one by one: a copy of a long window could take most of the memory.
    """
    over_time = (
        ranks_over_time(items_of_head, [ranking[head, users] for ranking in window], n_items)
        for items_of_head, head in zip(listed, heads, strict=True)
    )
    return torch.stack([consistency(ranks, temperature) for ranks in over_time])


def ranks_over_time(items: Tensor, lists: Sequence[Tensor], n_items: int) -> Tensor:
    """[Q, users, K] int32 ranks of the items [users, K] in each of Q lists [users, M]; M where not listed."""
    length, ranks = lists[0].shape[1], items.new_empty(len(lists), *items.shape, dtype=torch.int32)
    blocks = blocks_of_users(len(items), items.device, n_items)
    table = _table(blocks, items.device, n_items)
    before_end = torch.arange(length, 0, -1, device=items.device).expand(len(table), -1)
    for users in blocks:
        wanted = items[users].long().where(items[users] != NOTHING, n_items)
        for its_ranks, listed in zip(ranks, lists, strict=True):
            at = listed[users].long().where(listed[users] != NOTHING, n_items)
            table.scatter_(1, at, before_end)
            its_ranks[users] = length - table.gather(1, wanted)
            table.scatter_(1, at, 0)  # as it was, for the next list
    return ranks


def _agree(
    listed: Tensor, consistency_votes: Tensor | None, voter_weights: Sequence[float] | None, table: Tensor,
    length: int, temperature: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RC- and R-consensus of a block of users. listed, consistency_votes (C, if it counts): [heads, b, K]."""
    heads, users, top_k = listed.shape
    rank = torch.arange(top_k, device=listed.device)
    voter_weight = torch.ones(heads) if voter_weights is None else torch.tensor(voter_weights)
    voter_weight = voter_weight.to(listed.device, torch.float64)[:, None, None]
    importance = _steps(voter_weight * rank_importance(rank.double(), temperature)).expand(heads, users, top_k)
    votes = [importance]
    if consistency_votes is not None:
        votes.insert(0, importance + _steps(voter_weight * consistency_votes))
    in_order = _listed(listed, table)
    lists = [_by_total(each, *in_order, table, length) for each in votes]
    return lists[0], lists[-1]


def _listed(listed: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """([b, K heads], [b, K heads], [b, K, heads]) items by rank, then by item; whether each counts; whose each is."""
    nothing = table.shape[1] - 1
    items, head = listed.where(listed != NOTHING, nothing).permute(1, 2, 0).sort(dim=2)
    items = items.flatten(1)
    before_end = torch.arange(items.shape[1], 0, -1, device=items.device).expand_as(items)
    best = table.scatter_reduce_(1, items, before_end, "amax").gather(1, items)
    table.scatter_(1, items, 0)
    counts = (best == before_end) & (items < nothing)  # one vote of each item: the one at its best rank
    return items, counts, head


def _steps(importance: Tensor) -> Tensor:
    """Round votes to int64 steps of 1 / STEPS."""
    return (importance * STEPS).round().long()


def _by_total(votes: Tensor, items: Tensor, counts: Tensor, head: Tensor, table: Tensor, length: int) -> Tensor:
    """[b, length] items by the sum of their votes [heads, b, K]. items, counts, head: see `_listed`"""
    sums = table.scatter_add_(1, items, votes.permute(1, 2, 0).gather(2, head).flatten(1)).gather(1, items)
    table.scatter_(1, items, 0)
    sums.masked_fill_(~counts, NOTHING)
    sums, order = sums.sort(dim=1, descending=True, stable=True)
    listed = items.gather(1, order).masked_fill_(sums == NOTHING, NOTHING)[:, :length]
    return F.pad(listed, (0, length - listed.shape[1]), value=NOTHING).to(torch.int32)
