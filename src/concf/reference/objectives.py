"""The objectives by name: a loss, a head that scores, and what the loss needs of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Literal

from pydantic import Field
from torch import Tensor

from concf.errors import ConfigError
from concf.reference import losses
from concf.reference.heads import (
    DotHead,
    Head,
    ItemTableHead,
    MetricHead,
    ProductHead,
    UserTableHead,
)  # fmt: skip
from concf.runtime.settings import Settings, named

Needs = Literal["pairs", "everything", "items", "users"]


def _unchanged(scores: Tensor) -> Tensor:
    return scores


@dataclass(frozen=True)
class Objective:
    """One way to learn from who used what.

    loss:   with needs "pairs" of (positive, negative) scores [B];
            with "everything" of (user [B, d], used [B, d], item [items, d], share [B]), where <user, used> and
            <user, item> are scores and share is 1 / |I_u|, see `losses.squared_error_everywhere`;
            with "items" or "users" of (partition, observed, degree, weight), see `losses.multinomial`, over all items
            for each user or over all users for each item, by a `TableHead`
    head:   made from (size of an encoding, number of users, number of items)
    score:  what becomes of the head's inner product before the loss; it must keep the order
    consensus_score: what becomes of the head's inner product before the consensus loss
    """

    loss: Callable[..., Tensor]
    head: Callable[[int, int, int], Head]
    needs: Needs = "pairs"
    score: Callable[[Tensor], Tensor] = _unchanged
    consensus_score: Callable[[Tensor], Tensor] = _unchanged


class LossSettings(Settings):
    """Parameters of the objectives, where the paper and its released code differ or leave a choice."""

    margin: float = Field(1.0, gt=0, description="margin of CF-B (cml)")
    distance: Literal["squared", "plain"] = Field("squared", description="distance that CF-B trains on")
    distance_scale: float = Field(
        10.0, gt=0, description="in the consensus loss CF-B scores by minus the distance, times this"
    )
    error_scale: float = Field(1.0, gt=0, description="factor of CF-D's squared error; Eq. 4 has 1/2")
    likelihood: Literal["rows", "users", "mean"] = Field(
        "rows", description="CF-E: sum over the rows of a batch (Eq. 5), each by its length (users), or their mean"
    )
    unobserved: float = Field(0.05, gt=0, description="weight of an unobserved pair in CF-D over all pairs")
    softmax_samples: int | None = Field(
        None, ge=1, description="sampled softmax: draws that stand for what a batch does not hold; none: exact"
    )


def minus_distance(scores: Tensor) -> Tensor:
    """-|u - i| from -|u - i|^2; flat at 0, where the root has no derivative."""
    return -(-scores).clamp(min=1e-12).sqrt()


def _cml(chosen: LossSettings) -> Objective:
    loss, times = partial(losses.cml, margin=chosen.margin), chosen.distance_scale
    if chosen.distance == "squared":
        return Objective(loss, _metric, consensus_score=lambda scores: times * scores)
    return Objective(loss, _metric, score=minus_distance, consensus_score=lambda scores: times * minus_distance(scores))


def _dot(size: int, users: int, items: int) -> Head:  # noqa: ARG001
    return DotHead(size)


def _metric(size: int, users: int, items: int) -> Head:  # noqa: ARG001
    return MetricHead(size)


def _product(size: int, users: int, items: int) -> Head:  # noqa: ARG001
    return ProductHead(size)


def _item_table(size: int, users: int, items: int) -> Head:  # noqa: ARG001
    return ItemTableHead(size, items)


def _user_table(size: int, users: int, items: int) -> Head:  # noqa: ARG001
    return UserTableHead(size, users)


def _multinomial(needs: Needs, head: Callable[[int, int, int], Head]) -> Callable[[LossSettings], Objective]:
    def made(chosen: LossSettings) -> Objective:
        def loss(partition: Tensor, observed: Tensor, degree: Tensor, weight: Tensor) -> Tensor:
            share = losses.row_share(weight, degree, chosen.likelihood)
            return losses.multinomial(partition, observed, degree, share)

        return Objective(loss, head, needs=needs)

    return made


def _squared_error(chosen: LossSettings) -> Objective:
    return Objective(partial(losses.squared_error, scale=chosen.error_scale), _product)


def _squared_error_everywhere(chosen: LossSettings) -> Objective:
    loss = partial(losses.squared_error_everywhere, unobserved=chosen.unobserved, scale=chosen.error_scale)
    return Objective(loss, _product, needs="everything")


OBJECTIVES: dict[str, Objective | Callable[[LossSettings], Objective]] = {
    "bpr": Objective(losses.bpr, _dot),
    "cml": _cml,
    "cross-entropy": Objective(losses.cross_entropy, _product),
    "squared-error": _squared_error,
    "multinomial": _multinomial("items", _item_table),
    "multinomial-users": _multinomial("users", _user_table),
    "squared-error-everywhere": _squared_error_everywhere,
}  # a row of yours: OBJECTIVES["mine"] = Objective(...)
FIVE = ("bpr", "cml", "cross-entropy", "squared-error", "multinomial", "multinomial-users")  # of the paper, E both ways


def choose(names: tuple[str, ...], chosen: LossSettings | None = None) -> dict[str, Objective]:
    """Head -> its objective: a row of the table, or `module:name` of an `Objective` to import.

    `mine=bpr`: a head with a name of its own; else it is called by its objective.
    `multinomial#1`, `multinomial#2`: the same objective several times, each with a start of its own.
    """
    return {head: _objective(name, chosen or LossSettings()) for head, name in map(named, names)}


def kind_of(name: str) -> str:
    """The objective without its number: `bpr` for `bpr#2`."""
    return name.partition("#")[0]


def _objective(name: str, chosen: LossSettings) -> Objective:
    kind, again, start = name.partition("#")
    if kind in OBJECTIVES and bool(again) == bool(start):
        row = OBJECTIVES[kind]
        return row if isinstance(row, Objective) else row(chosen)
    found = imported(name) if ":" in name else None
    if isinstance(found, Objective):
        return found
    where = "" if found is None else f" ({type(found).__name__}, not an Objective)"
    raise ConfigError(
        f"unknown objective {name!r}{where}; choose from {', '.join(OBJECTIVES)}, or name one of yours as module:name"
    )


def imported(name: str) -> object:
    """What `module:name` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a user's own module does wrong
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from None
