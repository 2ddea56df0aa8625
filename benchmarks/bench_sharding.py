"""What a process holds and sends in a training step with replicated and with sharded embedding tables.

python benchmarks/bench_sharding.py                                                      # one process
torchrun --standalone --nproc-per-node 2 benchmarks/bench_sharding.py [--shard] [--epoch | --strong [--many-items]]

Random pairs, as in bench_scaling.py; four heads that look at pairs, and the consensus target of random items, so that
as many rows as can travel do. A fresh job for each line: peak memory begins anew. Steps alone, or with --epoch one
epoch of fewer users and longer rows, its ranking, its consensus and its checkpoint, or with --strong the default preset
from the search to the last student, for many users or many items. On a CPU.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import gettempdir
from typing import Any

import torch
import torch.distributed as dist
from bench_scaling import random_split
from measuring import peak_memory, seconds, write

from concf.runtime.process_group import ProcessGroup, joined
from concf.training.checkpoint import CHECKPOINT
from concf.training.config.presets import choose_settings
from concf.training.train import train
from concf.training.trainer import Trainer

HEADS = ("bpr", "cml", "cross-entropy", "squared-error")


def bytes_sent(work: Callable[[], object]) -> dict[str, int]:
    """What this process hands over to be added up, and what it sends to the others by name."""
    sizes = {"added": 0, "sent": 0}
    add_up, exchange = dist.all_reduce, dist.all_to_all_single

    def counted(tensor: torch.Tensor, *words: Any, **more: Any) -> Any:
        sizes["added"] += tensor.numel() * tensor.element_size()
        return add_up(tensor, *words, **more)

    def counted_rows(into: torch.Tensor, rows: torch.Tensor, received: list[int], sent: list[int]) -> Any:
        others = sum(sent) - sent[dist.get_rank()]
        sizes["sent"] += others * rows[:1].numel() * rows.element_size()
        return exchange(into, rows, received, sent)

    dist.all_reduce, dist.all_to_all_single = counted, counted_rows  # type: ignore[assignment]
    try:
        work()
    finally:
        dist.all_reduce, dist.all_to_all_single = add_up, exchange
    return sizes


def measure(group: ProcessGroup, users: int, items: int, pairs: int, steps: int) -> dict[str, Any]:
    settings = choose_settings("reference", words=[f"objectives={list(HEADS)}"])
    data = random_split(users, items, pairs)
    before = peak_memory()
    trainer = Trainer(data, settings, 0, "cpu", group=group)
    trainer.consensus.target.random_(items, generator=torch.Generator().manual_seed(0))
    batches = list(trainer._draw(0).split(trainer.batch_size))[:steps]
    parts = [batch.part(group.share(len(batch))) if group.several else batch for batch in batches]
    sent = bytes_sent(lambda: trainer._step(parts[0], True))
    times = [seconds(partial(trainer._step, part, True)) for part in parts[1:]]
    state = [part for parts in trainer.optimiser.state.values() for part in parts.values()]
    held = sum(each.numel() * each.element_size() for each in [*trainer.model.parameters(), *state])
    peaks = group.gather(torch.tensor([before, peak_memory(), held / 2**20], dtype=torch.float64)[None], group.size)
    return {
        "users": users, "items": items, "batch": trainer.batch_size, "heads": list(HEADS), "processes": group.size,
        "divided": group.sharded, "peak_mb_before": peaks[:, 0].tolist(), "peak_mb": peaks[:, 1].tolist(),
        "parameters_and_optimiser_mb": peaks[:, 2].tolist(), "bytes_added_a_step": sent["added"],
        "bytes_sent_to_others_a_step": sent["sent"], "median_step_seconds": median(times), "steps": len(times),
    }  # fmt: skip


def one_epoch(group: ProcessGroup) -> dict[str, Any]:
    """The peak of one epoch and all that comes after it."""
    sizes = {"users": 20_000, "items": 20_000, "dimensions": 512, "batch": 16384}
    words = [f"objectives={list(HEADS)}", "training.epochs=1", "model.dimensions=512", "training.batch=16384"]
    return sizes | {"heads": list(HEADS)} | whole_run(group, "reference", words, sizes, 200_000)


def the_default(group: ProcessGroup, many_items: bool) -> dict[str, Any]:
    """The peak of all stages of the preset strong, with the budget fast."""
    sizes = {"users": 40_000, "items": 1_000, "dimensions": 64}
    if many_items:
        sizes = {"users": 2_000, "items": 100_000, "dimensions": 256}
    words = [f"model.dimensions={sizes['dimensions']}", "recipe.budget=fast"]
    return sizes | {"budget": "fast"} | whole_run(group, "strong", words, sizes, 300_000)


def whole_run(group: ProcessGroup, preset: str, words: list[str], sizes: dict[str, int], pairs: int) -> dict[str, Any]:
    data = random_split(sizes["users"], sizes["items"], pairs)
    before = peak_memory()
    out = Path(gettempdir()) / f"dividing-{os.getppid()}"  # of one launcher
    settings = choose_settings(preset, words=words)
    took = seconds(lambda: train(data, settings, out=out, group=group, device="cpu"))
    size = (out / CHECKPOINT).stat().st_size
    group.barrier()
    if group.is_main:
        rmtree(out)
    peaks = group.gather(torch.tensor([before, peak_memory()], dtype=torch.float64)[None], group.size)
    return {
        "preset": preset, "processes": group.size, "divided": group.sharded, "run_seconds": took,
        "peak_mb_before": peaks[:, 0].tolist(), "peak_mb": peaks[:, 1].tolist(), "checkpoint_mb": size / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=300_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--epoch", action="store_true")
    parser.add_argument("--strong", action="store_true")
    parser.add_argument("--many-items", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with joined(shards=chosen.shard) as group:
        if chosen.epoch or chosen.strong:
            result = the_default(group, chosen.many_items) if chosen.strong else one_epoch(group)
        else:
            result = measure(group, chosen.users, chosen.items, chosen.pairs, chosen.steps)
        if group.is_main:
            write("processes", {"data": "random pairs", "preset": "reference"} | result)


if __name__ == "__main__":
    main()
