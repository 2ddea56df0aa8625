# mypy: ignore-errors
"""Triton kernels beside `torch.compile` of plain formulas: the captured step of `reference` with the consensus loss.

    python benchmarks/bench_compiled.py DATA [DATA ...]

Each variant is measured in the same process, a fresh trainer each. `kernels`: as the code is; `plain`: no kernel;
`compiled`: every formula through `torch.compile`; `X compiled`: one formula compiled, kernels for the others; `X kept`:
one kernel kept, the others compiled. Then whole runs with one seed,
twice with kernels and twice compiled: how far their validation curves are apart.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from measuring import write
from torch import Tensor

import concf.model.encoders
import concf.model.heads
import concf.model.kernels as kernels
import concf.model.losses
import concf.model.rows
import concf.training.head_losses
import concf.training.trainer
from concf.data.split import Split
from concf.training.config.presets import choose_settings
from concf.training.train import train
from concf.training.trainer import Trainer

FORMULAS = ("partition", "listed", "layers", "product", "sums", "listwise")


def partition(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, rows, table.T).logsumexp(1)


def listed(user: Tensor, offset: Tensor, item: Tensor, bias: Tensor, lists: Tensor) -> Tensor:
    return (user[:, :, None] * item[:, lists]).sum(-1) + offset[..., None] + bias[:, lists]


def layers(rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, kept: Tensor | None) -> Tensor:
    hidden = rows @ w + b
    return (hidden if kept is None else hidden * kept).relu() @ v + c


def sums(mine: Tensor, more: Tensor | None, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    whole = mine
    if more is not None:
        ends = first, len(mine) - first - len(more)
        whole = mine + torch.nn.functional.pad(more, (0, 0, 0, 0, *ends))
    return whole.sum(0), whole.square().sum((1, 2)), (mine * whole).sum((1, 2))


def listwise(scores: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The loss of Eq. 13 and its gradient in closed form."""
    below = scores.flip(-1).logcumsumexp(-1).flip(-1)
    there = scores[..., :length] > -torch.inf
    above = (-below[..., :length]).masked_fill(~there, -torch.inf).logcumsumexp(-1)
    above = (
        torch.nn.functional.pad(above, (0, scores.shape[-1] - length), mode="replicate") if scores.ndim < 4 else above
    )
    loss = (below - scores)[..., :length].masked_fill(~there, 0.0).sum(-1)
    there = torch.nn.functional.pad(there, (0, scores.shape[-1] - length))
    return loss, (scores + above).exp() - there.to(scores.dtype)


@contextmanager
def patched(with_kernel: set[str], compiled: set[str]) -> Iterator[None]:
    """The step's formulas by a variant. A kernel is told by the shape of its call, so each has its own switch."""
    made = {name: torch.compile(each, dynamic=False) for name, each in PLAIN.items() if name in compiled}
    has = kernels.has_kernel

    def switch(name: str) -> Callable[[Tensor], bool]:
        return lambda tensor: name in with_kernel and has(tensor)

    with ExitStack() as stack:

        def put(target: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(target, name, value))

        # every autograd function looks up `has_kernel` in its module: one copy of the module's globals for each
        for name, cls in (
            ("partition", kernels._LogPartition),
            ("listed", kernels._ListedScores),
            ("layers", kernels._TwoLayers),
        ):
            for method in ("forward", "backward"):
                put(cls, method, staticmethod(rebound(getattr(cls, method), has_kernel=switch(name))))
        put(kernels, "_product", rebound(kernels._product, has_kernel=switch("product")))
        put(
            concf.training.trainer,
            "sums_of_groups",
            made.get("sums") or rebound(concf.model.rows.sums_of_groups, has_kernel=switch("sums")),
        )
        function = concf.model.losses._NegativeLogPermutation
        if "listwise" in made:

            def forward(ctx: Any, scores: Tensor, length: int) -> Tensor:
                loss, gradient = made["listwise"](scores, length)
                ctx.save_for_backward(gradient)
                return loss

            put(function, "forward", staticmethod(forward))
        else:
            put(function, "forward", staticmethod(rebound(function.forward, has_kernel=switch("listwise"))))
        if "partition" in made:
            for module in (concf.model.heads, concf.training.head_losses):
                put(module, "log_partition", made["partition"])
        if "listed" in made:
            put(concf.training.head_losses, "listed_scores", made["listed"])
        if "layers" in made:

            def two(rows, first, second, dropout=0.0, noise=None):  # type: ignore[no-untyped-def]
                kept = None
                if noise is not None and dropout:
                    shape = max(len(rows), len(first[0])), rows.shape[1], first[0].shape[2]
                    kept = kernels._kept(rows.new_empty(shape), dropout, noise).to(rows.dtype)
                return made["layers"](rows, *first, *second, kept)

            put(concf.model.encoders, "two_layers", two)
        yield


PLAIN = {"partition": partition, "listed": listed, "layers": layers, "sums": sums, "listwise": listwise}


def rebound(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """The same function with other global names."""
    import types

    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def step_milliseconds(data: Split) -> dict[str, float]:
    trainer = Trainer(data, choose_settings("reference"), 0, "cuda")
    batch = next(trainer.sampler.epoch(0, 0).to(trainer.device).split(trainer.settings.training.batch))
    for _ in range(trainer.settings.consensus.window):
        trainer.consensus.update()
    found = {}
    for name, taught in (("warm_up", False), ("step", True)):
        times = []
        begin = time.perf_counter()
        with trainer._precision():
            for n in range(205):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                if n == 5:
                    torch.cuda.synchronize()
                    found[f"{name}_first_seconds"] = time.perf_counter() - begin
                start.record()
                report = trainer.step(batch, taught)
                end.record()
                times.append((start, end))
        torch.cuda.synchronize()
        elapsed = sorted(start.elapsed_time(end) for start, end in times[5:])
        found[name] = elapsed[len(elapsed) // 2]
        found[f"{name}_losses"] = report[:2].tolist()
    found["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
    trainer.end()
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return found


def curve(data: Split, epochs: int) -> list[dict[str, float]]:
    settings = choose_settings("reference", {"training": {"epochs": epochs, "patience": None}})
    run = train(data, settings, seed=0, device="cuda")
    return [
        record["validation"] for record in run.history if "validation" in record and "consensus" in record["validation"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--variants", default="")
    words = parser.parse_args()
    every, plain = set(FORMULAS), {"product"}
    variants: dict[str, tuple[set[str], set[str]]] = {
        "kernels": (every, set()),
        "plain": (set(), set()),
        "compiled": (set(), every - plain),
    }
    for name in FORMULAS:
        variants[f"{name} kept"] = {name}, every - {name} - plain
    chosen = words.variants.split(",") if words.variants else list(variants)
    for folder in words.data:
        data = Split.load(folder)
        about = {
            "data": data.recipe.source["name"],
            "protocol": data.recipe.protocol.name,
            "device": torch.cuda.get_device_name(),
        }
        for name in chosen:
            with patched(*variants[name]):
                torch._dynamo.reset()
                try:
                    line = step_milliseconds(data)
                except Exception as error:  # one variant that fails must not end the others
                    line = {"error": f"{type(error).__name__}: {error}"[:600]}
                print(write("compiled", about | {"variant": name} | line), flush=True)
        if words.epochs:
            for name in ("kernels", "kernels", "compiled", "compiled"):
                with patched(*variants[name]):
                    torch._dynamo.reset()
                    begin = time.perf_counter()
                    curves = curve(data, words.epochs)
                    print(
                        write(
                            "compiled",
                            about | {"variant": name, "curve": curves, "seconds": time.perf_counter() - begin},
                        ),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
