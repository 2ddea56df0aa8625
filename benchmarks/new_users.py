"""New users: the default folded in from histories, compared with EASE^R and iALS (docs/new-data.md).

    python benchmarks/new_users.py prepare                          # the splits, as folders NAME-SEED of --data
    python benchmarks/new_users.py test --device cuda               # all of them
    python benchmarks/new_users.py test --only citeulike-0 ciao-3   # some of them
    python benchmarks/new_users.py times --only citeulike-0         # milliseconds for a history, on one core
    python benchmarks/render_new_users.py

Protocol `new-users`: a tenth of the users validates, a tenth tests, and of each a fifth of the items is to be found
from the rest. All are fitted on the same users. EASE^R and iALS are tuned on the validation users; the default (preset
`strong`) chooses its settings by itself, on items of the users that it knows. What is in the results is not measured
again. Only `prepare` needs the data sets and polars.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from measuring import busy_cores
from scipy.sparse import csr_array

from concf.baselines.als import ALS, Pairs, UserSolver
from concf.baselines.ease import EASE
from concf.baselines.table import BASELINES
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.evaluation.scorers import Factors
from concf.inference.lookup import History
from concf.inference.ranker import Ranker
from concf.models import choose_settings, load_run, train
from concf.runs.run import Run
from concf.runtime.executors import use_one_thread

if TYPE_CHECKING:
    from concf.data.prepare import LogOptions

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FILTERS: dict[str, LogOptions] = {  # Gowalla's public files are filtered already
    "citeulike": {"min_user": 10, "min_item": 10}, "ciao": {"min_user": 10, "min_item": 10},
    "foursquare": {"min_user": 10, "min_item": 10}, "gowalla": {},
}  # fmt: skip
SEEDS = range(5)
SPLITS = [f"{name}-{seed}" for name in FILTERS for seed in SEEDS]
AT, METRICS = (50, 100), ("recall", "ndcg")
FACTORS, SWEEPS = 256, (4, 8, 16)
ALS_GRID = (0.003, 0.01, 0.03, 0.1, 0.3), (0.003, 0.01, 0.03, 0.1)  # unobserved, penalty
HISTORIES = 100  # whose time is taken
Settings = dict[str, Any]


def prepare_splits(options: argparse.Namespace) -> None:
    """The folders of the splits."""
    from concf.data.prepare import prepare

    for split in options.only:
        name, _, seed = split.rpartition("-")
        if not (options.data / split).exists():
            how: LogOptions = {"protocol": "new-users", **FILTERS[name]}
            prepare(name, seed=int(seed), out=options.data / split, **how)


def figures(model: Any, data: Split, on: Any) -> dict[str, float]:
    means = evaluate(model, data, on=on, at=AT, metrics=METRICS).means()
    return {figure: round(value, 6) for figure, value in means.items()}


def tuned_ease(data: Split, log: csr_array, device: torch.device) -> tuple[Settings, Any]:
    """The regularisation with the best recall@50 of the validation users, and what it fits."""
    tried = []
    for each in BASELINES["ease"].grid["regularisation"]:
        model = EASE(regularisation=each)
        fitted = model.fold_in(model.fit(log, device=device), data.history)
        tried.append((figures(fitted, data, "valid")["recall@50"], each, fitted))
    _, best, fitted = max(tried, key=lambda one: one[0])
    return {"regularisation": best}, fitted


def tuned_als(data: Split, log: csr_array, device: torch.device) -> tuple[Settings, Any]:
    """Unobserved weight, penalty and sweeps of iALS, by our own solver."""
    als, histories = ALS(Pairs.observed(log, device), log.shape, FACTORS), Pairs.observed(data.history, device)
    start, tried = als.start(0), []
    for unobserved, penalty in product(*ALS_GRID):
        item, done = start, 0
        for sweeps in SWEEPS:
            _, item = als.fit(item, unobserved, penalty, sweeps - done)
            done = sweeps
            user = UserSolver(item, unobserved, penalty)(histories, data.history.shape[0])
            fitted = Factors(user, item).to("cpu")
            value = figures(fitted, data, "valid")["recall@50"]
            tried.append((value, {"unobserved": unobserved, "penalty": penalty, "sweeps": sweeps}, fitted))
    _, settings, fitted = max(tried, key=lambda one: one[0])
    return settings, fitted


TUNED: dict[str, Callable[[Split, csr_array, torch.device], tuple[Settings, Any]]] = {
    "ease": tuned_ease, "als": tuned_als,
}  # fmt: skip


def run_tests(options: argparse.Namespace) -> None:
    """The test figures of every split."""
    results, device = ResultsLog(options.results / "new-users.jsonl"), torch.device(options.device or "cpu")
    for split in options.only:
        data, key = Split.load(options.data / split), {"split": split}
        log = data.train[np.diff(data.train.indptr) > 0]
        for name, tune in TUNED.items():
            if results.find(key | {"model": name}) is None:
                begin = time.perf_counter()
                settings, fitted = tune(data, log, device)
                line: dict[str, Any] = {on: figures(fitted, data, on) for on in ("valid", "test")}
                line |= {"hash": data.hash, "settings": settings, "seconds": round(time.perf_counter() - begin, 1)}
                print(split, name, results.add(key | {"model": name}, line), flush=True)
        if results.find(key | {"model": "concf"}) is None:
            begin = time.perf_counter()
            run = train(data, choose_settings("strong"), seed=data.recipe.seed, device=options.device)
            seconds = round(time.perf_counter() - begin, 1)
            models = {name: run.recommender(name, data.history) for name in run.rows()}
            rows = {name: {on: figures(each, data, on) for on in ("valid", "test")} for name, each in models.items()}
            line = {"hash": data.hash, "settings": run.chosen, "rows": rows, "kept": same_lists(run)}
            line |= {"users": len(data.evaluated), "seconds": seconds, "device": str(run.device)}
            print(split, results.add(key | {"model": "concf"}, line), flush=True)


def same_lists(run: Any, n: int = 50) -> dict[str, float]:
    """Of users of the log, folded in from their own items: how much of their own first n items is there again."""
    ranker, users = Ranker(run), np.arange(min(2000, run.log.shape[0]))
    used = np.split(run.log.indices, run.log.indptr[1:-1])[: len(users)]
    shares = {}
    for name in run.rows():
        known, histories = ranker.short(users, n, name, used), [History.of(each) for each in used]
        folded = ranker.of_histories(histories, n, name, used)
        pairs = [len(np.intersect1d(one, other)) / n for (one, _), (other, _) in zip(known, folded, strict=True)]
        shares[name] = round(float(np.mean(pairs)), 4)
    return shares


def run_times(options: argparse.Namespace) -> None:
    """Milliseconds of a processor for the list of a history, alone and among a hundred, by each head and consensus."""
    results = ResultsLog(options.results / "new-users-times.jsonl")
    use_one_thread()
    for split in options.only:
        key = {"split": split} | ({"label": options.label} if options.label else {})
        if results.find(key) is not None:
            continue
        data = Split.load(options.data / split)
        ranker = Ranker(trained(data, options, split))
        rows = data.history[data.evaluated[:HISTORIES]]
        used, busy = np.split(rows.indices.astype(np.int64), rows.indptr[1:-1]), busy_cores()
        alone, together = {}, {}
        for name in ranker.names:
            processor_seconds(ranker, used[:1], name)  # what all share
            alone[name] = round(1000 * median(processor_seconds(ranker, [one], name) for one in used), 3)
            together[name] = round(1000 * processor_seconds(ranker, used, name) / len(used), 3)
        line = {"alone": alone, "together": together, "items": data.train.shape[1], "cores_busy_elsewhere": busy}
        print(split, results.add(key, line), flush=True)


def trained(data: Split, options: argparse.Namespace, split: str) -> Run:
    """The default on a split: from its folder of --runs, if it is there."""
    if options.runs and (options.runs / split).exists():
        return load_run(options.runs / split)
    out = options.runs / split if options.runs else None
    return train(data, choose_settings("strong"), seed=data.recipe.seed, device=options.device, out=out)


def processor_seconds(ranker: Ranker, histories: list[Any], name: str) -> float:
    begin = time.process_time()
    ranker.of_histories([History.of(each) for each in histories], 50, name, histories)
    return time.process_time() - begin


COMMANDS = {"prepare": prepare_splits, "test": run_tests, "times": run_times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "new-users")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device")
    parser.add_argument("--runs", type=Path, help="where `times` keeps its runs for another time")
    parser.add_argument("--label", help="of lines of `times` that stand beside those without one")
    parser.add_argument("--only", nargs="*", default=SPLITS, choices=SPLITS, metavar="SPLIT", help="such as ciao-3")
    options = parser.parse_args()
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
