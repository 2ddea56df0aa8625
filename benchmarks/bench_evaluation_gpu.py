"""Ranking on a GPU: the same lists as on the CPU, and what it costs beside the bare product with top-k.

    python benchmarks/bench_evaluation_gpu.py

Vectors of small integers, so that every product is exact and ties are many: the lists must be equal to the last place.
Then random vectors in the size of CiteULike, timed with the device's work finished.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from measuring import in_turns, medians, write
from scipy.sparse import random_array

from concf.evaluation.evaluate import score_lists
from concf.evaluation.ranking import GPU_MEMORY, rank
from concf.evaluation.scorers import Factors

USERS, ITEMS, DIMENSIONS, LONGEST = 5219, 25181, 64, 50


def equal_lists(seed: int) -> bool:
    """CPU and GPU on exact scores with ties, seen items left out."""
    rng = np.random.default_rng(seed)
    user, item = (rng.integers(-2, 3, (n, 8)).astype(np.float32) for n in (700, 5000))
    seen = random_array((700, 5000), density=0.01, format="csr", rng=rng)
    lists = [
        rank(Factors.of(user, item), np.arange(700), LONGEST, seen=seen, device=device, memory=1 << 20)
        for device in ("cpu", "cuda")
    ]
    return bool((lists[0] == lists[1]).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    assert all(equal_lists(seed) for seed in range(5)), "the GPU ranks otherwise than the CPU"
    rng = np.random.default_rng(0)
    factors = Factors.of(*(rng.standard_normal((n, DIMENSIONS), np.float32) for n in (USERS, ITEMS))).to("cuda")
    seen = random_array((USERS, ITEMS), density=107_638 / (USERS * ITEMS), format="csr", rng=rng)
    held_out = random_array((USERS, ITEMS), density=9_000 / (USERS * ITEMS), format="csr", rng=rng)
    users = np.unique(held_out.nonzero()[0])

    def bare() -> None:
        for block in torch.as_tensor(users, device="cuda").split(GPU_MEMORY // (4 * ITEMS)):  # type: ignore[no-untyped-call]
            (factors.user[block] @ factors.item.T).topk(LONGEST)
        torch.cuda.synchronize()

    def full() -> None:
        lists = rank(factors, users, LONGEST, seen=seen, device="cuda")
        score_lists(lists, users, held_out, seen)

    times = medians(in_turns({"bare": bare, "concf": full}, options.rounds, warm_up=3))
    line: dict[str, Any] = {"users": USERS, "items": ITEMS, "dimensions": DIMENSIONS, "evaluated_users": len(users)}
    line |= {"device": torch.cuda.get_device_name(0), "lists_equal_cpu": True, "median_seconds": times}
    line |= {"concf_over_bare": times["concf"] / times["bare"], "peak_bytes": torch.cuda.max_memory_allocated()}
    write("evaluation-gpu", line)


if __name__ == "__main__":
    main()
