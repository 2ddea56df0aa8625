"""Lists for everyone: the plain path, processes and a local Ray in one run, and where Ray's time goes.

python benchmarks/bench_bulk.py [--users 20000] [--items 30000] [--by consensus] [--run FOLDER]

Whole commands are timed, in turns: what a user waits for. A worker has one thread; the plain path is timed with one
and with as many as there are cores. What they wrote is compared. Then what comes with Ray whatever the lists are is
timed by itself: start with the import of Ray, workers, loading the run in them, a job that does nothing, the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import service_run
from measuring import in_fresh_process, in_turns, medians, write

WORKERS = os.cpu_count() or 1
NOTHINGS = 500  # jobs


def command(run: Path, out: Path, k: int, by: str, threads: int, *more: str) -> None:
    """`concf recommend` in a process of its own."""
    words = [sys.executable, "-m", "concf", "recommend", str(run), "-k", str(k), "--by", by, "--out", str(out), *more]
    quiet = os.environ | {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1000"}
    quiet.pop("RAY_ADDRESS", None)
    subprocess.run(words, env=quiet, check=True, capture_output=True)


def overhead(run: Path) -> dict[str, float]:
    """Seconds of each step of Ray, and of loading the run once here."""
    from concf.inference.recommender import Recommender
    from concf.runtime.executors import execute, ray_cluster

    looks = {"begin": time.perf_counter()}

    def look(name: str) -> None:
        looks[name] = time.perf_counter()

    Recommender.load(run)
    look("load")
    with ray_cluster(WORKERS):
        look("start")
        list(execute(abs, range(WORKERS), "ray", WORKERS))
        look("workers")
        list(execute(abs, range(NOTHINGS), "ray", WORKERS))
        look("nothings")
    look("end")
    names = list(looks)
    taken = {name: looks[name] - looks[before] for before, name in pairwise(names)}
    nothings = taken.pop("nothings") - taken["workers"]
    return {f"{name}_seconds": each for name, each in taken.items()} | {"job_ms": 1000 * nothings / NOTHINGS}


def same(one: Path, *others: Path) -> bool:
    import polars as pl

    rows = pl.read_parquet(one)
    return all(rows.equals(pl.read_parquet(other)) for other in others)


def measure(run: Path, room: Path, k: int, by: str, rounds: int) -> dict[str, Any]:
    from concf.inference.bulk import parts_of
    from concf.inference.recommender import Recommender

    many = ["--workers", str(WORKERS), "--engine"]
    works = {
        "plain": lambda: command(run, room / "plain.parquet", k, by, 1),
        "plain, all threads": lambda: command(run, room / "threads.parquet", k, by, WORKERS),
        "processes": lambda: command(run, room / "processes", k, by, 1, *many, "processes"),
        "ray": lambda: command(run, room / "ray", k, by, 1, *many, "ray"),
        "ray, one worker": lambda: command(run, room / "one", k, by, 1, "--workers", "1", "--engine", "ray"),
    }
    times = in_turns(works, rounds, warm_up=0)
    taken = medians(times)
    model = Recommender.load(run)
    users = len(model.user_ids)
    return {
        "users": users,
        "items": len(model.item_ids),
        "k": k,
        "by": by,
        "workers": WORKERS,
        "parts": len(parts_of(users, model.ranker.block(), k)),
        "same_rows": same(room / "plain.parquet", room / "processes", room / "ray", room / "one"),
        "seconds": taken,
        "all_seconds": times,
        "users_per_second": {name: users / each for name, each in taken.items()},
        "overhead": in_fresh_process(overhead, run)[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--run", type=Path, help="this one instead of one that is made")
    parser.add_argument("--by", nargs="+", default=["consensus", "bpr"])
    parser.add_argument("-k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as room:
        run = chosen.run or service_run.make(Path(room) / "run", chosen.users, chosen.items)
        for by in chosen.by:
            write("bulk", measure(run, Path(room), chosen.k, by, chosen.rounds))


if __name__ == "__main__":
    main()
