"""Capture a training step as one CUDA graph, with independent operations in parallel streams.

On a CPU the step is simply called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from concf.reference.batches import Batch

WARM_UP = 3  # eager steps before a capture; they train the model too
STREAMS = 8  # most streams of a set; PyTorch has a pool of 32
Captured = tuple[torch.cuda.CUDAGraph, Batch, Tensor]  # a step, the batch that it reads, and its result


class CudaGraph:
    """Call `step(batch, distils)`; on a GPU by a graph for each batch size, with and without consensus loss.

    noise: generator of the step's random numbers; replays continue its sequence
    on: whether steps are captured
    stream: stream of all steps, captured or not. It must be none of the step's own streams: memory freed on a stream
    can be reused on it at once, while another stream may still read it
    """

    def __init__(self, step: Callable[[Batch, bool], Tensor], noise: torch.Generator, on: bool = True) -> None:
        self.step, self.noise, self.on = step, noise, on
        self.stream = _stream(noise.device) if noise.device.type == "cuda" else None
        self.calls: dict[tuple[int, bool], int] = {}
        self.graphs: dict[tuple[int, bool], Captured] = {}

    def __call__(self, batch: Batch, distils: bool) -> Tensor:
        """[3, heads] result of the step; overwritten by the next call."""
        if not batch.user.is_cuda or not self.on:
            return self.step(batch, distils)
        kind = (len(batch), distils)
        if self.calls.get(kind, 0) < WARM_UP:
            self.calls[kind] = self.calls.get(kind, 0) + 1
            assert self.stream is not None
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):  # eagerly, on the stream of the captures
                result = self.step(batch, distils)
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if kind not in self.graphs:
            self.graphs[kind] = self._capture(batch, distils)
        graph, static, result = self.graphs[kind]
        static.copy_(batch)
        graph.replay()
        return result

    def _capture(self, batch: Batch, distils: bool) -> Captured:
        graph, static = torch.cuda.CUDAGraph(), batch.clone()
        graph.register_generator_state(self.noise)
        shared = next(iter(self.graphs.values()))[0].pool() if self.graphs else None  # graphs never run concurrently
        collects = gc.isenabled()
        gc.disable()  # freeing a graph of an earlier training would abort the capture
        try:
            with torch.cuda.graph(graph, pool=shared, stream=self.stream):
                return graph, static, self.step(static, distils)
        finally:
            if collects:
                gc.enable()


def make_adam(parameters: Iterable[Tensor], device: torch.device, lr: float, decay: float = 0.0) -> torch.optim.Adam:
    """Fused Adam; on a GPU its steps can be captured."""
    on_gpu = device.type == "cuda"
    return torch.optim.Adam(parameters, lr=lr, weight_decay=decay, fused=True, capturable=on_gpu)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Streams:
    """Parallel CUDA streams for independent operations, since small ones leave most of a GPU idle.

    Autograd runs a backward pass in the stream of the forward pass. So streams are joined again after the gradients,
    and tensors that they read are kept until then: their memory must not be reused while a stream may still read it.
    On a CPU everything runs in order.
    """

    def __init__(self, device: torch.device, n: int) -> None:
        self.streams = [_stream(device) for _ in range(min(n, STREAMS))] if device.type == "cuda" else []
        self.used: set[int] = set()
        self.kept: list[Tensor] = []

    @contextmanager
    def stream(self, number: int, *reads: Tensor) -> Iterator[None]:
        """Run the block on stream `number`, after the work before it. reads: tensors made on other streams"""
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
        """Let the current stream wait for all streams in use."""
        for number in sorted(self.used):
            torch.cuda.current_stream().wait_stream(self.streams[number])

    def end(self) -> None:
        """Join for the last time in this step, after the gradients, and free the kept tensors."""
        self.join()
        self.used.clear()
        self.kept.clear()
