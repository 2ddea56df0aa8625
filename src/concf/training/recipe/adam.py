"""Adam (Kingma and Ba, 2015) for a few dense tables.

PyTorch's own optimisers load its compiler at their first use, which takes as long as the training of a small log.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST, SECOND, LEAST = 0.9, 0.999, 1e-8  # decay of both moments, and what is added to the root of the second


class Adam:
    """The moments of some tables, which `step` moves along their gradients."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables, self.steps = tables, 0
        self.first, self.second = ([torch.zeros_like(each) for each in tables] for _ in range(2))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step at a learning rate; the gradients are gone afterwards."""
        self.steps += 1
        size, root = rate / (1 - FIRST**self.steps), (1 - SECOND**self.steps) ** 0.5
        for table, first, second in zip(self.tables, self.first, self.second, strict=True):
            assert table.grad is not None
            first.lerp_(table.grad, 1 - FIRST)
            second.mul_(SECOND).addcmul_(table.grad, table.grad, value=1 - SECOND)
            table.addcdiv_(first, (second.sqrt() / root).add_(LEAST), value=-size)
            table.grad = None
