"""Adam (Kingma and Ba, 2015) for a few dense tables.

PyTorch's own optimisers load its compiler at their first use, which takes as long as the training of a small log.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from concf.runtime.executors import each_block

FIRST, SECOND, LEAST = 0.9, 0.999, 1e-8  # decay of both moments, and what is added to the root of the second
CPU_CELLS = 1 << 16  # that go through together: what fits in a core's own cache


class Adam:
    """The moments of some tables, which `step` moves."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables, self.steps = tables, 0
        self.first, self.second = ([torch.zeros_like(each) for each in tables] for _ in range(2))

    @torch.no_grad()
    def step(self, rate: float, gradients: Sequence[Tensor]) -> None:
        """One step at a learning rate, along the gradient of each table."""
        self.steps += 1
        size, root = rate / (1 - FIRST**self.steps), (1 - SECOND**self.steps) ** 0.5
        for table, first, second, slope in zip(self.tables, self.first, self.second, gradients, strict=True):
            rows = len(table) if table.is_cuda else max(1, CPU_CELLS // table.shape[1])
            whole = table, first, second, slope

            def move(some: slice, whole: tuple[Tensor, ...] = whole, rows: int = rows) -> None:
                for table, first, second, slope in zip(*(torch.split(each[some], rows) for each in whole), strict=True):
                    first.lerp_(slope, 1 - FIRST)
                    second.mul_(SECOND).addcmul_(slope, slope, value=1 - SECOND)
                    table.addcdiv_(first, second.sqrt().div_(root).add_(LEAST), value=-size)

            each_block(move, len(table), table.device)
