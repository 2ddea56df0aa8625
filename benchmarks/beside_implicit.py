"""Seconds of training beside implicit's ALS with 256 factors and 15 iterations, in one process: default, fast, stages.

    python benchmarks/beside_implicit.py prepare --data FOLDER
    python benchmarks/beside_implicit.py measure --data FOLDER --threads 2

A line of results/beside-implicit.jsonl is a log on a machine: implicit before and after ours (the faster counts), 15
sweeps of our ALS, and the default, its stages and `--budget fast` in units of implicit's seconds. Seconds count on a
quiet machine only; processor seconds are written beside them. `measure` reads prepared splits and needs no reader of
logs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS

from concf.baselines.table import BASELINES
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.models import choose_settings, train

LOGS: dict[str, dict[str, Any]] = {
    "citeulike": {"protocol": "released"},
    "ciao": {"protocol": "released"},
    "foursquare": {"protocol": "released"},
    "gowalla": {"protocol": "random"},
    "yelp2018": {"protocol": "random"},
    "ciao by time": {"protocol": "time"},
}


def prepare_all(folder: Path) -> None:
    """Write a split of each log."""
    from concf.data.prepare import prepare

    for name, options in LOGS.items():
        prepare(name.partition(" ")[0], seed=0, out=folder / name, **options)


def took(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and processor seconds."""
    begin = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def beside(data: Split) -> dict[str, Any]:
    """Seconds of implicit, and everything of ours in units of them."""
    rival = BASELINES["ials"].make(factors=256, iterations=15, alpha=40.0, regularisation=60.0)
    BASELINES["ials"].make(factors=8, iterations=1).fit(data.train, seed=0)  # imports
    before = took(lambda: rival.fit(data.train, seed=0))
    sweeps = took(lambda: BASELINES["als"].make(factors=256, sweeps=15).fit(data.train, seed=0))
    ends = [("", time.perf_counter())]
    watch = lambda record: ends.append((record["stage"], time.perf_counter()))  # noqa: E731
    ours = {
        "15 sweeps of ALS": sweeps,
        "default": took(lambda: train(data, choose_settings("strong"), seed=0, device="cpu", watch=watch)),
        "fast": took(lambda: train(data, choose_settings("strong", {"budget": "fast"}), seed=0, device="cpu")),
    }
    unit, processor = map(min, zip(before, took(lambda: rival.fit(data.train, seed=0)), strict=True))
    return {
        "implicit": {"seconds": round(unit, 3), "processor_seconds": round(processor, 3)},
        "ratios": {name: round(seconds / unit, 2) for name, (seconds, _) in ours.items()},
        "processor_ratios": {name: round(seconds / processor, 2) for name, (_, seconds) in ours.items()},
        "stages": {stage: round((end - begin) / unit, 2) for (_, begin), (stage, end) in pairwise(ends)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "measure"))
    parser.add_argument("--data", type=Path, default=Path("build/beside-implicit"))
    parser.add_argument("--results", type=Path, default=RESULTS / "beside-implicit.jsonl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(LOGS), help="names of logs, separated by commas")
    options = parser.parse_args()
    if options.step == "prepare":
        return prepare_all(options.data)
    torch.set_num_threads(options.threads)
    log = ResultsLog(options.results)
    for name in options.only.split(","):
        data = Split.load(options.data / name)
        sizes = dict(zip(("users", "items"), data.train.shape, strict=True)) | {"pairs": data.train.nnz}
        print(log.add({"data": name, "threads": options.threads} | sizes, beside(data)), flush=True)
    return None


if __name__ == "__main__":
    main()
