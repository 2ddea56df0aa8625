"""Fit the weights of the re-ranker: a softmax regression over lists, with a ridge penalty, by Newton's method.

    L(w) = sum_u [ log sum_i e^(s_ui) - sum_i t_ui s_ui ] + sum_f p_f (w_f - w0_f)^2,   s_ui = <w, x_ui>

over the items i of each user's list; t_ui is 1 / (held-out items in the list) for a held-out item, else 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from concf.runtime.executors import in_blocks
from concf.runtime.process_group import ProcessGroup

STEPS = 50  # most Newton steps
SLOW = 0.3  # the Hessian is renewed where a step is longer than this share of the one before


class TrainingSet(NamedTuple):
    """Training data of the weights.

    features: [users, L, F], centred; empty: [users, L] padding of shorter lists; target: [users, L] t_ui; blocks: for
    each fold, slices of its users; prior: [F] w0, float64; penalty: [F] p; group: processes that share the users
    """

    features: Tensor
    empty: Tensor
    target: Tensor
    blocks: list[list[slice]]
    prior: Tensor
    penalty: Tensor
    group: ProcessGroup


def fit_weights(
    training: TrainingSet, left_out: int | None, begin: Tensor, curvature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """([F], [F, F]) optimal weights, float64, and the last Hessian. left_out: the fold that is not fitted on.

    begin: initial weights; curvature: Hessian near them. It changes little near the minimum, so it is kept as long as
    the steps shrink quickly.
    """
    blocks = [block for fold, blocks in enumerate(training.blocks) if fold != left_out for block in blocks]
    tolerance = torch.finfo(training.features.dtype).eps ** 0.5
    weights, (cost, slope) = begin, _slope(begin, training, blocks)
    curvature = _curvature(begin, training, blocks) if curvature is None else curvature
    step = torch.linalg.solve(curvature, slope)
    for _ in range(STEPS):
        if step.abs().max() < tolerance:
            break
        further = _slope(weights - step, training, blocks)
        if further[0] > cost * (1 + 1e-6):  # overshoot: halve the step
            step = step / 2
            continue
        weights, (cost, slope), last = weights - step, further, step.abs().max()
        step = torch.linalg.solve(curvature, slope)
        if step.abs().max() > SLOW * last:
            curvature = _curvature(weights, training, blocks)
            step = torch.linalg.solve(curvature, slope)
    return weights, curvature


def _slope(weights: Tensor, training: TrainingSet, blocks: Sequence[slice]) -> tuple[float, Tensor]:
    """Penalised cost of the weights, and its gradient [F]."""
    small = weights.to(training.features)

    def of_block(rows: slice) -> tuple[Tensor, Tensor]:
        features, empty, target = training.features[rows], training.empty[rows], training.target[rows]
        scores = (features @ small).masked_fill(empty, -torch.inf)
        cost = (scores.logsumexp(1) - (target * scores.masked_fill(empty, 0)).sum(1)).sum()
        return cost, (scores.softmax(1) - target).flatten() @ features.flatten(0, 1)

    away = weights - training.prior
    cost, slope = (training.penalty * away.square()).sum(), 2 * training.penalty * away
    if not training.group.is_main:  # the penalty is added once
        cost, slope = torch.zeros_like(cost), torch.zeros_like(slope)
    for more_cost, more_slope in in_blocks(of_block, blocks, weights.device):
        cost, slope = cost + more_cost, slope + more_slope
    training.group.all_reduce([cost, slope])
    return float(cost), slope


def _curvature(weights: Tensor, training: TrainingSet, blocks: Sequence[slice]) -> Tensor:
    """[F, F] Hessian of the penalised cost."""
    small = weights.to(training.features)

    def of_block(rows: slice) -> Tensor:
        features = training.features[rows]
        share = (features @ small).masked_fill(training.empty[rows], -torch.inf).softmax(1)
        mean = torch.bmm(share[:, None], features)[:, 0]
        return features.mul(share[:, :, None]).flatten(0, 1).T @ features.flatten(0, 1) - mean.T @ mean

    curvature = torch.diag(2 * training.penalty * training.group.is_main)
    for more in in_blocks(of_block, blocks, weights.device):
        curvature = curvature + more
    training.group.all_reduce([curvature])
    return curvature
