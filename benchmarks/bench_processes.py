"""A training step and the heads' agreement in several processes beside one process, and what travels.

torchrun --standalone --nproc-per-node 2 benchmarks/bench_processes.py DATA [--set training.batch=8192]

DATA: a prepared data set, such as `concf prepare citeulike --protocol paper --out DATA`. All in turns, in one job:
while one process works alone the others wait. On a CPU; every process of several has one thread. The consensus target
is of random items, so that as many rows as can travel do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import fastest, in_turns, medians, write

from concf.data.split import Split
from concf.models import choose_settings
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings
from concf.runtime.process_group import ALONE, ProcessGroup, joined


def alone(group: ProcessGroup, threads: int, work: Callable[[], object]) -> Callable[[], None]:
    """The first process with so many threads; the others wait for it."""

    def turn() -> None:
        if group.is_main:
            torch.set_num_threads(threads)
            work()
            torch.set_num_threads(1)
        group.barrier()

    return turn


def everyone(group: ProcessGroup, work: Callable[[], object]) -> Callable[[], None]:
    """All processes at once."""

    def turn() -> None:
        group.barrier()
        work()

    return turn


def bytes_added(work: Callable[[], object]) -> int:
    """What a process hands over to be added up."""
    sizes, add_up = [], dist.all_reduce

    def counted(tensor: torch.Tensor, *words: Any, **more: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return add_up(tensor, *words, **more)

    dist.all_reduce = counted
    try:
        work()
    finally:
        dist.all_reduce = add_up
    return sum(sizes)


def busy_seconds(work: Callable[[], object], rounds: int = 20) -> float:
    """How long a processor works for this process in one call: what else the machine does hardly shows."""
    begin = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - begin) / rounds


def measure(data: Split, settings: RunSettings, group: ProcessGroup) -> dict[str, Any]:
    together, single = Trainer(data, settings, 0, "cpu", group=group), Trainer(data, settings, 0, "cpu", group=ALONE)
    for trainer in (single, together):
        trainer.consensus.update()
        trainer.consensus.target.random_(data.train.shape[1], generator=torch.Generator().manual_seed(0))
    batch = next(together.sampler.epoch(0, 0).split(together.batch_size))
    part = batch.part(group.share(len(batch)))
    steps: dict[str, Callable[[], None]] = {
        "together": everyone(group, lambda: together._step(part, True)),
        "alone": alone(group, 1, lambda: single._step(batch, True)),
        "alone_with_all_threads": alone(group, group.size, lambda: single._step(batch, True)),
    }
    agreements: dict[str, Callable[[], None]] = {
        "together": everyone(group, together.consensus.update),
        "alone": alone(group, 1, single.consensus.update),
        "alone_with_all_threads": alone(group, group.size, single.consensus.update),
    }
    added, before = (bytes_added(partial(together._step, part, teaching)) for teaching in (True, False))
    step = in_turns(steps, rounds=25, warm_up=3)
    busy = {name: busy_seconds(steps[name]) for name in ("together", "alone")}
    agreement = in_turns(agreements, rounds=5)
    flat = torch.zeros(added // 4)
    adding = in_turns({"adding": lambda: group.all_reduce([flat])}, rounds=10)
    return {
        "users": data.train.shape[0], "items": data.train.shape[1], "batch": len(batch), "processes": group.size,
        "median_step_seconds": medians(step), "fastest_step_seconds": fastest(step),
        "busy_step_seconds": busy,
        "median_agreement_seconds": medians(agreement), "fastest_agreement_seconds": fastest(agreement),
        "bytes_added_a_step": added, "bytes_added_before_the_consensus_loss": before,
        "fastest_adding_seconds": fastest(adding)["adding"],
        "consensus_loss_bytes": together.consensus.target.numel() * 4,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--preset", default="reference")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", default="processes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data, settings = Split.load(chosen.data), choose_settings(chosen.preset, words=chosen.set)
    with joined() as group:
        result = measure(data, settings, group)
        if group.is_main:
            said = {"data": data.recipe.source["name"], "protocol": data.recipe.protocol.name, "preset": chosen.preset}
            write(chosen.out, said | {"set": chosen.set} | result)


if __name__ == "__main__":
    main()
