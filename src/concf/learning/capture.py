"""A step as one CUDA graph: hundreds of small operations are launched as one. On a CPU the step is simply called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from concf.learning.batches import Batch

WARM_UP = 3  # steps of a kind before it is captured; they are real steps


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    result: Tensor


class Captured:
    """`step(batch, teaching)`; on a GPU one captured graph for each length of batch and each kind of step.

    noise: the generator that the step draws from; a replay goes on drawing from it.
    """

    def __init__(self, step: Callable[[Batch, bool], Tensor], noise: torch.Generator) -> None:
        self.step, self.noise = step, noise
        self.calls: dict[tuple[int, bool], int] = {}
        self.graphs: dict[tuple[int, bool], _Graph] = {}

    def __call__(self, batch: Batch, teaching: bool) -> Tensor:
        """[3, heads] what the step gives; overwritten by the next call."""
        if not batch.user.is_cuda:
            return self.step(batch, teaching)
        kind = (len(batch), teaching)
        if self.calls.get(kind, 0) < WARM_UP:
            self.calls[kind] = self.calls.get(kind, 0) + 1
            return self._aside(batch, teaching)
        if kind not in self.graphs:
            self.graphs[kind] = self._capture(batch, teaching)
        captured = self.graphs[kind]
        captured.batch.copy_(batch)
        captured.graph.replay()
        return captured.result

    def _aside(self, batch: Batch, teaching: bool) -> Tensor:
        """On a stream of its own, as a capture will be."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            result = self.step(batch, teaching)
        torch.cuda.current_stream().wait_stream(aside)
        return result

    def _capture(self, batch: Batch, teaching: bool) -> _Graph:
        mine = Batch(batch.user.clone(), batch.positive.clone(), batch.negative.clone())
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.noise)
        with torch.cuda.graph(graph):
            result = self.step(mine, teaching)
        return _Graph(graph, mine, result)
