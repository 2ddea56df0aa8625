"""The objectives by name: a loss, the head that scores, and what the loss needs of a batch.

Where the paper, its released code and this package differ in a formula, a `Formulation` chooses.
"""

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
from concf.reference.heads import DotHead, Head, ItemTableHead, MetricHead, ProductHead, UserTableHead
from concf.runtime.settings import Settings, named

Needs = Literal["pairs", "items", "users"]
CONSENSUS_SCALE = {"squared": 10.0, "plain": 1.0}  # of CF-B's score: in the unit ball, squared distances are small


def _identity(scores: Tensor) -> Tensor:
    return scores


@dataclass(frozen=True)
class Objective:
    """Objective of collaborative filtering.

    loss:   with needs "pairs" of (positive, negative) scores [B];
            with "items" or "users" of (partition, observed, degree, weight), see `losses.multinomial`, over all items
            for each user or over all users for each item, by a `TableHead`
    head:   made from (size of an encoding, number of users, number of items)
    score:  maps the head's inner product to the score in the loss; it must keep the order
    consensus_score: maps the head's inner product to the score in the consensus loss
    distilled: whether the head learns from the consensus; the column-wise CF-E' only votes
    """

    loss: Callable[..., Tensor]
    head: Callable[[int, int, int], Head]
    needs: Needs = "pairs"
    score: Callable[[Tensor], Tensor] = _identity
    consensus_score: Callable[[Tensor], Tensor] = _identity
    distilled: bool = True


@dataclass(frozen=True)
class Formulation:
    """Points on which the paper and its code differ, or which the paper leaves open; the defaults are `reference`.

    distance:    distance that CF-B trains on; in the consensus loss the squared one is scaled by 10
    error_scale: factor of CF-D's squared error; Eq. 4 has 1/2
    begins:      the consensus loss begins after the |Q|-th ranking, at epoch |Q| p (warm-up), or one epoch later
    window_moves: False: consistency is measured once, over rankings up to epoch |Q| p
    newest_votes: False: the ranking before the newest one votes
    weight_range: bounds of lambda_x as weight of the consensus loss; None: no bounds
    clip:        largest absolute score of BPR and the multinomial heads in the consensus loss; None: any
    ratio_of:    training ratio: of lambda_x L_CF-x to the power of 0.15 (own), or of L_x as in Eq. 15 (whole)
    optimiser:   of lambda_x: Adam, with the number of heads as their sum; or gradient descent, with sum 1
    norm:        gradient scale: norm(users) + norm(items) / 2 (sides), or the norm of both as one (joint)
    """

    distance: Literal["squared", "plain"] = "squared"
    error_scale: float = 1.0
    begins: Literal["full-window", "warm-up", "after-warm-up"] = "full-window"
    window_moves: bool = True
    newest_votes: bool = True
    weight_range: tuple[float, float] | None = (0.5, 2.0)
    clip: float | None = None
    ratio_of: Literal["own", "whole"] = "own"
    optimiser: Literal["adam", "descent"] = "adam"
    norm: Literal["sides", "joint"] = "sides"


FORMULATIONS = {
    "reference": Formulation(),
    "paper": Formulation(
        distance="plain", error_scale=0.5, begins="warm-up", weight_range=None, ratio_of="whole", optimiser="descent",
        norm="joint",
    ),
    "released": Formulation(begins="after-warm-up", window_moves=False, newest_votes=False, clip=40.0),
}  # fmt: skip  # add your own: FORMULATIONS["mine"] = Formulation(clip=20.0)


class LossSettings(Settings):
    """Parameters of the objectives that the paper leaves open."""

    margin: float = Field(1.0, gt=0, description="margin of CF-B (cml)")
    likelihood: Literal["rows", "users", "mean"] = Field(
        "rows", description="CF-E: sum over the rows of a batch (Eq. 5), each by its length (users), or their mean"
    )


OBJECTIVES: dict[str, Objective | Callable[[LossSettings, Formulation], Objective]] = {  # name: loss, head, needs
    "bpr": Objective(losses.bpr, DotHead, "pairs"),
    "cml": lambda chosen, form: Objective(
        partial(losses.cml, margin=chosen.margin), MetricHead, "pairs",
        score=partial(distance_score, kind=form.distance),
        consensus_score=partial(distance_score, kind=form.distance, scale=CONSENSUS_SCALE[form.distance]),
    ),
    "cross-entropy": Objective(losses.cross_entropy, ProductHead, "pairs"),
    "squared-error": lambda _, form: Objective(
        partial(losses.squared_error, scale=form.error_scale), ProductHead, "pairs"
    ),
    "multinomial": lambda chosen, _: Objective(
        partial(losses.multinomial, likelihood=chosen.likelihood), ItemTableHead, "items"
    ),
    "multinomial-users": lambda chosen, _: Objective(
        partial(losses.multinomial, likelihood=chosen.likelihood), UserTableHead, "users", distilled=False
    ),
}  # fmt: skip  # add your own: OBJECTIVES["hinge"] = Objective(...)
FIVE = ("bpr", "cml", "cross-entropy", "squared-error", "multinomial", "multinomial-users")  # the paper's CF-A to CF-E


def distance_score(scores: Tensor, kind: str, scale: float = 1.0) -> Tensor:
    """-scale |u - i|^2, or -scale |u - i| where `kind` is plain, from the head's -|u - i|^2."""
    distance = minus_distance(scores) if kind == "plain" else scores
    return distance if scale == 1 else scale * distance


def minus_distance(scores: Tensor) -> Tensor:
    """-|u - i| from -|u - i|^2; flat at 0, where the root has no derivative."""
    return -(-scores).clamp(min=1e-12).sqrt()


def choose(
    names: tuple[str, ...], chosen: LossSettings | None = None, form: Formulation | None = None
) -> dict[str, Objective]:
    """Map each head to its objective: a row of the table, or an `Objective` imported as `module:name`.

    `first=bpr`: a head named `first`; else it has the name of its objective.
    `multinomial#1`, `multinomial#2`: two heads of one objective that differ by their random initialisation.
    """
    return {head: _objective(name, chosen or LossSettings(), form or Formulation()) for head, name in map(named, names)}


def _objective(name: str, chosen: LossSettings, form: Formulation) -> Objective:
    kind, again, start = name.partition("#")
    if kind in OBJECTIVES and bool(again) == bool(start):
        row = OBJECTIVES[kind]
        return row if isinstance(row, Objective) else row(chosen, form)
    value = imported(name) if ":" in name else None
    if isinstance(value, Objective):
        return value
    where = "" if value is None else f" ({type(value).__name__}, not an Objective)"
    known = ", ".join(OBJECTIVES)
    raise ConfigError(f"unknown objective {name!r}{where}; choose from {known}, or name your own as module:name")


def imported(name: str) -> object:
    """Import the attribute `module:name`."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # whatever a user's own module does wrong
        raise ConfigError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from None
