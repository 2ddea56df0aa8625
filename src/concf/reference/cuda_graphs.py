"""A step as one CUDA graph: hundreds of small operations are launched as one, and those that can go side by side.

On a CPU the step is simply called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from concf.reference.batches import Batch

WARM_UP = 3  # steps of a kind before it is captured; they are real steps
STREAMS = 8  # of one set of streams at most; PyTorch has 32, and hands them out again in turn


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    result: Tensor


class CudaGraph:
    """`step(batch, teaching)`; on a GPU one captured graph for each length of batch and each kind of step.

    noise: the generator that the step draws from; a replay goes on drawing from it.
    on: whether steps are captured at all
    stream: where steps run, captured or not. It is none of the step's own streams, as one of PyTorch's choice might be:
    what a stream gives back would then be free at once to be written to, while another stream still reads it
    """

    def __init__(self, step: Callable[[Batch, bool], Tensor], noise: torch.Generator, on: bool = True) -> None:
        self.step, self.noise, self.on = step, noise, on
        self.stream = _stream(noise.device) if noise.device.type == "cuda" else None
        self.calls: dict[tuple[int, bool], int] = {}
        self.graphs: dict[tuple[int, bool], _Graph] = {}

    def __call__(self, batch: Batch, teaching: bool) -> Tensor:
        """[3, heads] what the step gives; overwritten by the next call."""
        if not batch.user.is_cuda or not self.on:
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

    def forget(self) -> None:
        """Give back the memory of the captured graphs, which hold the step and are held by it."""
        self.graphs.clear()

    def _aside(self, batch: Batch, teaching: bool) -> Tensor:
        """On a stream of its own, as a capture will be."""
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.step(batch, teaching)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, batch: Batch, teaching: bool) -> _Graph:
        mine = batch.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.noise)
        shared = next(iter(self.graphs.values())).graph.pool() if self.graphs else None  # they never run at once
        with _nothing_collected(), torch.cuda.graph(graph, pool=shared, stream=self.stream):
            result = self.step(mine, teaching)
        return _Graph(graph, mine, result)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Graphs of earlier trainings may wait in cycles for the collector, and to free one ends a capture under way."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Streams:
    """Work that does not depend on each other, side by side on a GPU: small operations leave most of it idle.

    A gradient is computed in the stream of its loss. So streams are joined again after the gradients, and until then
    what they read from outside is kept: its memory must not be given to others while a stream may still read it.
    On a CPU one thing is done after the other.
    """

    def __init__(self, device: torch.device, n: int) -> None:
        self.streams = [_stream(device) for _ in range(min(n, STREAMS))] if device.type == "cuda" else []
        self.used: set[int] = set()
        self.kept: list[Tensor] = []

    @contextmanager
    def stream(self, number: int, *reads: Tensor) -> Iterator[None]:
        """What is begun in the block waits for what was begun before it outside. reads: what it reads from there."""
        if not self.streams:
            yield
            return
        number %= len(self.streams)
        stream = self.streams[number]
        self.used.add(number)
        self.kept += reads
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def join(self) -> None:
        """What is begun from now on waits for all streams that were used."""
        for number in sorted(self.used):
            torch.cuda.current_stream().wait_stream(self.streams[number])

    def end(self) -> None:
        """Join for the last time in this step, after the gradients."""
        self.join()
        self.used.clear()
        self.kept.clear()
