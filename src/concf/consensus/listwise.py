"""Consensus learning: the list-wise loss by which a student learns the consensus (Eq. 13, 14)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def listwise(scores: Tensor, length: int, weight: Tensor) -> Tensor:
    """Consensus learning, CL (Eq. 13, 14): -sum_u weight_u log p(pi_{0:N}).

        p(pi_{0:N}) = prod_{k <= N} exp s_pi(k) / sum_{i >= k} exp s_pi(i)

    scores: [..., b, L] in the order of the consensus, padded with -inf; the first N = `length` ranks are
    learned, the others are only in the denominators. weight: [b] or [..., b]. Returns [...].
    """
    negative_log: Tensor = _NegativeLogPermutation.apply(scores, length)  # type: ignore[no-untyped-call]
    return negative_log @ weight if weight.ndim == 1 else (negative_log * weight).sum(-1)


class _NegativeLogPermutation(torch.autograd.Function):
    """[..., L] scores -> [...] -log p(pi_{0:N}), with its gradient in closed form.

    With D_k = log sum_{i >= k} exp s_i the loss is sum_{k < N} D_k - s_k, and its derivative by s_i is
    sum_{k <= i, k < N} exp(s_i - D_k) - [i < N] = exp(s_i + A_i) - [i < N], A_i = log sum_{k <= i, k < N} exp(-D_k).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, length: int) -> Tensor:
        if scores.is_cuda:  # scans; a kernel launch for each rank would take longer
            below = scores.flip(-1).logcumsumexp(-1).flip(-1)
            valid = F.pad(scores[..., :length] > -torch.inf, (0, max(scores.shape[-1] - length, 0)))
            above = (-below).masked_fill(~valid, -torch.inf).logcumsumexp(-1)  # constant from rank N on
            ctx.save_for_backward((scores + above).exp() - valid.to(scores.dtype))
            return (below - scores).masked_fill(~valid, 0.0).sum(-1)
        columns = scores.movedim(-1, 0).contiguous()  # a vector operation per rank is faster than a scan per row
        valid = columns[:length] > -torch.inf
        below = columns.clone()  # D
        for rank in range(len(below) - 2, -1, -1):
            torch.logaddexp(below[rank], below[rank + 1], out=below[rank])
        above = (-below[:length]).masked_fill_(~valid, -torch.inf)  # A
        for rank in range(1, len(above)):
            torch.logaddexp(above[rank], above[rank - 1], out=above[rank])
        loss = (below[:length] - columns[:length]).masked_fill_(~valid, 0.0).sum(0)
        columns[:length] += above
        columns[length:] += above[-1]
        gradient = columns.exp_()
        gradient[:length] -= valid.to(gradient.dtype)
        ctx.save_for_backward(gradient.movedim(0, -1))
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[..., None] * gradient, None
