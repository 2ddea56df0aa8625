"""Balancing the heads by their gradients on what they share (Eq. 15, 16), without a second-order pass.

For a loss lambda_x L_x the gradient scale is G_x = lambda_x n_x, with n_x the norm of the unweighted gradient, so
dG_x / dlambda_x = n_x. Where another term alpha w_x L_CL of the same head does not carry lambda_x, the gradient is
g = lambda_x g_CF + alpha w_x g_CL and dG_x / dlambda_x = <g_CF, g> / |g|.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

ITEM_SHARE = 0.5  # of the items' norm in a gradient scale
TINY = 1e-30  # a head without gradient has scale 0 and slope 0


def gradient_scale(
    squares: Sequence[Tensor], products: Sequence[Tensor], norm: Literal["sides", "joint"]
) -> tuple[Tensor, Tensor]:
    """([heads], [heads]) G_x, and lambda_x dG_x / dlambda_x if only g_CF carries lambda_x.

    squares, products: |g|^2 and <lambda_x g_CF, g>, each on (users [heads], items [heads])
    norm: "joint" of both sides as one vector; "sides" |users| + |items| / 2
    """
    if norm == "joint":
        scale = (squares[0] + squares[1]).sqrt()
        return scale, (products[0] + products[1]) / scale.clamp(min=TINY)
    norms = [square.sqrt() for square in squares]
    slopes = [product / each.clamp(min=TINY) for product, each in zip(products, norms, strict=True)]
    return norms[0] + ITEM_SHARE * norms[1], slopes[0] + ITEM_SHARE * slopes[1]


def training_ratio(loss: Tensor, initial: Tensor, exponent: float = 1.0) -> Tensor:
    """[heads] gamma_x = ((L_x / L_x^0) / mean_y (L_y / L_y^0))^exponent (Eq. 15); below 1: learns faster than most."""
    progress = loss / initial
    return (progress / progress.mean()).pow(exponent)


def weight_gradient(scale: Tensor, slope: Tensor, ratio: Tensor) -> Tensor:
    """[heads] d L_b / d lambda_x of Eq. 16, L_b = sum_x |G_x - mean(G) gamma_x|, the target held constant.

    scale: [heads] G_x; slope: [heads] dG_x / dlambda_x; ratio: [heads] gamma_x
    """
    return torch.sign(scale - scale.mean() * ratio) * slope


def normalise(weights: Tensor, total: float, floor: float) -> Tensor:
    """[heads] the weights, none below the floor before they are scaled to the total."""
    kept = weights.clamp(min=floor)
    return kept * (total / kept.sum())
