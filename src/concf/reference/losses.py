"""Losses of the objectives CF-A to CF-E (Eq. 1-5), each a pure function.

Every loss is a sum over the batch. B observed pairs (u, i), with one unobserved pair (u, j) each, have the scores
`positive` and `negative` [B]. Losses that count each distinct user once have a weight for each row.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from concf.reference.kernels import gram


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


def squared_error_everywhere(
    user: Tensor, used: Tensor, item: Tensor, share: Tensor, unobserved: float = 1.0, scale: float = 1.0
) -> Tensor:
    """Squared error, CF-D (Eq. 4) over *all* pairs, the unobserved ones with a weight.

        L = scale sum_ui c_ui (r_ui - s_ui)^2,  c = 1 and r = 1 where observed, c = unobserved and r = 0 elsewhere

    user, used: [B, d] vectors of the batch's observed pairs; item: [n, d] of all items; s_ui = <user_u, item_i>;
    share: [B] 1 / |I_u|. A user with |I_u| pairs is drawn |I_u| times in an epoch, so its batches sum to L.
    The sum over all pairs is <U' diag(share) U, I'I>, two Gram matrices of d x d: O((B + n) d^2).
    """
    positive = (user * used).sum(1)
    observed = ((1 - positive).square() - unobserved * positive.square()).sum()
    everywhere = (gram(share.sqrt()[:, None] * user) * gram(item)).sum()
    return scale * (observed + unobserved * everywhere)


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
