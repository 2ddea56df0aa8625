"""What each stage of the default costs against users, items, pairs, factors and budget: measured, fitted, projected.

    python benchmarks/bench_stages.py measure     # processor seconds of every stage, on one thread, and peak memory
    python benchmarks/bench_stages.py fit         # the model, and its error on larger logs that it was not fitted to
    python benchmarks/bench_stages.py project     # two million and ten million users

Simulated logs, preset `strong`. Processor seconds, for a busy machine's clock says little. Lines with `held_out` take
no part in the fit. What is in the results is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from measuring import RESULTS, in_fresh_process, write
from numpy.typing import NDArray
from scipy.optimize import nnls

from concf.runtime.process_group import ProcessGroup
from concf.strong.search import BETA, FIRST_SWEEPS, MORE_SWEEPS, PLANS, TEMPERATURE
from concf.strong.settings import VALIDATED, StrongSettings
from concf.strong.softmax import STEPS
from concf.strong.students import BATCHES, LENGTH
from concf.strong.train import CPU, large_tables

NAME = "stages"
BASE = {"users": 8_000, "items": 4_000, "events": 160_000, "factors": 64, "budget": "default"}
FITTED: list[dict[str, Any]] = [
    {}, {"users": 4_000}, {"users": 20_000}, {"items": 2_000}, {"items": 12_000}, {"events": 80_000},
    {"events": 480_000}, {"factors": 32}, {"factors": 128}, {"budget": "fast"},
    {"budget": "fast", "users": 20_000, "events": 400_000}, {"budget": "fast", "items": 12_000, "factors": 128},
]  # fmt: skip
HELD_OUT: list[dict[str, Any]] = [
    {"users": 40_000, "items": 15_000, "events": 900_000},
    {"users": 60_000, "items": 30_000, "events": 1_200_000, "factors": 128, "budget": "fast"},
]
LARGE = {
    "2 M x 500,000 x 97 M": {"users": 1_930_000, "items": 499_000, "pairs": 97_400_000},
    "10 M x 1 M x 1 G": {"users": 10_000_000, "items": 1_000_000, "pairs": 1_000_000_000},
}
BUFFALO = 730_000_000  # interactions that buffalo publishes a time for
SHARES = np.linspace(0.005, 0.995, 100)  # the lengths of histories are kept as so many quantiles
CORES = 2
VOTERS, HEADS, PLACES = 4, 3, 100  # of the default: those who vote, those of them with vectors, items of a vote
PROCESSES = (1, 8)
LONGEST = 50
SMALL = 32  # factors, as in the published time
POINTS = 4  # of a search that each round measures, about
Line = dict[str, Any]


def measured(sizes: dict[str, Any]) -> Line:
    """Processor seconds of every stage, in a process of its own."""
    import torch

    from concf.data.prepare import split_of
    from concf.data.simulate import Simulation
    from concf.models import train

    torch.set_num_threads(1)
    log = Simulation(users=sizes["users"], items=sizes["items"], events=sizes["events"], tastes=32).draw(0)
    data = split_of(log, 0, min_user=3, min_item=3)
    settings = StrongSettings(dimensions=sizes["factors"], budget=sizes["budget"])
    found, begin = dict[str, float](), time.process_time()

    def watch(record: Line) -> None:
        nonlocal begin
        found[record["stage"]] = round(time.process_time() - begin, 3)
        begin = time.process_time()

    run = train(data, settings, seed=0, device="cpu", watch=watch)
    sides = {"users": data.train, "items": data.train.tocsc()}
    lengths = {side: quantiles(np.diff(each.indptr)) for side, each in sides.items()}
    users, items = data.train.shape
    kept = {"users": users, "items": items, "pairs": data.train.nnz, "validated": run.n_validated}
    return {
        "log": kept,
        "lengths": lengths,
        "seconds": found,
        "least_mb": round(sum(size for size, _ in large_tables(data, settings).values()) / 1e6),
    }


def quantiles(lengths: NDArray[Any]) -> list[float]:
    return [round(float(each), 1) for each in np.quantile(lengths, SHARES)]


def solved(line: Line, factors: int, more: int = 0) -> float:
    """Multiplications of one sweep over both sides: rows of n pairs cost min(n, d)^2 max(n, d). more: listed a user"""
    total = 0.0
    for side in ("users", "items"):
        n, rows = np.array(line["lengths"][side]), line["log"][side]
        n = n + more if side == "users" else n * (1 + more * line["log"]["users"] / line["log"]["pairs"])
        total += rows * float(np.mean(np.minimum(n, factors) ** 2 * np.maximum(n, factors)))
    return total


def terms(stage: str, line: Line) -> dict[str, float]:
    """What a stage counts, in units of 10^9, and one for the stage itself."""
    log, d, plan = line["log"], line["factors"], PLANS[line["budget"]]
    users, items, validated, few = log["users"], log["items"], log["validated"], min(log["validated"], plan.users)
    points = 1 + POINTS * plan.rounds
    walk = log["pairs"] / items * log["pairs"] / users  # pairs that a step of three passes, of an average user
    count: dict[str, float] = {}
    if stage == "search":
        count = {
            "walking": few * walk * log["pairs"] / users,
            "walked lists": few * items * len(BETA),
        }
    elif stage == "als":
        sweeps = FIRST_SWEEPS + MORE_SWEEPS * points + 2 * plan.sweeps[0]
        count = {
            "solving": solved(line, d) * sweeps,
            "ranking": few * items * points,
            "scores": few * items * points * d,
        }
    elif stage.startswith("softmax"):
        seen = len(TEMPERATURE) * validated + plan.softmax[0] * users
        count = {
            "cells": seen * items,
            "products": seen * items * d,
            "Adam": (len(TEMPERATURE) + plan.softmax[0]) * STEPS * (users + items) * d,
        }
    elif stage == "rerank":
        count = {
            "scores": validated * items * d * HEADS,
            "ranking": validated * items * VOTERS,
            "features": validated * PLACES,
        }
    elif stage == "student":
        count = _taught(line, validated)
    elif stage == "refit":
        count = {
            "solving": solved(line, d) * 2 * plan.sweeps[1],
            "products": plan.softmax[1] * users * items * d,
            "Adam": plan.softmax[1] * STEPS * (users + items) * d,
        }
    elif stage == "final":
        asked = min(users, plan.cells // items)
        count = _taught(line, asked) | {
            "scores": asked * items * d * HEADS, "ranking": asked * items * VOTERS, "features": asked * PLACES,
        }  # fmt: skip
    return {name: each / 1e9 for name, each in count.items()} | {"itself": 1.0}


def _taught(line: Line, users: int) -> dict[str, float]:
    """Of a student of so many users' lists."""
    plan, d = PLANS[line["budget"]], line["factors"]
    listed = LENGTH * users / line["log"]["users"]
    return {
        "solving": solved(line, d, round(listed)) * plan.student[0],
        "consensus loss": plan.student[1] * users * plan.depth * d,
        "Adam": plan.student[1] * BATCHES * (line["log"]["users"] + line["log"]["items"]) * d,
    }


def fitted(stage: str, lines: list[Line]) -> dict[str, float]:
    """Seconds for 10^9 of each term, none below 0, so that relative errors are least."""
    took = np.array([line["seconds"][stage] for line in lines])
    counts = np.array([list(terms(stage, line).values()) for line in lines])
    weights, _ = nnls(counts / took[:, None], np.ones(len(lines)))
    return dict(zip(terms(stage, lines[0]), weights.tolist(), strict=True))


def predicted(model: dict[str, float], stage: str, line: Line) -> float:
    return sum(model[name] * count for name, count in terms(stage, line).items())


def lines_of(held_out: bool) -> list[Line]:
    text = (RESULTS / f"{NAME}.jsonl").read_text("utf-8")
    return [line for line in map(json.loads, text.splitlines()) if line["held_out"] is held_out]


def measure() -> None:
    path = RESULTS / f"{NAME}.jsonl"
    there = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    for each, held_out in [*((each, False) for each in FITTED), *((each, True) for each in HELD_OUT)]:
        sizes = BASE | each
        if not any(all(line[name] == value for name, value in sizes.items()) for line in there):
            found, peak = in_fresh_process(measured, sizes)
            write(NAME, {"held_out": held_out} | sizes | found | {"peak_mb": round(peak)})
            print(each, found["seconds"], round(peak), found["least_mb"], flush=True)


def fit() -> dict[str, dict[str, float]]:
    """The model of every stage, and how near it comes to the large logs."""
    known = lines_of(held_out=False)
    stages = dict.fromkeys(stage for line in known for stage in line["seconds"])  # a small budget has fewer
    models = {stage: fitted(stage, [line for line in known if stage in line["seconds"]]) for stage in stages}
    for stage, model in models.items():
        print(f"{stage:10}", {name: round(weight, 3) for name, weight in model.items() if weight})
    for line in [*known, *lines_of(held_out=True)]:
        told = {stage: predicted(models[stage], stage, line) for stage in line["seconds"]}
        ratios = {stage: round(seconds / line["seconds"][stage], 2) for stage, seconds in told.items()}
        whole = sum(told.values()) / sum(line["seconds"].values())
        sizes = {name: line[name] for name in BASE if line[name] != BASE[name]}
        memory = line["least_mb"] / line["peak_mb"]
        print("held out" if line["held_out"] else "fitted", sizes, f"all {whole:.2f}, memory {memory:.2f}", ratios)
    return models


def least_gb(sizes: dict[str, int], budget: str, factors: int, processes: int) -> float:
    """What the estimate before training says of a log whose longest part to validate has `LONGEST` items."""
    settings = StrongSettings().changed({"budget": budget, "dimensions": factors})
    shape, users = (sizes["users"], sizes["items"]), np.arange(sizes["users"])
    held_out = SimpleNamespace(nnz=sizes["pairs"] // 10, indptr=np.array([0, LONGEST]))
    trained = SimpleNamespace(shape=shape, nnz=sizes["pairs"] * 8 // 10)
    data: Any = SimpleNamespace(train=trained, valid=held_out, validated=users)
    group = ProcessGroup(0, processes)
    return round(sum(size for size, _ in large_tables(data, settings, CPU, group).values()) / 1e9, 1)


def like(pattern: Line, sizes: dict[str, int], budget: str, factors: int) -> Line:
    """A log of some sizes with histories as long, in proportion, as those of a measured one."""
    lengths = {}
    for side, known in pattern["lengths"].items():
        longer = sizes["pairs"] / sizes[side] * pattern["log"][side] / pattern["log"]["pairs"]
        lengths[side] = [n * longer for n in known]
    log = sizes | {"validated": min(sizes["users"], VALIDATED)}
    return {"log": log, "lengths": lengths, "factors": factors, "budget": budget}


def project() -> None:
    """Seconds of two cores for large logs with histories as long, in proportion, as those measured."""
    models, pattern = fit(), lines_of(held_out=True)[0]
    for title, sizes in LARGE.items():
        for budget, factors in (("fast", 64), ("default", 256)):
            line = like(pattern, sizes, budget, factors)
            hours = {
                stage: round(predicted(model, stage, line) / CORES / 3600, 2)
                for stage, model in models.items()
                if budget != "fast" or not stage.startswith("softmax")
            }
            print(title, budget, factors, "hours of two cores:", hours, "all:", round(sum(hours.values()), 1))
            least = {f"{n} processes": least_gb(sizes, budget, factors, n) for n in PROCESSES}
            print("    at least, GB in each:", least)
    extrapolate(models, pattern)
    sweep = 2 * BUFFALO * SMALL**2 / 1e9 * models["als"]["solving"]
    print(f"a sweep over {BUFFALO:,} pairs of long histories with {SMALL} factors: {sweep:.0f} processor seconds")


def extrapolate(models: dict[str, dict[str, float]], pattern: Line) -> None:
    """A tenth of the users, measured on a CPU by bench_large.py, beside the model; and all of them, in proportion."""
    lines = [json.loads(line) for line in (RESULTS / "large.jsonl").read_text("utf-8").splitlines()]
    drawn = next((line for line in lines if line["key"]["stage"] == "drawn" and "GiB" not in line), None)
    if drawn is None:
        return
    lines = [line for line in lines if drawn["key"] == line["key"] | {"stage": "drawn"}]
    budget, factors = drawn["key"]["budget"], drawn["key"]["factors"]
    few = {"users": drawn["shape"][0], "items": drawn["shape"][1], "pairs": drawn["train"]}
    all_of_them = {"users": 10 * few["users"], "items": few["items"], "pairs": 10 * few["pairs"]}
    sizes, total = (few, all_of_them), 0.0
    for line in lines:
        stage, took = line["key"]["stage"], line["processor_seconds"]
        if stage in models:
            tenth, whole = (predicted(models[stage], stage, like(pattern, each, budget, factors)) for each in sizes)
            total += took * whole / tenth
            print(f"{stage}: {took:.0f} processor seconds, predicted {tenth / took:.2f} of it; "
                  f"all users: {took * whole / tenth / CORES / 3600:.2f} hours of two cores")  # fmt: skip
    print(f"all users: {total / CORES / 3600:.1f} hours of two cores")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "fit", "project"])
    {"measure": measure, "fit": fit, "project": project}[parser.parse_args().what]()
