"""What the paper does not say, varied: CF-B's map and weight decay, the share of L_CL, heads that start from ALS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.factorisation import ALS
from concf.evaluation.scorers import Factors
from concf.reference.balance import TINY, Balance, gradient_scale
from concf.reference.batches import Batch
from concf.reference.encoders import EVERY_HEAD
from concf.reference.head_losses import HeadLosses
from concf.reference.heads import DotHead, MetricHead, ProductHead, TableHead
from concf.reference.objectives import choose
from concf.reference.step import Term
from concf.reference.trainer import Trainer

DECAY = 0.01  # of `DecoupledDecay`: the default of PyTorch's AdamW
LEARNING_RATE = 0.01
UNOBSERVED, PENALTIES = (0.003, 0.01, 0.03, 0.1), (0.01, 0.03, 0.1, 0.3)  # of ALS
SHARE_RATE, SHARE_MOST = 0.1, 1.0  # of `keep_share`: how fast, and the paper's largest alpha
LOGIT = 10.0  # logits at the start, over the scores of ALS, which lie between 0 and 1


class UnbiasedMetricHead(MetricHead):
    """CF-B whose linear map has no bias."""

    def __init__(self, size: int, *_: int) -> None:
        super().__init__(size)
        self.map = torch.nn.Linear(size, size, bias=False)


CML_WITHOUT_BIAS = replace(choose(("cml",))["cml"], head=UnbiasedMetricHead)


class DecoupledDecay(HeadLosses):
    """Weight decay as in AdamW: a satisfied hinge has no gradient, and Adam would scale that of an L2 penalty alone."""

    def end(self) -> None:
        """After the gradients, and so before the step of Adam, which does not read the parameters."""
        super().end()
        with torch.no_grad():
            torch._foreach_mul_(list(self.model.parameters()), 1 - LEARNING_RATE * DECAY)


class StartsFrom(HeadLosses):
    """Heads over plain matrix factorisation that rank as given vectors do at the start; CF-B's are scaled to the ball.

    base: [users, d], [items, d] vectors whose inner products lie between 0 and 1
    """

    def __init__(self, base: Factors, *args: Any) -> None:
        super().__init__(*args)
        model = self.model
        with torch.no_grad():
            model.user.copy_(base.user)
            model.item.copy_(base.item)
            longest = torch.stack([table.norm(dim=2).max() for table in (model.user, model.item)]).max()
            for name, objective in zip(model.names, self.objectives.values(), strict=True):
                head, logits = model.head(name), name != "squared-error"
                if isinstance(head, TableHead):
                    head.table.weight.copy_(LOGIT * (model.item if objective.needs == "items" else model.user)[0])
                    head.table.bias.zero_()
                elif isinstance(head, DotHead | MetricHead):
                    scale = LOGIT**0.5 if isinstance(head, DotHead) else float(1 / longest)
                    head.map.weight.copy_(scale * torch.eye(len(head.map.weight)))
                    head.map.bias.zero_()
                elif isinstance(head, ProductHead):
                    head.map.weight.fill_(LOGIT if logits else 1.0)
                    head.map.bias.fill_(-LOGIT / 2 if logits else 0.0)


class KeptShares(Balance):
    """Weights of L_CL-x that `KeepsShare` moves. shares: [heads], at first alpha"""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shares = torch.full_like(self.weights, self.settings.consensus.weight)

    def consensus_weights(self) -> Tensor:
        """[heads] weights of L_CL-x."""
        return self.shares


class KeepsShare(Trainer):
    """The gradient of a head's consensus loss has a share of the scale of the head's own loss."""

    def __init__(self, share: float, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.share, heads = share, len(self.names)
        self.balance: KeptShares = KeptShares(self.settings, heads, self.device, self.model.user.dtype)
        self.weights = self.balance.weights

    def _set_gradients(self, batch: Batch, own: Term, learned: Term) -> tuple[Tensor, Tensor]:
        """Set the gradients, and move the shares for the next batch."""
        found = super()._set_gradients(batch, own, learned)
        if learned.tables:
            scales = self._scale(own.tables, (EVERY_HEAD, EVERY_HEAD)), self._scale(learned.tables, self.slices)
            self.balance.shares.copy_(keep_share(self.balance.shares, *scales, self.share))
        return found

    def _scale(self, tables: list[Tensor], slices: tuple[slice, slice]) -> Tensor:
        """[heads] gradient scale of one term. tables: as in `Term`, of the heads in `slices`"""
        squares = [self.weights.new_zeros(len(self.names)) for _ in tables]
        for square, table, heads in zip(squares, tables, slices, strict=True):
            square[heads] = table.square().sum((1, 2))
        return gradient_scale(squares, squares, self.settings.form.norm)[0]


def keep_share(weights: Tensor, own: Tensor, learned: Tensor, share: float) -> Tensor:
    """[heads] weights of L_CL-x, moved to where the scale of its gradient is `share` times that of the head's own loss.

    Each step goes a tenth of the way, by logarithm. own, learned: [heads] gradient scales of lambda_x L_CF-x and of
    L_CL-x with its present weight; where one of them is 0, the weight stays.
    """
    steps = (share * own / learned.clamp(min=TINY)).pow(SHARE_RATE)
    return torch.where((own > 0) & (learned > 0), weights * steps, weights).clamp(max=SHARE_MOST)


def best_als(train: csr_array, factors: int, seed: int, device: str, validate: Callable[[Factors], float]) -> Factors:
    """Fit ALS with the weight of unobserved pairs and the penalty that validation prefers."""
    grid = [ALS(factors=factors, unobserved=a, penalty=b) for a, b in product(UNOBSERVED, PENALTIES)]
    return max((each.fit(train, seed, device) for each in grid), key=validate)
