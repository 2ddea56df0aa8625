"""Losses of the objectives CF-A to CF-E (Eq. 1-5), each a pure function.

Every loss is a sum over the batch. B observed pairs (u, i), with one unobserved pair (u, j) each, have the scores
`positive` and `negative` [B]. Losses that count each distinct user once have a weight for each row.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Bayesian personalised ranking, CF-A (Eq. 1): -sum log sigmoid(s_ui - s_uj)."""
    return -F.logsigmoid(positive - negative).sum()


def cml(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """Metric learning, CF-B (Eq. 2): sum [margin - s_ui + s_uj]_+, with s the negative (squared) distance."""
    return F.relu(margin - positive + negative).sum()


def cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """Binary cross-entropy, CF-C (Eq. 3): -sum log sigmoid(s_ui) - sum log(1 - sigmoid(s_uj)), on logits."""
    return F.softplus(-positive).sum() + F.softplus(negative).sum()


def squared_error(positive: Tensor, negative: Tensor, scale: float = 1.0) -> Tensor:
    """Squared error, CF-D (Eq. 4) on sampled pairs: scale (sum (1 - s_ui)^2 + sum s_uj^2); the paper's scale is 1/2."""
    return scale * ((1 - positive).square().sum() + negative.square().sum())


def multinomial(
    partition: Tensor, observed: Tensor, degree: Tensor, weight: Tensor, likelihood: str = "rows"
) -> Tensor:
    """Multinomial likelihood, CF-E (Eq. 5): -sum_u weight_u sum_{i in I_u} log softmax(s_u)_i.

    partition: [b] log sum_i exp s_ui over every item; observed: [b] the sum of s_ui over the user's items;
    degree: [b] |I_u|; weight: [b]. Column-wise (E') the rows are items and the columns users. With weighted pairs
    `observed` and `degree` are weighted sums.
    likelihood: "rows" as above; "users" divides each row by its |I_u|, "mean" by the number of rows
    """
    if likelihood == "users":
        weight = weight / degree.where(degree > 0, 1)
    elif likelihood == "mean":
        weight = weight / weight.sum().clamp(min=1)
    return (weight * (degree * partition - observed)).sum()
