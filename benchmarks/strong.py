"""Compare the default preset with tuned baselines, all refitted: the lines of docs/strong.md.

    python benchmarks/strong.py test --device cuda        # the default, refitted: seeds 10 to 14, public splits
    python benchmarks/strong.py rivals --jobs 8           # each baseline, tuned on every split and refitted
    python benchmarks/strong.py ablations --device cuda   # on validation: seeds 0 and 1, without each voter; budgets
    python benchmarks/strong.py large --device cuda       # a simulated log of 138,000 x 27,000 with 9.5 million pairs
    python benchmarks/render_strong.py

--data: a folder of prepared splits NAME-PROTOCOL-SEED, made if need be. What is in the results is not run again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from scipy.sparse import csr_array

from concf.comparison.compare import compare
from concf.comparison.results_log import ResultsLog
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train
from concf.strong.recipe import Recipe

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ROWS = ("citeulike-released", "ciao-released", "foursquare-released", "citeulike-paper")
PUBLIC = ("gowalla-given", "yelp2018-given")
TENTH = ("gowalla-given10", "yelp2018-given10")  # the same, with a larger share for validation
GIVEN: dict[str, dict[str, Any]] = {  # which part of the training file validates
    "given": {"valid": 0.05}, "given10": {"valid": 0.1},
    "newest": {"valid": 0.05, "newest": True}, "newest10": {"valid": 0.1, "newest": True},
}  # fmt: skip
NEWEST = ("gowalla-newest", "yelp2018-newest")
INNER = [f"{source}-inner-{part}" for source in ("gowalla", "yelp2018") for part in GIVEN]
HELD_BACK = 0.2  # of each line of the training file, its end: the test part of the inner ones
GUARDS = ("sparse-simulated",)  # nothing was chosen by its test parts
TEST_SEEDS, CHOICE_SEEDS, PUBLIC_SEEDS, GUARD_SEEDS = range(10, 15), range(2), range(1), range(3)
AT, METRICS = (20, 50), ("recall", "ndcg")
RIVALS = ("als", "popularity", "rp3beta", "userknn", "itemknn", "ease")
RIVAL_METRICS = ("recall@50", "ndcg@50", "recall@20", "ndcg@20")
BUDGETS = ("fast", "default", "thorough")
LEFT_OUT = {"default": ("als-a", "als-b", "rp3beta"), "thorough": ("softmax-a", "userknn", "ease")}
LARGE = "large-simulated"
SIMULATED = {"users": 138_000, "items": 27_000, "events": 12_000_000, "tastes": 64}
SPARSE = {"users": 8_000, "items": 4_000, "events": 80_000, "tastes": 48, "popularity": 0.9}
Job = tuple[str, int]  # data, seed


def split_of(name: str, seed: int, folder: Path) -> Split:
    """The prepared folder, made if it is not there."""
    path = folder / f"{name}-{seed}"
    if not path.exists():
        from concf.data.catalogue import fetch
        from concf.data.prepare import prepare
        from concf.data.prepare import split_of as split_log

        source, _, protocol = name.partition("-")
        inner, _, part = protocol.rpartition("-")
        options = {"protocol": "given"} | GIVEN[part] if part in GIVEN else {"protocol": protocol}
        if name == LARGE:
            split_log(Simulation(**SIMULATED).draw(seed), seed, min_item=1).save(path)
        elif source == "sparse":
            log = Simulation(**SPARSE).draw(seed)
            prepare(log, protocol="random", seed=seed, out=path, min_user=5, min_item=5, core=True)
        elif inner:
            with TemporaryDirectory() as place:
                train_file, test = inner_files(fetch(source)[0], Path(place))
                reading: dict[str, Any] = {"format": "user-lines", "ordered": "newest" in part}
                prepare(train_file, test=test, seed=seed, out=path, **reading, **options)
        else:
            prepare(source, seed=seed, out=path, **options)
    return Split.load(path)


def inner_files(published: Path, folder: Path) -> list[Path]:
    """A training file with lines of a user and items, cut in two: the first and the last items of each line."""
    opened = gzip.open if published.suffix == ".gz" else open
    with opened(published, "rt", encoding="utf-8") as lines:
        rows = [line.split() for line in lines]
    files = {name: folder / f"{name}.txt" for name in ("train", "test")}
    with files["train"].open("w", encoding="utf-8") as train, files["test"].open("w", encoding="utf-8") as test:
        for user, *items in rows:
            cut = len(items) - int(HELD_BACK * len(items))
            print(user, *items[:cut], file=train)
            print(user, *items[cut:], file=test)
    return list(files.values())


def tested(model: Any, data: Split) -> dict[str, float]:
    """The test figures, of which training saw nothing."""
    means = evaluate(model, data, on="test", at=AT, metrics=METRICS).means()
    return {figure: round(value, 6) for figure, value in means.items()}


def jobs(only: list[str], public: bool) -> Iterator[Job]:
    for names, seeds in (
        (ROWS, TEST_SEEDS),
        (GUARDS, GUARD_SEEDS),
        ((*PUBLIC, *TENTH, *INNER, *NEWEST) if public else (), PUBLIC_SEEDS),
    ):
        yield from product([name for name in names if name in only], seeds)


def in_parallel(keys: list[dict[str, Any]], work: Callable[..., dict[str, Any]], log: ResultsLog, options: Any) -> None:
    """Measure the cells that have no line yet, some at the same time; `work` takes a cell's key and the data folder."""
    keys = [key for key in keys if log.find(key) is None]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        asked = {pool.submit(work, key, options.data, options.device): key for key in keys}
        for future in as_completed(asked):
            if future.exception() is not None:  # such as a GPU without memory for so many jobs: the next call has it
                print(asked[future], repr(future.exception())[:200], flush=True)
                continue
            line = future.result()
            log.add(asked[future], line)
            print(asked[future], line.get("test") or line["rows"]["consensus"]["test"], line["seconds"], flush=True)


def strong_cell(key: dict[str, Any], folder: Path, device: str | None) -> dict[str, Any]:
    """Train the default or `thorough`, and test every head and consensus."""
    data = split_of(key["data"], key["seed"], folder)
    settings = choose_settings("strong", words=[f"refit={key['refit']}", f"budget={key['budget']}"])
    if device == "cuda":  # the libraries of a GPU are loaded at their first use
        torch.linalg.eigh(torch.eye(8, device=device))
    begin = time.perf_counter()
    run = train(data, settings, seed=key["seed"], device=device)
    seconds = time.perf_counter() - begin
    rows = {
        each: {"validation": round(run.best[each].validation, 6), "test": tested(run.recommender(each), data)}
        for each in run.rows()
    }
    return {
        "split": data.hash, "rows": rows, "chosen": run.chosen, "best_head": run.best_head(),
        "stages": {record["stage"]: round(record["seconds"], 2) for record in run.history},
        "seconds": round(seconds, 2), "device": str(run.device),
    }  # fmt: skip


def run_tests(options: argparse.Namespace) -> None:
    """The default: every head and consensus. Seconds count only where --jobs is 1."""
    name = "strong-alone" if options.alone else "strong"
    keys = [
        {"data": data, "seed": seed, "refit": "validation", "budget": budget}
        for budget in options.budgets
        for data, seed in jobs(options.only, public=True)
    ]
    in_parallel(keys, strong_cell, ResultsLog(options.results / f"{name}.jsonl"), options)


def rival(key: dict[str, Any], folder: Path, device: str | None) -> dict[str, Any]:  # noqa: ARG001
    """Tune a baseline on the validation part of a split, refit it, and test it."""
    found = compare(split_of(key["data"], key["seed"], folder), [key["model"]], seeds=1, metrics=RIVAL_METRICS)
    (entrant,) = found.entrants
    test = {each: round(entrant.mean(each), 6) for each in found.metrics}
    more = {"split": found.split_hashes[0], "seconds": round(entrant.fit_seconds[0], 2), "test": test}
    return {"settings": entrant.settings, "at_grid_edge": entrant.edges} | more


def run_rivals(options: argparse.Namespace) -> None:
    """The baselines, each tuned on every split as the default is."""
    keys = [
        {"data": name, "seed": seed, "model": model}
        for model in options.models
        for name, seed in jobs(options.only, public=model == "als")
    ]
    in_parallel(keys, rival, ResultsLog(options.results / "strong-rivals.jsonl"), options)


@contextmanager
def without(voter: str | None) -> Iterator[None]:
    """A recipe in which one voter has no vote."""
    whole: Callable[..., Any] = Recipe._voters

    def fewer(self: Any, log: csr_array, users: torch.Tensor) -> Any:
        return [each for each in whole(self, log, users) if each.name != voter]

    Recipe._voters = fewer  # type: ignore[method-assign]
    try:
        yield
    finally:
        Recipe._voters = whole  # type: ignore[method-assign]


def run_ablations(options: argparse.Namespace) -> None:
    """On validation alone: the budgets, and the default without each voter."""
    log = ResultsLog(options.results / "strong-ablations.jsonl")
    variants = [(budget, voter) for budget in BUDGETS for voter in (None, *LEFT_OUT.get(budget, ()))]
    for name in options.only:
        for seed in PUBLIC_SEEDS if name in PUBLIC else CHOICE_SEEDS:
            for budget, voter in variants:
                key = {"data": name, "seed": seed, "budget": budget, "without": voter}
                if log.find(key) is None:
                    data, begin = split_of(name, seed, options.data), time.perf_counter()
                    settings = choose_settings("strong", words=["refit=none", f"budget={budget}"])
                    with without(voter):
                        run = train(data, settings, seed=seed, device=options.device)
                    seconds = time.perf_counter() - begin
                    figures = {each: round(run.best[each].validation, 6) for each in run.rows()}
                    stages = {record["stage"]: round(record["seconds"], 2) for record in run.history}
                    log.add(key, {"validation": figures, "seconds": round(seconds, 2), "stages": stages})
                    print(key, figures, round(seconds, 1), flush=True)


def run_large(options: argparse.Namespace) -> None:
    """Seconds and memory of the whole default on a large simulated log."""
    data, begin = split_of(LARGE, 0, options.data), time.perf_counter()
    run = train(data, choose_settings("strong"), seed=0, device=options.device)
    seconds = time.perf_counter() - begin
    memory = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else None
    stages = {record["stage"]: round(record["seconds"], 2) for record in run.history}
    figures = {each: round(run.best[each].validation, 6) for each in run.rows()}
    line = {"pairs": data.train.nnz, "shape": list(data.train.shape), "seconds": round(seconds, 2), "stages": stages}
    key = {"data": LARGE, "simulation": SIMULATED, "device": options.device or "cpu"}
    ResultsLog(options.results / "strong-large.jsonl").add(key, line | {"GiB": memory, "validation": figures})
    print(line, memory, flush=True)


COMMANDS = {
    "test": run_tests,
    "rivals": run_rivals,
    "ablations": run_ablations,
    "large": run_large,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device")
    parser.add_argument(
        "--only", nargs="*", default=[*ROWS, *GUARDS, *PUBLIC, *TENTH, *INNER, *NEWEST], help="data sets"
    )
    parser.add_argument("--budgets", nargs="*", default=["default", "thorough"], help="of test")
    parser.add_argument(
        "--alone", action="store_true", help="nothing else is on the device: lines of strong-alone, whose seconds count"
    )
    parser.add_argument("--models", nargs="*", default=RIVALS, help="of rivals")
    parser.add_argument("--jobs", type=int, default=1, help="cells that are measured at the same time")
    options = parser.parse_args()
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
