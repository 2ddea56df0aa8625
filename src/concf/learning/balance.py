"""Balancing the heads by their gradients on what they share (Eq. 15, 16), without a second-order pass.

For a loss lambda_x L_x the gradient scale is G_x = lambda_x n_x, with n_x the norm of the unweighted gradient, so
dG_x / dlambda_x = n_x. Where another term alpha w_x L_CL of the same head does not carry lambda_x, the gradient is
g = lambda_x g_CF + alpha w_x g_CL and dG_x / dlambda_x = <g_CF, g> / |g|.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
