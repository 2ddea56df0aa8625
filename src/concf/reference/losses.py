"""The objectives CF-A to CF-E (Eq. 1-5) and the consensus loss (Eq. 13, 14), each a pure function.

Every loss is a sum over the batch. B observed pairs (u, i), with one unobserved pair (u, j) each, give scores
`positive` and `negative` [B]. Where a loss counts each distinct user once, the rows carry weights that say so.
"""

from __future__ import annotations

from typing import Any

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
    user: Tensor, used: Tensor, item: Tensor, share: Tensor, unobserved: float = 1.0, scale: float = 1.0,
    penalty: float = 0.0,
) -> Tensor:  # fmt: skip
    """Squared error, CF-D (Eq. 4) over *all* pairs, the unobserved ones with a weight.

        L = scale sum_ui c_ui ((r_ui - s_ui)^2 + penalty (|u|^2 + |i|^2)),  c = 1 and r = 1 where observed,
                                                                            c = unobserved and r = 0 elsewhere

    So a vector is held back in proportion to the pairs that it takes part in (Rendle et al., RecSys 2022).
    user, used: [B, d] of the batch's observed pairs; item: [n, d] of all; s_ui = <user_u, item_i>; share: [B]
    1 / |I_u|. A user with |I_u| pairs comes so often in an epoch, so the batches of an epoch sum to L.
    The sum over all pairs is <U' diag(share) U, I'I>, two Gram matrices of d x d: O((B + n) d^2). Their traces are the
    sums of squared lengths.
    """
    positive = (user * used).sum(1)
    observed = ((1 - positive).square() - unobserved * positive.square()).sum()
    users, items = _gram(share.sqrt()[:, None] * user), _gram(item)
    everywhere = (users * items).sum()
    if penalty:
        observed = observed + penalty * (1 - unobserved) * (user.square().sum() + used.square().sum())
        everywhere = everywhere + penalty * (len(item) * _trace(users) + share.sum() * _trace(items))
    return scale * (observed + unobserved * everywhere)


def softmax(positive: Tensor, partition: Tensor, times: Tensor) -> Tensor:
    """A softmax over all items for every observed pair: -sum log softmax(s_u)_i.

    positive: [B] scores s_ui; partition: [b] log sum_j exp s_uj of the batch's users; times: [b] how often each comes
    """
    return (times * partition).sum() - positive.sum()


def multinomial(partition: Tensor, observed: Tensor, degree: Tensor, weight: Tensor) -> Tensor:
    """Multinomial likelihood, CF-E (Eq. 5): -sum_u weight_u sum_{i in I_u} log softmax(s_u)_i.

    partition: [b] log sum_i exp s_ui over every item; observed: [b] the sum of s_ui over the user's items;
    degree: [b] |I_u|; weight: [b]. Column-wise (E') the rows are items and the columns users. With weights of the pairs
    `observed` and `degree` are weighted sums.
    """
    return (weight * (degree * partition - observed)).sum()


def row_share(weight: Tensor, degree: Tensor, likelihood: str) -> Tensor:
    """[b] what a row counts in `multinomial`: by `rows` its weight; by `users` over its |I_u|; by `mean` over all rows.

    weight: [b], degree: [b] |I_u|
    """
    if likelihood == "users":
        return weight / degree.where(degree > 0, 1)
    return weight / weight.sum().clamp(min=1) if likelihood == "mean" else weight


def listwise(scores: Tensor, length: int, weight: Tensor) -> Tensor:
    """Consensus learning, CL (Eq. 13, 14): -sum_u weight_u log p(pi_{0:N}).

        p(pi_{0:N}) = prod_{k <= N} exp s_pi(k) / sum_{i >= k} exp s_pi(i)

    scores: [..., b, L] in the order of the consensus, -inf at an empty place; the first N = `length` places are
    taught, the rest (the tail) only stands in the denominators. weight: [b] or [..., b]. Gives [...].
    """
    negative_log: Tensor = _NegativeLogPermutation.apply(scores, length)  # type: ignore[no-untyped-call]
    return negative_log @ weight if weight.ndim == 1 else (negative_log * weight).sum(-1)


def _trace(square: Tensor) -> Tensor:
    """Of [d, d]; the gradient of PyTorch's own waits for the GPU, which a captured step must not."""
    return square.diagonal().sum()


def _gram(rows: Tensor) -> Tensor:
    """[d, d] rows' rows, of [n, d]."""
    gram: Tensor = _Gram.apply(rows)  # type: ignore[no-untyped-call]
    return gram


class _Gram(torch.autograd.Function):
    """Both sides of the product are the same: one product for the gradient instead of two."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows.T @ rows

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        gradient: Tensor = rows @ (upstream + upstream.T)
        return gradient


class _NegativeLogPermutation(torch.autograd.Function):
    """[..., L] scores -> [...] -log p(pi_{0:N}), with its gradient in closed form.

    With D_k = log sum_{i >= k} exp s_i the loss is sum_{k < N} D_k - s_k, and its derivative by s_i is
    sum_{k <= i, k < N} exp(s_i - D_k) - [i < N] = exp(s_i + A_i) - [i < N], A_i = log sum_{k <= i, k < N} exp(-D_k).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, length: int) -> Tensor:
        if scores.is_cuda:  # scans; a launch a place would take longer
            below = scores.flip(-1).logcumsumexp(-1).flip(-1)
            there = F.pad(scores[..., :length] > -torch.inf, (0, max(scores.shape[-1] - length, 0)))
            above = (-below).masked_fill(~there, -torch.inf).logcumsumexp(-1)  # constant from place N on
            ctx.save_for_backward((scores + above).exp() - there.to(scores.dtype))
            return (below - scores).masked_fill(~there, 0.0).sum(-1)
        columns = scores.movedim(-1, 0).contiguous()  # a vector operation a place is faster than a scan a row
        there = columns[:length] > -torch.inf
        below = columns.clone()  # D
        for place in range(len(below) - 2, -1, -1):
            torch.logaddexp(below[place], below[place + 1], out=below[place])
        above = (-below[:length]).masked_fill_(~there, -torch.inf)  # A
        for place in range(1, len(above)):
            torch.logaddexp(above[place], above[place - 1], out=above[place])
        loss = (below[:length] - columns[:length]).masked_fill_(~there, 0.0).sum(0)
        columns[:length] += above
        columns[length:] += above[-1]
        gradient = columns.exp_()
        gradient[:length] -= there.to(gradient.dtype)
        ctx.save_for_backward(gradient.movedim(0, -1))
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[..., None] * gradient, None
