"""Where the paper, its released code and this package differ in a formula: chosen together, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Formulation:
    """Points on which the paper and its code differ, or which the paper leaves open; the defaults are `reference`.

    distance:    that CF-B trains on; in the consensus loss a squared one is scaled by 10
    error_scale: factor of CF-D's squared error; Eq. 4 has 1/2
    begins:      the consensus loss begins after the |Q|-th ranking, at epoch |Q| p (warm-up), or one epoch later
    window_moves: False: consistency is measured once, over rankings up to epoch |Q| p
    newest_votes: False: the ranking before the newest one votes
    weight_range: lambda_x is clipped to it where it weighs the consensus loss; None: it is not
    clip:        in the consensus loss, scores of BPR and the multinomial heads are clipped to +-this; None: not
    ratio_of:    training ratio: of lambda_x L_CF-x to the power of 0.15 (own), or of L_x as in Eq. 15 (whole)
    optimiser:   of lambda_x: Adam, their sum the number of heads; or gradient descent, their sum 1
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
}  # fmt: skip  # one of yours: FORMULATIONS["mine"] = Formulation(clip=20.0)
