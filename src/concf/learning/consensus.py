"""The ranking consensus of the heads (Eq. 10-12), on truncated lists: never a users x items matrix.

Every p epochs each head ranks the items; the newest |Q| rankings are kept. An item outside a head's newest first K
places gets nothing from that head. For its standard deviation the first M places of every ranking are kept, and an
item outside them has rank M there. With K = M = all items this is the paper to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOTHING = -1  # an empty place at the end of a list
STEPS = 2.0**40  # importance is compared in steps of 2^-40: sums that differ by rounding alone are ties


@dataclass(frozen=True)
class Ranking:
    """One head's lists at one time, kept so that an item's rank is found by bisection.

    lists: [users, M] items, best first, -1 for an empty place
    items: [users, M] the same, ascending; ranks: [users, M] the rank of each
    """

    lists: Tensor
    items: Tensor
    ranks: Tensor

    @classmethod
    def of(cls, lists: Tensor) -> Ranking:
        """From lists [users, M], best first."""
        items, ranks = lists.sort(dim=1)
        return cls(lists, items, ranks)

    def rank(self, asked: Tensor) -> Tensor:
        """[users, k] the rank (from 0) of each asked item, M where it is not listed."""
        length = self.items.shape[1]
        place = torch.searchsorted(self.items, asked).clamp(max=length - 1)
        listed = self.items.gather(1, place) == asked
        return torch.where(listed, self.ranks.gather(1, place), length)


def rank_importance(rank: Tensor, temperature: float) -> Tensor:
    """R = exp(-rank / T) (Eq. 10)."""
    return torch.exp(-rank / temperature)


def consistency(ranks: Tensor, temperature: float) -> Tensor:
    """C = exp(-std / T_c) (Eq. 11). ranks: [Q, ...] over time; the population standard deviation."""
    return torch.exp(-ranks.double().std(0, correction=0) / temperature)


def importance(
    history: list[Ranking], places: int, temperature: float, steadiness: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """([users, K], [users, K], [users, K]) one head's first K items, what they earn (R, or R + C) and their ranks.

    history:    the head's rankings, the newest last
    steadiness: T_c, or None for the R-consensus
    """
    asked = history[-1].lists[:, :places].contiguous()
    rank = torch.arange(asked.shape[1], device=asked.device).expand_as(asked)
    earned = rank_importance(rank.double(), temperature)
    if steadiness is not None:
        earned = earned + consistency(torch.stack([ranking.rank(asked) for ranking in history]), steadiness)
    return asked, earned.masked_fill(asked == NOTHING, 0.0), rank


def consensus(
    histories: list[list[Ranking]],
    length: int,
    *,
    places: int = 100,
    temperature: float = 10.0,
    steadiness: float | None = 10.0,
) -> Tensor:
    """[users, length] the items by importance, the mean over heads of R + C (Eq. 12); -1 where there are too few.

    histories: for each head that votes its rankings, the newest last
    Ties go to the item with the better best rank, then to the lower item.
    """
    votes = [importance(history, places, temperature, steadiness) for history in histories]
    items, earned, ranks = (torch.cat(columns, 1) for columns in zip(*votes, strict=True))  # [users, heads K]
    items, order = items.sort(dim=1, stable=True)  # stable: each item's votes are summed in the order of the heads
    first = torch.ones_like(items, dtype=torch.bool)
    first[:, 1:] = items[:, 1:] != items[:, :-1]
    group = first.cumsum(1) - 1  # [users, heads K] which distinct item each vote is for
    total = torch.zeros_like(earned).scatter_add_(1, group, earned.gather(1, order)) / len(histories)
    best = torch.full_like(ranks, places).scatter_reduce_(1, group, ranks.gather(1, order), "amin")
    chosen = torch.full_like(items, NOTHING).scatter_(1, group, items)  # ascending, then empty places
    total = torch.where(chosen == NOTHING, -1.0, (total * STEPS).round())
    order = best.sort(dim=1, stable=True).indices  # items are ascending: stable sorts leave the lower item first
    order = order.gather(1, total.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
    ordered = chosen.gather(1, order)[:, :length]
    if ordered.shape[1] == length:
        return ordered
    return torch.nn.functional.pad(ordered, (0, length - ordered.shape[1]), value=NOTHING)
