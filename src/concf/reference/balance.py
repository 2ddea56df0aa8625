"""Balancing the heads by their gradients on what they share (Eq. 15, 16), without a second-order pass.

For a loss lambda_x L_x the gradient scale is G_x = lambda_x n_x, with n_x the norm of the unweighted gradient, so
dG_x / dlambda_x = n_x = G_x / lambda_x. Where the consensus loss of the head has a weight w_x other than lambda_x, the
gradient is g = lambda_x g_CF + alpha w_x g_CL and dG_x / dlambda_x = <g_CF, g> / |g|.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from concf.reference.cuda_graphs import make_adam
from concf.reference.settings import ReferenceSettings

ITEM_SHARE = 0.5  # weight of the items' norm in a gradient scale
EXPONENT = {"own": 0.15, "whole": 1.0}  # of the training ratio: the released code's, and that in Eq. 15
LEARNING_RATE = {"adam": 0.01, "descent": 1e-4}  # of lambda_x: the released code's, and ours; the paper has none
FLOOR = {"adam": 0.01, "descent": 1e-4}  # least lambda_x before all are scaled to their sum: the released code's, ours
TINY = 1e-30  # a head without gradient has scale 0 and slope 0


class Balance:
    """Balancing weights and their optimiser (Algorithm 1, lines 2 and 11).

    weights: [heads] lambda_x; initial: [heads] L^0_x (Eq. 15)
    sets_initial: whether the current batch sets L^0 (`begin`); a tensor, so that a captured step reads it every time
    """

    def __init__(self, settings: ReferenceSettings, n_heads: int, device: torch.device, dtype: torch.dtype) -> None:
        self.settings = settings
        self.weights = torch.ones(n_heads, device=device, dtype=dtype)
        self.initial = torch.ones_like(self.weights)
        self.sets_initial = torch.ones((), dtype=torch.bool, device=device)
        by_adam, rate = settings.form.optimiser == "adam", LEARNING_RATE[settings.form.optimiser]
        self.total, self.floor = float(n_heads) if by_adam else 1.0, FLOOR[settings.form.optimiser]  # of lambda_x
        self.optimiser: torch.optim.Optimizer = (
            make_adam([self.weights], device, rate) if by_adam else torch.optim.SGD([self.weights], lr=rate)
        )

    def begin(self, epoch: int, batch: int) -> None:
        """Let every batch of the first `settle` epochs set L^0, or the very first batch alone where `settle` is 0."""
        self.sets_initial.fill_(epoch < self.settings.balance.settle or (epoch, batch) == (0, 0))

    def consensus_weights(self) -> Tensor:
        """[heads] weights of L_CL-x: alpha lambda_x, with lambda_x in `weight_range`."""
        bounds = self.settings.form.weight_range
        return self.settings.consensus.weight * (self.weights.clamp(*bounds) if bounds else self.weights)

    def step(self, own: Tensor, learned: Tensor, scale: Tensor, projection: Tensor) -> None:
        """Take one step on lambda_x along the gradient of L_b (Eq. 16).

        own, learned: [heads] L_CF-x and L_CL-x; scale: [heads] G_x; projection: [heads] <lambda_x g_CF, g> / |g|
        """
        form, alpha = self.settings.form, self.settings.consensus.weight
        loss = self.weights * own if form.ratio_of == "own" else own + alpha * learned
        sets = self.sets_initial & (loss > 0)  # Eq. 15 divides by L^0
        self.initial.copy_(torch.where(sets, loss, self.initial))
        ratio = training_ratio(loss, self.initial, EXPONENT[form.ratio_of])
        slope = (projection if form.weight_range else scale) / self.weights
        self.weights.grad = weight_gradient(scale, slope, ratio)
        self.optimiser.step()
        self.weights.copy_(normalise(self.weights, self.total, self.floor))


def gradient_scale(
    squares: Sequence[Tensor], products: Sequence[Tensor], norm: Literal["sides", "joint"]
) -> tuple[Tensor, Tensor]:
    """([heads], [heads]) gradient scale G_x, and the projection <lambda_x g_CF, g> / |g| of its CF part.

    squares, products: |g|^2 and <lambda_x g_CF, g>, each on (users [heads], items [heads])
    norm: "joint" of both sides as one vector; "sides" |users| + |items| / 2
    """
    if norm == "joint":
        scale = (squares[0] + squares[1]).sqrt()
        return scale, (products[0] + products[1]) / scale.clamp(min=TINY)
    norms = [square.sqrt() for square in squares]
    projections = [product / side.clamp(min=TINY) for product, side in zip(products, norms, strict=True)]
    return norms[0] + ITEM_SHARE * norms[1], projections[0] + ITEM_SHARE * projections[1]


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
    """[heads] weights, clamped to the floor and then scaled to the total."""
    clamped = weights.clamp(min=floor)
    return clamped * (total / clamped.sum())
