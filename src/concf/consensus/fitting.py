"""The re-ranker's weights, fitted to the validation part.

They maximise the log-likelihood of the user's held-out items under a softmax of the score s = <w, x> over the user's
list (`strong/reranker.py`). A ridge penalty draws them to the plain consensus, where w_vT is the voter's weight and all
else 0, for logs with few users:

    L(w) = sum_u [ log sum_i e^(s_ui) - sum_i t_ui s_ui ] + sum_f p_f (w_f - w0_f)^2,   s_ui = <w, x_ui>

over the items i of each user's list; t_ui is 1 / (held-out items in the list) for a held-out item, else 0. The problem
is convex and solved by Newton's method, so the weights depend on the features and the validation part alone. Each fold
of the validated users is scored with weights fitted on the others (cross-fitting).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from concf.errors import DataError
from concf.runtime.executors import in_blocks
from concf.runtime.process_group import ProcessGroup

PENALTY = 10.0  # penalty of a squared weight, times the variance of its feature; a user's cost has weight 1
PENALTY_BEFORE = 100.0  # where the penalty draws to earlier weights
LEAST_VARIANCE = 1e-6  # lower bound of a variance, so that a constant feature gets no weight
FOLDS = 5
STEPS = 50  # most Newton steps
SLOW = 0.3  # the Hessian is renewed where a step is longer than this share of the one before
USERS = 512  # users of a block in a Newton step


class Weights(NamedTuple):
    """Fitted weights.

    centre: [F] mean of each feature; everyone: [F] float64, of all users; folds: [FOLDS, F] float64, of all but one
    """

    centre: Tensor
    everyone: Tensor
    folds: Tensor


class TrainingSet(NamedTuple):
    """Training data of the weights.

    features: [users, L, F], centred; empty: [users, L] padding of shorter lists; target: [users, L] t_ui; blocks: for
    each fold, slices of its users; prior: [F] w0, float64; penalty: [F] p, at first the variance;
    centre: [F] mean of each feature; n: number of their items; group: processes that share the users
    """

    features: Tensor
    empty: Tensor
    target: Tensor
    blocks: list[list[slice]]
    prior: Tensor
    penalty: Tensor
    centre: Tensor
    n: Tensor
    group: ProcessGroup

    def penalised(self, prior: Tensor, strength: float) -> TrainingSet:
        """Set the prior [F], and turn the variances into penalties. Call it once, after `and_earlier`."""
        return self._replace(prior=prior, penalty=strength * self.penalty.clamp(min=LEAST_VARIANCE))

    def and_earlier(self, earlier: Sequence[TrainingSet]) -> TrainingSet:
        """Add the users of earlier windows, in a last fold, which is never left out."""
        windows = self, *earlier
        users = [blocks[-1].stop if (blocks := list(chain(*each.blocks))) else 0 for each in windows]
        away = [each.centre - self.centre for each in windows]
        shifted = [each.features[:n] + further for each, n, further in zip(windows, users, away, strict=True)]
        empty, target = (
            torch.cat([part[:n] for part, n in zip(parts, users, strict=True)])
            for parts in ([each.empty for each in windows], [each.target for each in windows])
        )
        more = [slice(begin, min(begin + USERS, sum(users))) for begin in range(users[0], sum(users), USERS)]
        n = sum(each.n for each in earlier) + self.n
        share = torch.stack([each.n / n.clamp(min=1) for each in windows])[:, None]
        centres, within = torch.stack(away).double(), torch.stack([each.penalty for each in windows])
        variance = (share * (within + (centres - (share * centres).sum(0)).square())).sum(0)
        return self._replace(
            features=torch.cat(shifted), empty=empty, target=target, blocks=[*self.blocks, more], penalty=variance, n=n
        )


def fitted(training: TrainingSet, before: Tensor | None = None, penalty: float | None = None) -> Weights:
    """Fit the weights.

    before:  [F] weights fitted to more users, which a stronger penalty draws to; None: it draws to the plain consensus
    penalty: replaces PENALTY
    """
    prior = training.prior if before is None else before.to(training.prior)
    training = training.penalised(prior, (penalty or PENALTY) if before is None else PENALTY_BEFORE)
    everyone, curvature = fit_weights(training, None, prior)
    folds = [fit_weights(training, left_out, everyone, curvature)[0] for left_out in range(FOLDS)]
    if not everyone.isfinite().all():
        raise DataError("the re-ranker's weights are not finite. Rescale voters with very large or small scores")
    return Weights(training.centre, everyone, torch.stack(folds))


def fit_weights(
    training: TrainingSet, left_out: int | None, begin: Tensor, curvature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """([F], [folds, F, F]) optimal weights, float64, and the last Hessian. left_out: the fold that is not fitted on.

    begin: initial weights; curvature: Hessian of each fold near them. It changes little near the minimum, so it is kept
    as long as the steps shrink quickly.
    """
    folds = [fold for fold in range(len(training.blocks)) if fold != left_out]

    def newton(slope: Tensor, curvature: Tensor) -> Tensor:
        step: Tensor = torch.linalg.solve(curvature[folds].sum(0) + torch.diag(2 * training.penalty), slope)
        return step

    blocks = [block for fold in folds for block in training.blocks[fold]]
    tolerance = torch.finfo(training.features.dtype).eps ** 0.5
    weights, (cost, slope) = begin, _slope(begin, training, blocks)
    curvature = _curvature(begin, training) if curvature is None else curvature
    step = newton(slope, curvature)
    for _ in range(STEPS):
        if step.abs().max() < tolerance:
            break
        further = _slope(weights - step, training, blocks)
        if further[0] > cost * (1 + 1e-6):  # overshoot: halve the step
            step = step / 2
            continue
        weights, (cost, slope), last = weights - step, further, step.abs().max()
        step = newton(slope, curvature)
        if step.abs().max() > SLOW * last:
            curvature = _curvature(weights, training)
            step = newton(slope, curvature)
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


def _curvature(weights: Tensor, training: TrainingSet) -> Tensor:
    """[folds, F, F] Hessian of the cost of each fold, without the penalty."""
    small = weights.to(training.features)

    def of_block(rows: slice) -> Tensor:
        features = training.features[rows]
        share = (features @ small).masked_fill(training.empty[rows], -torch.inf).softmax(1)
        mean = torch.bmm(share[:, None], features)[:, 0]
        return features.mul(share[:, :, None]).flatten(0, 1).T @ features.flatten(0, 1) - mean.T @ mean

    folds = [fold for fold, blocks in enumerate(training.blocks) for _ in blocks]
    curvature = weights.new_zeros(len(training.blocks), len(weights), len(weights))
    for fold, more in zip(folds, in_blocks(of_block, list(chain(*training.blocks)), weights.device), strict=True):
        curvature[fold] += more
    training.group.all_reduce([curvature])
    return curvature
