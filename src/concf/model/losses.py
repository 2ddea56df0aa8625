"""The objectives CF-A to CF-E (Eq. 1-5) and the consensus loss (Eq. 13, 14), each a pure function.

Every loss is a sum over the batch. B observed pairs (u, i), with one unobserved pair (u, j) each, give scores
`positive` and `negative` [B]. Where a loss counts each distinct user once, a user that occurs c times in the batch
brings c rows of weight 1 / c: shapes stay the same from batch to batch.
"""

from __future__ import annotations

import torch
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


def squared_error_everywhere(
    user: Tensor, item: Tensor, observed: Tensor, weight: float = 1.0, scale: float = 1.0
) -> Tensor:
    """Squared error, CF-D (Eq. 4) over *all* pairs of the given users, unobserved ones with a weight.

        L = scale (sum_observed (1 - s_ui)^2 + weight sum_unobserved s_uj^2)

    user: [b, d] and item: [n, d] with s_ui = <user_u, item_i>; observed: [m] the scores of all their observed pairs.
    The sum over all pairs is <U'U, I'I>, two Gram matrices of d x d: O((b + n) d^2).
    """
    everywhere = ((user.T @ user) * (item.T @ item)).sum()
    return scale * ((1 - observed).square() - weight * observed.square()).sum() + scale * weight * everywhere


def multinomial(logits: Tensor, observed: Tensor, degree: Tensor, weight: Tensor) -> Tensor:
    """Multinomial likelihood, CF-E (Eq. 5): -sum_u weight_u sum_{i in I_u} log softmax(s_u)_i.

    logits: [b, n] scores of every item; observed: [b] the sum of those of the user's items; degree: [b] |I_u|;
    weight: [b]. Column-wise (E') the rows are items and the columns users.
    """
    return (weight * (degree * logits.logsumexp(1) - observed)).sum()


def listwise(scores: Tensor, length: int, weight: Tensor) -> Tensor:
    """Consensus learning, CL (Eq. 13, 14): -sum_u weight_u log p(pi_{0:N}).

        p(pi_{0:N}) = prod_{k <= N} exp s_pi(k) / sum_{i >= k} exp s_pi(i)

    scores: [b, L] in the order of the consensus; the first N = `length` places are taught, the rest (the tail) only
    stands in the denominators. weight: [b].
    """
    denominators = scores.flip(1).logcumsumexp(1).flip(1)
    return (weight * (denominators - scores)[:, :length].sum(1)).sum()


def multiplicity_weight(places: Tensor, n: int) -> Tensor:
    """[B] 1 / the times that each of the places [B] (of 0 .. n-1) occurs, so that each distinct one weighs 1."""
    times = torch.zeros(n, device=places.device).index_add_(0, places, torch.ones(len(places), device=places.device))
    return 1 / times[places]
