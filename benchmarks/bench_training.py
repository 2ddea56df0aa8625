"""A training step beside the bare matrix products of CF-E and CF-E', an epoch, and the heads' agreement.

python benchmarks/bench_training.py DATA [--device cuda] [--epochs 200]

DATA: a prepared data set, such as `concf prepare citeulike --protocol paper --out DATA`. All of it with preset
`reference`. On a GPU also a whole run of so many epochs without early stopping, and its memory.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import fastest, in_turns, medians, write

from concf.data.split import Split
from concf.models import train
from concf.reference.settings import ReferenceSettings
from concf.reference.trainer import Trainer

SETTINGS = ReferenceSettings()


def bare_products(n_users: int, n_items: int, batch: int, size: int, device: str) -> Callable[[], None]:
    """The products of E [B, items] and E' [2 B, users], forward and both backward ones, and nothing else."""
    sides = []
    for rows, n in ((batch, n_items), (2 * batch, n_users)):
        sides.append((torch.randn(rows, size, device=device), torch.randn(n, size, device=device)))

    def work() -> None:
        for rows, table in sides:
            logits = torch.mm(rows, table.T)
            torch.mm(logits, table)
            torch.mm(logits.T, rows)
        _wait(device)

    return work


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def floor_milliseconds(n_users: int, n_items: int, batch: int, bandwidth: float = 4.3e12) -> float:
    """The logits of E and E' touched nine times each at the card's bandwidth: a step that holds them."""
    return 9 * 4 * (batch * n_items + 2 * batch * n_users) / bandwidth * 1e3


def measure(data: Split, device: str, epochs: int) -> dict[str, Any]:
    trainer = Trainer(data, SETTINGS, 0, device)
    n_users, n_items = data.train.shape
    size = trainer.settings.training.batch
    batch = next(trainer.sampler.epoch(0, 0).to(trainer.device).split(size))
    for _ in range(trainer.settings.consensus.window or 1):
        trainer.consensus.update()

    def agree() -> None:
        trainer.consensus.validate(trainer.consensus.update())
        _wait(device)

    def step(teaching: bool) -> Callable[[], None]:
        def work() -> None:
            with trainer._precision():
                trainer.step(batch, teaching)
            _wait(device)

        return work

    works = {
        "bare": bare_products(n_users, n_items, len(batch), trainer.model.encoder.size, device),
        "warm_up_step": step(False),
        "step": step(True),
    }
    times = in_turns(works, rounds=40, warm_up=5)
    middle, best = medians(times), fastest(times)
    first = trainer.settings.first_consensus_epoch
    repeats = 5 if device == "cuda" else 1
    epoch_seconds = [trainer.epoch(first + k)["seconds"] for k in range(repeats)]
    result = {
        "users": n_users, "items": n_items, "pairs": int(data.train.nnz), "batch": len(batch),
        "median_seconds": middle, "fastest_seconds": best,
        "step_over_bare": middle["step"] / middle["bare"],
        "fastest_step_over_bare": best["step"] / best["bare"],
        "consensus_epoch_seconds": sorted(epoch_seconds)[len(epoch_seconds) // 2],
        "rank_validate_consensus_seconds": medians(in_turns({"agree": agree}, rounds=repeats))["agree"],
        "floor_milliseconds": floor_milliseconds(n_users, n_items, len(batch)),
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    if device == "cuda":
        del trainer, works, step, agree
        gc.collect()  # a captured step and its trainer hold each other
        result |= {"device": torch.cuda.get_device_name(0), "tf32": True} | whole_run(data, epochs)
    return result


def whole_run(data: Split, epochs: int) -> dict[str, Any]:
    """`epochs` epochs, ranking, validation and consensus every 10."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    settings = SETTINGS.changed({"training": {"epochs": epochs, "patience": None}})
    run = train(data, settings, device="cuda")
    torch.cuda.synchronize()
    return {
        "epochs": epochs,
        "run_seconds": time.perf_counter() - begin,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "validation": {name: best.validation for name, best in run.best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", default="training")
    chosen = parser.parse_args()
    data = Split.load(chosen.data)
    about = {"data": data.recipe.source["name"], "protocol": data.recipe.protocol.name, "preset": SETTINGS.kind}
    write(chosen.out, about | measure(data, chosen.device, chosen.epochs))


if __name__ == "__main__":
    main()
