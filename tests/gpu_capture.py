"""Does a captured step race? Not collected by itself: `pytest tests/gpu_capture.py` with a GPU.

A step runs its heads on CUDA streams of their own. If one could read memory that another may already overwrite, the
figures would depend on which is faster, and mostly be right. So a step is captured again and again with another stream
held up each time; memory is poisoned with NaN wherever the allocator may hand it out again, and all memory of the graph
before every replay; and the sums that a GPU adds in any order are replaced by sums in a fixed order (`in_order`). Every
replay must then give the bits of the same step on one stream.

With the sums as they are, two steps on one stream differ as much as a captured one does from either: by rounding. Adam
divides a gradient by its size, so where that is nothing but rounding, as of a bias that changes no distance, the
parameters part by whole steps, and the losses of an epoch by 3e-4 of their size (measured on an H200). Epochs are
therefore compared with the sums in order, bit by bit, and steps with the sums as they are.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products in a fixed order; read when CUDA starts

import pytest
import torch
from gpu_kernels import moving, settings, small, with_a_student
from torch import Tensor

from concf.reference import kernels
from concf.reference.cuda_graphs import Streams
from concf.reference.head_losses import HeadLosses
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")

REPLAYS = 100
HELD_UP = 400_000  # cycles, about 0.2 ms: longer than the whole step
POISON = 0xFF  # in every byte: NaN in all kinds of floats, -1 in integers


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def kind(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """In float64 PyTorch's own operations, in float32 the Triton kernels."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every sum of a step whose order a GPU leaves open, in a fixed order.

    1. the gradient of rows that are taken from a table: scatter_add_ and index_add_ (`rows._add_rows`,
       `batches.distinct`, `kernels._transposed_product`), which PyTorch has deterministic variants of
    2. the gradient of listed items: `triton_kernels._listed_gradient_kernel`
    3. a sparse product by cuSPARSE
    """
    dense: dict[int, Tensor] = {}

    def product(matrix: Tensor, right: Tensor) -> Tensor:
        cells = matrix.values().data_ptr()
        if cells not in dense:
            dense[cells] = matrix.to_dense()
        return dense[cells] @ right

    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, right: Tensor) -> Tensor:
        ctx.transposed = transposed
        return product(matrix, right)

    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None, Tensor]:
        return None, None, product(ctx.transposed, upstream)

    monkeypatch.setattr(kernels._SparseProduct, "forward", staticmethod(forward))
    monkeypatch.setattr(kernels._SparseProduct, "backward", staticmethod(backward))
    if triton_kernels := kernels._triton_kernels():
        monkeypatch.setattr(triton_kernels, "listed_scores_gradient", listed_gradient_in_order)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # the poison is there for that
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def listed_gradient_in_order(user: Tensor, item: Tensor, lists: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    """`triton_kernels.listed_scores_gradient` without atomic additions."""
    groups, n = len(user), item.shape[1]
    d_user = torch.einsum("gbl,gbld->gbd", upstream, item[:, lists])
    pulled = upstream[..., None] * user[:, :, None]  # [g, b, L, d]
    at = (torch.arange(groups, device=lists.device)[:, None] * n + lists.flatten()).flatten()
    d_item = item.new_zeros(groups * n, item.shape[2]).index_add_(0, at, pulled.flatten(0, 2))
    d_bias = item.new_zeros(groups * n).index_add_(0, at, upstream.flatten())
    return d_user, upstream.sum(2), d_item.view_as(item), d_bias.view(groups, n)


class Poison:
    """Overwrites what the allocator may hand out again."""

    def __init__(self) -> None:
        major = (torch.version.cuda or "").split(".")[0]
        self.runtime = ctypes.CDLL(f"libcudart.so.{major}")
        self.bytes = 0

    def free(self) -> None:
        """All memory that the current stream has given back: its next operation might write there."""
        stream = torch.cuda.current_stream().cuda_stream
        capturing = torch.cuda.is_current_stream_capturing()
        for segment in torch.cuda.memory_snapshot():
            if segment["stream"] == stream and (tuple(segment["segment_pool_id"]) != (0, 0)) == capturing:
                for block in segment["blocks"]:
                    if block["state"] == "inactive":
                        self.fill(block["address"], block["size"], stream)

    def graph(self, pool: tuple[int, int]) -> None:
        """All memory of a graph."""
        torch.cuda.synchronize()
        for segment in torch.cuda.memory_snapshot():
            if tuple(segment["segment_pool_id"]) == tuple(pool):
                self.fill(segment["address"], segment["total_size"], 0)
        torch.cuda.synchronize()

    def fill(self, address: int, size: int, stream: int) -> None:
        code = self.runtime.cudaMemsetAsync(
            ctypes.c_void_p(address), POISON, ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        assert code == 0, f"cudaMemsetAsync: {code}"
        self.bytes += size


class HeldUp(torch.autograd.Function):
    """Keeps the stream of a value waiting before its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        torch.cuda._sleep(HELD_UP)
        return upstream.clone()


class Lab:
    """One state of one run, from which the same step is made again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, preset: str, dropout: float) -> None:
        self.trainer = Trainer(small(), chosen(preset, dropout), 3, "cuda")
        self.patch, self.poison = monkeypatch, Poison()
        self.trainer.step.on = False
        for epoch in range(2):
            self.trainer.epoch(epoch)
            self.trainer.consensus.update()
        assert self.trainer.distils(2)
        self.batch = next(self.trainer._draw(2).split(self.trainer.settings.training.batch))
        self.start = [part.clone() for part in moving(self.trainer)]
        torch.cuda.synchronize()

    def streams(self) -> dict[str, tuple[Streams, int]]:
        """All streams of a step by name."""
        trainer = self.trainer
        owners = {
            "step": trainer.streams,
            "own": trainer.head_losses.streams,
            "consensus_loss": trainer.head_losses.consensus_streams,
        }
        return {f"{name} {k}": (owner, k) for name, owner in owners.items() for k in range(len(owner.streams))}

    def again(self, step: Callable[[], Tensor]) -> list[Tensor]:
        """Everything that a step from the start leaves behind."""
        for part, before in zip(moving(self.trainer), self.start, strict=True):
            part.copy_(before)
        self.trainer.noise.manual_seed(7)
        torch.cuda.synchronize()
        report = step()
        torch.cuda.synchronize()
        return [report.clone(), *(part.clone() for part in moving(self.trainer))]

    def eager(self) -> list[Tensor]:
        """One thing after the other, on one stream."""
        owners = {id(owner): owner for owner, _ in self.streams().values()}.values()
        streams = [owner.streams for owner in owners]
        for owner in owners:
            owner.streams = []
        found = self.again(lambda: self.trainer._step(self.batch, True))
        for owner, each in zip(owners, streams, strict=True):
            owner.streams = each
        return found

    @contextmanager
    def hazards(self, held_up: str | None) -> Iterator[None]:
        """One stream is slow, there and back; what streams have given back is poisoned."""
        slow, poison = self.streams().get(held_up or ""), self.poison
        stream, join, end, own = Streams.stream, Streams.join, Streams.end, HeadLosses._own

        @contextmanager
        def slow_stream(owner: Streams, place: int, *broadcast: Tensor) -> Iterator[None]:
            with stream(owner, place, *broadcast):
                if slow == (owner, place):
                    torch.cuda._sleep(HELD_UP)
                yield
                poison.free()
            poison.free()

        def poisoned(method: Callable[[Streams], None]) -> Callable[[Streams], None]:
            def both(owner: Streams) -> None:
                poison.free()
                method(owner)
                poison.free()

            return both

        def slow_back(owner: HeadLosses, name: str, *parts: Any) -> Tensor:
            cost = own(owner, name, *parts)
            mine = slow is not None and slow == (owner.streams, owner.model.names.index(name))
            return HeldUp.apply(cost) if mine else cost

        with self.patch.context() as patch:
            patch.setattr(Streams, "stream", slow_stream)
            patch.setattr(Streams, "join", poisoned(join))
            patch.setattr(Streams, "end", poisoned(end))
            patch.setattr(HeadLosses, "_own", slow_back)
            yield

    def replays(self, held_up: str | None, times: int) -> Iterator[list[Tensor]]:
        """What each replay of a newly captured step leaves behind."""
        with self.hazards(held_up):
            graph, _batch, result = self.trainer.step._capture(self.batch, True)

        def replay() -> Tensor:
            self.poison.graph(graph.pool())
            graph.replay()
            return result

        for _ in range(times):
            yield self.again(replay)


def chosen(preset: str, dropout: float) -> RunSettings:
    parts: dict[str, Any] = {"model": {"dimensions": 24, "dropout": dropout, "initial_std": 0.3}}
    return with_a_student(**parts) if preset == "student" else settings(preset, **parts)


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


CASES = pytest.mark.parametrize(("preset", "dropout"), [("reference", 0.3), ("student", 0.0)])


@CASES
@pytest.mark.usefixtures("kind", "in_order")
def test_replays_have_the_bits_of_one_stream(monkeypatch: pytest.MonkeyPatch, preset: str, dropout: float) -> None:
    lab = Lab(monkeypatch, preset, dropout)
    expected, held_up = lab.eager(), [None, *lab.streams()]
    assert all(part.isfinite().all() for part in expected)
    times = -(-REPLAYS // len(held_up))
    different = {each: sum(not equal(found, expected) for found in lab.replays(each, times)) for each in held_up}
    assert not any(different.values()), f"of {times} replays with a stream held up: {different}"
    assert lab.poison.bytes > 0


@pytest.mark.parametrize("heads", [2, 30])
def test_no_two_streams_of_a_step_are_one_stream(heads: int) -> None:
    """Nor one of them the stream that the step is captured on: PyTorch hands out 32 streams in turn."""
    names = {"objectives": tuple(f"bpr#{k}" for k in range(heads))}
    for _ in range(3):
        trainer = Trainer(small(), chosen("reference", 0.0).model_copy(update=names), 3, "cuda")
        owners = (trainer.streams, trainer.head_losses.streams, trainer.head_losses.consensus_streams)
        streams = [trainer.step.stream, *(stream for owner in owners for stream in owner.streams)]
        assert len({stream.cuda_stream for stream in streams}) == len(streams)


@pytest.mark.usefixtures("kind", "in_order")
def test_a_race_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of old: what a stream reads is given back, and so to others, while the stream may still be at work."""
    lab = Lab(monkeypatch, "reference", 0.0)
    expected, stream = lab.eager(), Streams.stream
    monkeypatch.setattr(Streams, "stream", lambda owner, place, *_: stream(owner, place))
    assert all(not equal(found, expected) for held_up in lab.streams() for found in lab.replays(held_up, 2))


@CASES
@pytest.mark.usefixtures("kind", "in_order")
def test_captured_epochs_have_the_bits_of_eager_ones(preset: str, dropout: float) -> None:
    captured, eager = (Trainer(small(), chosen(preset, dropout), 3, "cuda") for _ in range(2))
    eager.step.on = False
    losses = []
    for epoch in range(4):
        one, other = captured.epoch(epoch), eager.epoch(epoch)
        losses.append(sum(one["loss"].values()))
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
        assert equal(moving(captured), moving(eager))
        for trainer in (captured, eager):
            trainer.consensus.update()
    assert len(captured.step.graphs) >= 2
    assert not eager.step.graphs
    assert losses[-1] < losses[0]
