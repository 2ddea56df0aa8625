"""What a run costs against users, items, interactions, dimensions, heads and batch: measured, fitted and projected.

python benchmarks/bench_cost.py measure     # processor seconds of a step with its consensus loss, and of a ranking: one
thread
python benchmarks/bench_cost.py fit         # the model, its error on what it was fitted to and on what it was not
python benchmarks/bench_cost.py project     # 10 million users, 1 million items, 1 billion interactions

Random pairs, preset `reference` with `losses.softmax_samples` 1024. Processor seconds, for a busy machine's clock says
little. Lines with `held_out` take no part in the fit.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from bench_scaling import random_split
from measuring import RESULTS, in_fresh_process, write
from scipy.optimize import nnls

from concf.models import choose_settings
from concf.reference.objectives import FIVE
from concf.reference.trainer import Trainer

SAMPLES, STEPS = 1024, 5
BASE = {"users": 20_000, "items": 20_000, "pairs": 400_000, "dimensions": 64, "heads": 6, "batch": 1024}
HEADS = {2: ("bpr", "cross-entropy"), 4: ("bpr", "cml", "cross-entropy", "squared-error"), 6: FIVE}
STEP = [
    {}, {"users": 5_000}, {"users": 80_000}, {"users": 160_000}, {"items": 5_000}, {"items": 80_000},
    {"items": 160_000}, {"pairs": 100_000}, {"pairs": 1_600_000}, {"dimensions": 16}, {"dimensions": 32},
    {"dimensions": 128}, {"heads": 2}, {"heads": 4}, {"batch": 4096}, {"batch": 16_384},
]  # fmt: skip
STEP_HELD_OUT = [
    {"users": 300_000, "items": 100_000, "pairs": 3_000_000},
    {"users": 50_000, "items": 200_000, "dimensions": 32, "batch": 8192},
    {"users": 100_000, "items": 50_000, "heads": 4, "dimensions": 128, "batch": 4096},
]
SMALL = {"users": 2_000, "pairs": 40_000}
RANKING = [
    SMALL, SMALL | {"items": 5_000}, SMALL | {"items": 80_000}, SMALL | {"users": 8_000}, SMALL | {"dimensions": 16},
    SMALL | {"dimensions": 128}, SMALL | {"heads": 2}, SMALL | {"heads": 4},
]  # fmt: skip
RANKING_HELD_OUT = [
    SMALL | {"users": 4_000, "items": 160_000},
    SMALL | {"users": 12_000, "items": 40_000, "heads": 4, "dimensions": 32},
]


def measured(what: str, sizes: dict[str, int]) -> dict[str, Any]:
    """Processor seconds, the median of a few; in a process of its own."""
    import torch

    torch.set_num_threads(1)
    data = random_split(sizes["users"], sizes["items"], sizes["pairs"])
    words = [
        f"objectives={json.dumps(HEADS[sizes['heads']])}", f"dimensions={sizes['dimensions']}",
        f"training.batch={sizes['batch']}", f"losses.softmax_samples={SAMPLES}",
    ]  # fmt: skip
    trainer = Trainer(data, choose_settings("reference", words=words), 0, "cpu")
    found = []
    if what == "ranking":
        for _ in range(2):
            begin = time.process_time()
            trainer.consensus.update()
            found.append(time.process_time() - begin)
    else:
        rng = np.random.default_rng(0)
        lists = rng.integers(sizes["items"], size=trainer.consensus.target.shape)
        trainer.consensus.target.copy_(torch.from_numpy(lists))
        batches, sampled = trainer._draw(0).split(sizes["batch"]), trainer.sampled
        assert sampled is not None
        for number, batch in zip(range(STEPS), batches, strict=False):
            batch = replace(batch, drawn=sampled.draw(0, 0, number))
            begin = time.process_time()
            trainer._step(batch, True)
            found.append(time.process_time() - begin)
    return {"processor_seconds": median(found[1:]), "train_pairs": int(data.train.nnz)}


def terms(what: str, line: dict[str, Any]) -> dict[str, float]:
    """What is counted, in units of 10^9."""
    users, items, size = line["users"], line["items"], line["dimensions"]
    heads, batch, pairs = line["heads"], line["batch"], line["train_pairs"]
    if what == "ranking":
        counted = {
            "scores": users * items * heads,
            "score products": users * items * heads * size / 4,
            "places of lists": users * heads * 500,
            "tables of votes": users * items,
        }
        return {name: count / 1e9 for name, count in counted.items()}
    counted = {
        "table cells": heads * (users + items) * size,
        "table rows": heads * (users + items),
        "encoded cells": heads * (2 * batch + items) * size * size * 5 / 8,
        "softmax cells": (heads == 6) * 2 * batch * (SAMPLES + 2 * batch) * size,
        "pair cells": (heads == 6) * 2 * pairs * size,
        "consensus target cells": heads * batch * 100 * size,
    }
    return {name: count / 1e9 for name, count in counted.items()}


def fitted(what: str, lines: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds for 10^9 of each term, none below 0, so that relative errors are least."""
    names = list(terms(what, lines[0]))
    took = np.array([line["processor_seconds"] for line in lines])
    counts = np.array([[*terms(what, line).values(), 1e-3] for line in lines])
    found, _ = nnls(counts / took[:, None], np.ones(len(lines)))
    return dict(zip([*names, "a step"], found.tolist(), strict=True))


def predicted(what: str, weights: dict[str, float], line: dict[str, Any]) -> float:
    counts = terms(what, line) | {"a step": 1e-3}
    return sum(weights[name] * count for name, count in counts.items())


def measure() -> None:
    plan = [("step", STEP, False), ("step", STEP_HELD_OUT, True), ("ranking", RANKING, False)]
    for what, sizes, held_out in [*plan, ("ranking", RANKING_HELD_OUT, True)]:
        for each in sizes:
            whole = BASE | each
            found, peak = in_fresh_process(measured, what, whole)
            write("cost", {"what": what, "held_out": held_out} | whole | found | {"peak_mb": peak})
            print(what, each, round(found["processor_seconds"], 4), round(peak), flush=True)


def fit() -> dict[str, dict[str, float]]:
    lines = [json.loads(line) for line in (RESULTS / "cost.jsonl").read_text("utf-8").splitlines()]
    models = {}
    for what in ("step", "ranking"):
        known = [line for line in lines if line["what"] == what]
        models[what] = fitted(what, [line for line in known if not line["held_out"]])
        print(what, {name: round(weight, 4) for name, weight in models[what].items()})
        for line in known:
            ratio = predicted(what, models[what], line) / line["processor_seconds"]
            sizes = {name: line[name] for name in BASE if line[name] != BASE[name]}
            print("  held out" if line["held_out"] else "  fitted  ", f"{ratio:.2f}", sizes)
    return models


def gpu_is_worth() -> dict[str, float]:
    """How many cores one H200 stands for, by the committed lines of CiteULike `paper`, which had two cores."""
    on_gpu, on_cpu = (
        next(
            line for line in map(json.loads, (RESULTS / name).read_text("utf-8").splitlines()) if line["items"] == 25181
        )
        for name in ("training-gpu.jsonl", "training.jsonl")
    )
    step = on_cpu["fastest_seconds"]["step"] / on_gpu["fastest_seconds"]["step"]
    ranking = on_cpu["rank_validate_consensus_seconds"] / on_gpu["rank_validate_consensus_seconds"]
    return {"step": 2 * step, "ranking": 2 * ranking}


def project() -> None:
    """What the largest log would need, by the model, were every process as good as alone."""
    models, cores = fit(), gpu_is_worth()
    sizes = BASE | {"users": 10**7, "items": 10**6, "batch": 65_536, "train_pairs": 10**9}
    users, items, size, heads = (sizes[name] for name in ("users", "items", "dimensions", "heads"))
    steps, epochs, rankings = sizes["train_pairs"] / sizes["batch"], 100, 10
    seconds = {what: predicted(what, models[what], sizes) / cores[what] for what in models}
    hours = {"steps": steps * epochs * seconds["step"] / 3600, "rankings": rankings * seconds["ranking"] / 3600}
    listed = items * (1 - np.exp(-min(sizes["batch"], users) * 100 / items))
    touched = min(sizes["batch"], users) + min(2 * sizes["batch"], items) + listed
    gigabytes = {
        "parameters and moments": 3 * 4 * (users + items) * size / 1e9,
        "gradients of the heads' copies": 4 * heads * (users + items) * size / 1e9,
        "rankings kept (M 500, Q 5)": 4 * heads * users * 500 * 5 / 1e9,
        "consensus_loss": 4 * users * 100 / 1e9,
        "log": 40 * sizes["train_pairs"] / 1e9,
        "network a step": 4 * heads * touched * size / 1e9,
    }
    print("one H200 stands for so many cores:", {name: round(value) for name, value in cores.items()})
    print(f"{steps:.0f} steps an epoch; seconds on one H200:", {name: round(each, 3) for name, each in seconds.items()})
    print(
        f"{epochs} epochs, {rankings} rankings, hours of one H200:",
        {name: round(each, 1) for name, each in hours.items()},
    )
    print("GB:", {name: round(each, 2) for name, each in gigabytes.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "fit", "project"])
    {"measure": measure, "fit": fit, "project": project}[parser.parse_args().what]()
