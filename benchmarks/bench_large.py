"""The default on a log of a hundred million events: seconds and memory of every stage, and of lists for everyone.

    python benchmarks/bench_large.py --device cuda                                 # 2 M users x 500,000 items
    python benchmarks/bench_large.py --device cuda --budget fast
    python benchmarks/bench_large.py --users 200000 --events 10000000 --budget fast --factors 64  # a tenth of the users

The log is drawn on the device. An item has one of 64 tastes and is popular within it by Zipf's law (exponent 0.8); a
user has three tastes, for six, three and one of ten events, and an activity (log-normal, spread 0.7); one event in ten
is of any item, by popularity. A tenth of the pairs validates, a tenth tests. Lines go to results/large.jsonl, a stage
each as soon as it is over, so that a run that is cut short has left what it did.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import RESULTS, peak_memory
from torch import Tensor

from concf.comparison.results_log import ResultsLog
from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.parts import TEST, TRAIN, VALID
from concf.data.protocols import Random
from concf.data.recipe import SplitRecipe
from concf.data.split import Split
from concf.evaluation.ranking import Seen, rank_everyone
from concf.models import choose_settings, train

TASTES, ZIPF, SPREAD, NOISE = 64, 0.8, 0.7, 0.1
SHARES = (0.6, 0.9, 1.0)  # of a user's three tastes, added up
BLOCK = 1 << 24  # events drawn at a time
LISTED = 100  # items of a list in bulk
Line = dict[str, Any]


def drawn(users: int, items: int, events: int, device: torch.device) -> Tensor:
    """[n] the distinct pairs, user * items + item, ascending."""
    random = torch.Generator(device).manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, device=device, dtype=torch.float64)

    size = items // TASTES  # items of a taste
    popular = torch.arange(1, size + 1, device=device, dtype=torch.float64).pow(-ZIPF).cumsum(0)
    popular /= popular[-1].clone()
    activity = torch.empty(users, device=device, dtype=torch.float64).log_normal_(0.0, SPREAD, generator=random)
    active = activity.cumsum(0) / activity.sum()
    tastes = (uniform(users, len(SHARES)) * TASTES).long()
    blocks = []
    for begin in range(0, events, BLOCK):
        n = min(BLOCK, events - begin)
        user = torch.searchsorted(active, uniform(n)).clamp_(max=users - 1)
        which = torch.searchsorted(torch.tensor(SHARES, device=device, dtype=torch.float64), uniform(n)).clamp_(max=2)
        any_taste = (uniform(n) * TASTES).long()
        taste = torch.where(uniform(n) < NOISE, any_taste, tastes[user, which])
        place = torch.searchsorted(popular, uniform(n)).clamp_(max=size - 1)
        blocks.append(torch.unique(user * items + taste * size + place))
    pairs: Tensor = torch.unique(torch.cat(blocks))
    return pairs


def split_of(sizes: dict[str, int], device: torch.device) -> Split:
    """Users and items without a pair are left out."""
    pairs = drawn(**sizes, device=device)
    part = torch.rand(len(pairs), generator=torch.Generator(device).manual_seed(1), device=device)
    parts = torch.where(part < 0.1, TEST, torch.where(part < 0.2, VALID, TRAIN)).to(torch.uint8)
    (users, user), (items, item) = (
        torch.unique(side, return_inverse=True) for side in (pairs // sizes["items"], pairs % sizes["items"])
    )
    ids = Ids(users.cpu().numpy()), Ids(items.cpu().numpy())
    of_users, of_items = (side.to(torch.int32).cpu().numpy() for side in (user, item))
    log = Interactions(*ids, of_users, of_items, np.ones(len(pairs)))
    return Split(log, parts.cpu().numpy(), SplitRecipe(source={"name": "bench_large"}, protocol=Random(), seed=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"users": 2_000_000, "items": 500_000, "events": 100_000_000, "factors": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--budget", default="default", choices=("fast", "default", "thorough"))
    parser.add_argument("--set", nargs="*", default=[], help="settings")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    device, results = torch.device(options.device), ResultsLog(options.results / "large.jsonl")
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    sizes = {each: getattr(options, each) for each in ("users", "items", "events")}
    key = {**sizes, "factors": options.factors, "budget": options.budget, "set": options.set, "device": name}
    begin, used = time.perf_counter(), time.process_time()

    def took(stage: str, more: Line | None = None) -> None:
        nonlocal begin, used
        if gpu:
            torch.cuda.synchronize()
        seconds, processor = time.perf_counter() - begin, time.process_time() - used
        line = {"seconds": round(seconds, 2), "processor_seconds": round(processor, 1)}
        line |= {"GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if gpu else {}
        line |= {"host_GB": round(peak_memory() / 1024, 1)}
        print(results.add(key | {"stage": stage}, line | (more or {})), flush=True)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        begin, used = time.perf_counter(), time.process_time()

    data = split_of(sizes, device)
    took("drawn", {"shape": list(data.train.shape), "pairs": len(data.interactions), "train": data.train.nnz})
    words = [f"budget={options.budget}", f"dimensions={options.factors}", *options.set]

    def watch(record: Line) -> None:
        took(
            record["stage"],
            {each: record[each] for each in ("chosen", "validation", "consensus_users") if each in record},
        )

    run = train(data, choose_settings("strong", words=words), seed=0, device=options.device, watch=watch)
    took("end")
    student = run.factors(run.best_head())
    few = slice(0, min(data.train.shape[0], 100_000))
    seen = Seen(run.log, device)
    seen.flat(0, 1)
    took("bulk prepared")
    rank_everyone(student.to(device), LISTED, seen, few)
    took("bulk", {"users": few.stop})


if __name__ == "__main__":
    main()
