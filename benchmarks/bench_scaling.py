"""How a run grows: seconds of an epoch against interactions, items and heads, and memory at two sizes.

python benchmarks/bench_scaling.py time [--device cuda]
python benchmarks/bench_scaling.py memory --users 5000 --items 25000 --pairs 108000 [--steps 100] [--device cuda]

Random pairs, popular items more often. An epoch with consensus targets; `memory` also ranks everyone by every head and
builds the consensus once. --steps: stop the epoch after so many batches (said in the line).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from measuring import peak_memory, write

from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.protocols import Random
from concf.data.recipe import SplitRecipe
from concf.data.split import Split
from concf.reference.objectives import FIVE
from concf.reference.settings import ReferenceSettings
from concf.reference.trainer import Trainer


def random_split(n_users: int, n_items: int, n_pairs: int, seed: int = 0) -> Split:
    """About so many distinct pairs: users alike, items by Zipf's law; 60/20/20 per user."""
    rng = np.random.default_rng(seed)
    weight = np.arange(1, n_items + 1) ** -0.6
    user = rng.integers(n_users, size=int(1.03 * n_pairs))
    item = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(len(user))).clip(max=n_items - 1)
    user, item = np.divmod(np.unique(user.astype(np.int64) * n_items + item), n_items)
    ids = (Ids(np.arange(n_users)), Ids(np.arange(n_items)))
    count = np.ones(len(user))
    interactions = Interactions(*ids, user=user.astype(np.int32), item=item.astype(np.int32), count=count)
    return Split.make(interactions, SplitRecipe(source={"name": "random pairs"}, protocol=Random()))


def trained(data: Split, device: str, objectives: tuple[str, ...] = FIVE, steps: int | None = None) -> dict[str, Any]:
    """Seconds of one epoch with consensus targets (or of so many steps), and of ranking and consensus."""
    settings = ReferenceSettings()
    settings = settings.single(*objectives) if len(objectives) == 1 else settings.changed({"objectives": objectives})
    trainer = Trainer(data, settings, 0, device)
    begin = time.perf_counter()
    trainer.consensus.validate(trainer.consensus.update())
    agreed = time.perf_counter()
    batches = list(trainer._draw(0).split(settings.training.batch))[:steps]
    teaching = len(objectives) > 1
    with trainer._precision():
        for batch in batches[:5]:
            trainer.step(batch, teaching)
        _wait(device)
        start = time.perf_counter()
        for batch in batches:
            trainer.step(batch, teaching)
        _wait(device)
    seconds = time.perf_counter() - start
    return {
        "pairs": int(data.train.nnz), "steps": len(batches), "seconds": seconds,
        "agree_seconds": agreed - begin, "heads": len(objectives),
    }  # fmt: skip


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def times(device: str, scale: int) -> list[dict[str, Any]]:
    """Interactions, items and heads doubled, the others held."""
    found = []
    for factor in (1, 2, 4, 8):
        data = random_split(5000, 5000, 25_000 * factor * scale)
        found.append({"against": "interactions", "value": 25_000 * factor * scale} | trained(data, device))
    for factor in (1, 2, 4, 8):
        data = random_split(5000, 3000 * factor, 50_000 * scale)
        found.append({"against": "items", "value": 3000 * factor} | trained(data, device))
    data = random_split(5000, 5000, 50_000 * scale)
    for n in range(1, len(FIVE) + 1):
        found.append({"against": "heads", "value": n} | trained(data, device, FIVE[:n]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("time", "memory"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--users", type=int, default=5000)
    parser.add_argument("--items", type=int, default=25_000)
    parser.add_argument("--pairs", type=int, default=108_000)
    parser.add_argument("--steps", type=int)
    chosen = parser.parse_args()
    kind = {"device": torch.cuda.get_device_name(0) if chosen.device == "cuda" else "cpu"}
    if chosen.what == "time":
        for line in times(chosen.device, 4 if chosen.device == "cuda" else 1):
            write("scaling", kind | line)
        return
    data = random_split(chosen.users, chosen.items, chosen.pairs)
    before = peak_memory()
    line = {"users": chosen.users, "items": chosen.items, "steps_asked": chosen.steps}
    line |= trained(data, chosen.device, steps=chosen.steps)
    line |= {"host_peak_mb": peak_memory(), "host_peak_mb_before_training": before}
    if chosen.device == "cuda":
        line["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 2**20
    write("memory", kind | line)


if __name__ == "__main__":
    main()
