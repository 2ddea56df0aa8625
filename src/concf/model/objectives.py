"""The objectives by name: a loss, a head that scores, and what the loss needs of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from concf.errors import ConfigError
from concf.model import losses
from concf.model.heads import DotHead, Head, ItemTableHead, MetricHead, ProductHead, UserTableHead

Needs = Literal["pairs", "items", "users"]


@dataclass(frozen=True)
class Objective:
    """One way to learn from who used what.

    loss:  with needs "pairs" of (positive, negative) scores [B]; with "items" or "users" of (logits, observed, degree,
           weight), see `losses.multinomial`, over all items for each user or over all users for each item
    head:  made from (size of an encoding, number of users, number of items)
    lesson: what becomes of the scores [B, L] before the consensus loss
    """

    loss: Callable[..., Tensor]
    head: Callable[[int, int, int], Head]
    needs: Needs = "pairs"
    lesson: Callable[[Tensor], Tensor] = lambda scores: scores


OBJECTIVES = {
    "bpr": Objective(losses.bpr, lambda size, users, items: DotHead(size)),  # noqa: ARG005
    "cml": Objective(
        losses.cml, lambda size, users, items: MetricHead(size), lesson=lambda scores: 10 * scores  # noqa: ARG005
    ),
    "cross-entropy": Objective(losses.cross_entropy, lambda size, users, items: ProductHead(size)),  # noqa: ARG005
    "squared-error": Objective(losses.squared_error, lambda size, users, items: ProductHead(size)),  # noqa: ARG005
    "multinomial": Objective(
        losses.multinomial, lambda size, users, items: ItemTableHead(size, items), needs="items"  # noqa: ARG005
    ),
    "multinomial-users": Objective(
        losses.multinomial, lambda size, users, items: UserTableHead(size, users), needs="users"  # noqa: ARG005
    ),
}  # fmt: skip


def objective(name: str) -> Objective:
    """The objective of that name."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; choose from {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]
