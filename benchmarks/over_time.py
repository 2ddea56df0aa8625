"""Compare models at three rolling cuts of three logs with times, and write the tables of docs/time.md.

    make time

or, where the measuring machine has no data: `python benchmarks/over_time.py prepare --data FOLDER` writes the splits,
`measure --data FOLDER --jobs 8` measures them, and `render` writes the tables. A line of results/over-time.jsonl is a
model at a cut: tuned on the window before the cut by NDCG@10, fitted again to everything before the cut, tested once.
A line that is there already is not measured again. SASRec's lines are of benchmarks/sasrec.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from measuring import RESULTS
from sources import DOCS, lines, render

from concf.comparison.compare import compare
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.runtime.text_tables import markdown

DATA = {"amazon-beauty": "Amazon Beauty", "yelp-2019": "Yelp 2019", "ciao": "Ciao"}
CUTS = 3
METRICS = ("ndcg@10", "hit@10", "recall@50")
MODELS = (
    "popularity", "recent-popularity", "decayed-popularity", "itemknn", "rp3beta", "als", "als-decayed", "ease",
    "ease-decayed", "slist", "als-sequence", "concf:strong",
)  # fmt: skip
SASREC = {"beauty": "amazon-beauty", "yelp": "yelp-2019", "ciao": "ciao"}  # names of its lines
USERS = {"warm": "warm users", "everyone": "everyone"}


def prepare(folder: Path) -> None:
    """Write the splits of every log at every cut."""
    from concf.comparison.rolling import rolling_splits

    for data in DATA:
        for cut, split in enumerate(rolling_splits(data, CUTS, {"test": 0.1}), 1):
            split.save(folder / f"{data}-{cut}", overwrite=True)
            print(data, cut, split.held_out()[1], flush=True)


def measure(folder: Path, results: Path, jobs: int, only: list[str]) -> None:
    """Measure every model at every cut that has no line yet."""
    log = ResultsLog(results)
    keys = [
        {"data": data, "cut": cut, "model": model}
        for model in reversed(only or MODELS) for data in DATA for cut in range(CUTS, 0, -1)
    ]  # fmt: skip
    keys = [key for key in keys if log.find(key) is None]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(entrants, folder, key): key for key in keys}
        for future in as_completed(futures):
            key, error = futures[future], future.exception()
            if error is not None:  # such as a GPU without memory for so many jobs: measured in the next call
                print(key, repr(error)[:200], flush=True)
                continue
            log.add(key, {"entrants": future.result()})
            print(key, {each["model"]: round(each["warm"][METRICS[0]], 4) for each in future.result()}, flush=True)


def entrants(folder: Path, key: dict[str, Any]) -> list[dict[str, Any]]:
    """Tune and test a model at a cut; a preset has two entrants, its consensus and its head."""
    split = Split.load(folder / f"{key['data']}-{key['cut']}")
    compared = compare(split, [key["model"]], seeds=1, metrics=METRICS)
    if torch.cuda.is_available():  # other processes need the memory
        torch.cuda.empty_cache()
    return [
        {
            "model": entrant.name, "settings": entrant.settings, "at_grid_edge": entrant.edges,
            "validation": entrant.validation, "warm": entrant.tests[0], "everyone": entrant.everyone[0],
            "fit_seconds": entrant.fit_seconds[0], "users": len(split.evaluated), "split": split.hash,
        }
        for entrant in compared.entrants
    ]  # fmt: skip


def tables() -> dict[str, str]:
    """A table for each log: mean ± standard deviation over the cuts, of warm users and of everyone."""
    cells: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in lines("over-time"):
        for entrant in line["entrants"]:
            cells.setdefault((line["key"]["data"], entrant["model"]), {})[line["key"]["cut"]] = entrant
    for line in lines("sasrec"):
        if line["part"] == "test":
            cells.setdefault((SASREC[line["data"]], "SASRec (RecTools)"), {})[line["cut"]] = line["test"]
    found = {}
    for data in DATA:
        rows = []
        for (name, model), by_cut in cells.items():
            if name != data or len(by_cut) < CUTS:
                continue
            ordered = [by_cut[cut] for cut in sorted(by_cut)]
            values = {
                (users, metric): [entrant[users][metric] for entrant in ordered]
                for users in USERS
                for metric in METRICS
            }
            shown = [f"{mean(each):.4f} ± {stdev(each):.4f}" for each in values.values()]
            last = f"{ordered[-1]['warm']['ndcg@10']:.4f} / {ordered[-1]['warm']['hit@10']:.4f}"
            rows.append((mean(values["warm", METRICS[0]]), [model, *shown, last]))
        header = ["model", *(f"{metric}, {who}" for who in USERS.values() for metric in ("N@10", "Hit@10", "R@50"))]
        ordered_rows = [row for _, row in sorted(rows, key=lambda row: -row[0])]
        found[f"over time {data}"] = markdown([*header, "last cut: N@10 / Hit@10, warm"], ordered_rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "measure", "render"))
    parser.add_argument("--data", type=Path, default=Path("build/over-time"))
    parser.add_argument("--results", type=Path, default=RESULTS / "over-time.jsonl")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    options = parser.parse_args()
    if options.step == "prepare":
        prepare(options.data)
    elif options.step == "measure":
        measure(options.data, options.results, options.jobs, [name for name in options.only.split(",") if name])
    else:
        render("over_time", {DOCS / "time.md": tables()})


if __name__ == "__main__":
    main()
