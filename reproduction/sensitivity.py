"""What the paper does not say, varied: how CF-B's map and weight decay are, and heads that start from ALS vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from scipy.sparse import csr_array

from concf.baselines.factorisation import ALS
from concf.evaluation.scorers import Factors
from concf.reference.head_losses import HeadLosses
from concf.reference.heads import DotHead, MetricHead, ProductHead, TableHead
from concf.reference.objectives import choose

DECAY = 0.01  # of `DecoupledDecay`: the default of PyTorch's AdamW
LEARNING_RATE = 0.01
UNOBSERVED, PENALTIES = (0.003, 0.01, 0.03, 0.1), (0.01, 0.03, 0.1, 0.3)  # of ALS
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


def best_als(train: csr_array, factors: int, seed: int, device: str, validate: Callable[[Factors], float]) -> Factors:
    """Fit ALS with the weight of unobserved pairs and the penalty that validation prefers."""
    grid = [ALS(factors=factors, unobserved=a, penalty=b) for a, b in product(UNOBSERVED, PENALTIES)]
    return max((each.fit(train, seed, device) for each in grid), key=validate)
