"""Compare the default preset with tuned baselines, all refitted: the lines of docs/strong.md.

    python benchmarks/strong.py test --device cuda        # the default, refitted and not: seeds 10 to 14, public splits
    python benchmarks/strong.py als --device cuda         # iALS by our own solver, tuned, refitted and not
    python benchmarks/strong.py baselines                 # the others, with the settings that `make baselines` chose
    python benchmarks/strong.py ablations --device cuda   # on validation: seeds 0 and 1, without each voter; budgets
    python benchmarks/strong.py times                     # two cores, beside implicit's ALS in the same run
    python benchmarks/strong.py large --device cuda       # a simulated log of 138,000 x 27,000 with 9.5 million pairs
    python benchmarks/render_strong.py

--data: a folder of prepared splits NAME-PROTOCOL-SEED, made if need be. What is in the results is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measuring import busy_cores
from scipy.sparse import csr_array

from concf.baselines.als import ALS, Pairs
from concf.baselines.table import BASELINES
from concf.comparison.results_log import ResultsLog
from concf.consensus.voters import by_factors
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.evaluation.scorers import Factors
from concf.evaluation.validation import Validation
from concf.models import choose_settings, train
from concf.strong import search
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
GUARDS = ("ciao-time", "sparse-simulated")  # nothing was chosen by their test parts
TEST_SEEDS, CHOICE_SEEDS, PUBLIC_SEEDS, GUARD_SEEDS = range(10, 15), range(2), range(1), range(3)
AT, METRICS = (20, 50), ("recall", "ndcg")
REFITS = ("validation", "none")
FACTORS, SWEEPS = 256, (4, 8, 16)
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
        from concf.data.prepare import prepare, write_parts
        from concf.data.prepare import split_of as split_log

        source, _, protocol = name.partition("-")
        if name == LARGE:
            split_log(Simulation(**SIMULATED).draw(seed), seed, min_item=1).save(path)
        elif source == "sparse":
            log = Simulation(**SPARSE).draw(seed)
            prepare(log, protocol="random", seed=seed, out=path, min_user=5, min_item=5, core=True)
        else:
            inner, _, part = protocol.rpartition("-")
            options = {"protocol": "given"} | GIVEN[part] if part in GIVEN else {"protocol": protocol}
            if inner:
                outer = prepare(source, protocol="given", valid=HELD_BACK, newest=True, seed=seed)
                files = [folder / f"{source}-{which}-{seed}-{os.getpid()}.parquet" for which in ("train", "valid")]
                for which, file in zip(("train", "valid"), files, strict=True):
                    write_parts(outer, [which], file)
                prepare(files[0], test=files[1], seed=seed, out=path, **options)
                for file in files:
                    file.unlink()
            else:
                prepare(source, seed=seed, out=path, **options)
    return Split.load(path)


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


def run_tests(options: argparse.Namespace) -> None:
    """The default: every head and consensus, refitted and not."""
    name = "strong-alone" if options.alone else "strong"
    log, warm = ResultsLog(options.results / f"{name}.jsonl"), options.device != "cuda"
    for name, seed in jobs(options.only, public=True):
        for budget, refit in product(options.budgets, options.refits):
            key = {"data": name, "seed": seed, "refit": refit, "budget": budget}
            if log.find(key) is not None:
                continue
            data, begin = split_of(name, seed, options.data), time.perf_counter()
            settings = choose_settings("strong", words=[f"refit={refit}", f"budget={budget}"])
            if not warm:  # the libraries of a GPU are loaded at their first use
                train(data, settings, seed=seed, device=options.device)
                warm, begin = True, time.perf_counter()
            run = train(data, settings, seed=seed, device=options.device)
            seconds = time.perf_counter() - begin
            rows = {
                each: {"validation": round(run.best[each].validation, 6), "test": tested(run.recommender(each), data)}
                for each in run.rows()
            }
            line = {
                "split": data.hash, "rows": rows, "chosen": run.chosen, "best_head": run.best_head(),
                "stages": {record["stage"]: round(record["seconds"], 2) for record in run.history},
                "seconds": round(seconds, 2), "device": str(run.device),
            }  # fmt: skip
            log.add(key, line)
            print(
                name,
                seed,
                refit,
                budget,
                rows["consensus"]["test"],
                rows["student"]["test"],
                line["seconds"],
                flush=True,
            )


def tuned_als(data: Split, device: torch.device) -> dict[str, float]:
    """Unobserved weight, penalty and sweeps of iALS with all factors, by the validation of everyone."""
    validation = Validation(data, "recall@50", device)
    als = ALS(Pairs.observed(data.train, device), data.train.shape, FACTORS)
    start, best = als.start(0), {}

    def measure(place: tuple[int, ...]) -> search.Point:
        settings, item, done = search.als_settings(als, place), start, 0
        for sweeps in SWEEPS:
            user, item = als.fit(item, **settings, sweeps=sweeps - done)
            done = sweeps
            lists = by_factors("als", Factors(user, item), data.train, validation.users, 50).lists
            best[place, sweeps] = validation.of_its_users(lists)
        return search.Point(place, max(best[place, sweeps] for sweeps in SWEEPS))

    search.climb((len(search.UNOBSERVED), len(search.STRENGTH)), search.FIRST, measure, 10)
    place, sweeps = max(best, key=lambda each: best[each])
    return search.als_settings(als, place) | {"sweeps": sweeps}


def run_als(options: argparse.Namespace) -> None:
    """iALS by our own solver: its settings chosen on seed 0 of each data set, as those of the other baselines."""
    log, device = ResultsLog(options.results / "strong-baselines.jsonl"), torch.device(options.device or "cpu")
    for name, seed in jobs(options.only, public=True):
        settings: dict[str, float] | None = None
        for refit in options.refits:
            key = {"data": name, "seed": seed, "refit": refit, "model": "als"}
            if log.find(key) is None:
                settings = settings or tuned_als(split_of(name, 0, options.data), device)
                data, begin = split_of(name, seed, options.data), time.perf_counter()
                learned = data.log(("train", "valid")) if refit == "validation" else data.train
                als = ALS(Pairs.observed(learned, device), learned.shape, FACTORS)
                factors = Factors(*als.fit(als.start(seed), **settings))  # type: ignore[arg-type]
                seconds = round(time.perf_counter() - begin, 2)
                log.add(
                    key, {"settings": settings, "split": data.hash, "seconds": seconds, "test": tested(factors, data)}
                )
                print(key, settings, flush=True)


def chosen_settings(name: str, model: str, seed: int, results: Path) -> dict[str, Any]:
    """The settings with the best validation score on seed 0, over the whole grid, in the committed lines.

    Of a guard those that the default has found for its own voter on the validation part of the very split.
    """
    if name in GUARDS:
        key = {"data": name, "seed": seed, "refit": "validation", "budget": "default"}
        run = ResultsLog(results / "strong.jsonl").find(key)
        assert run is not None, "first: strong.py test"
        return dict(run["chosen"][model])
    lines = [json.loads(line) for line in (RESULTS / f"baselines-{name}.jsonl").read_text("utf-8").splitlines()]
    tried = [line for line in lines if line["key"]["on"] == "valid" and line["key"]["model"] == model]
    best = max(tried, key=lambda line: line["mean"].get("recall@50", 0))
    return dict(best["key"]["settings"])


def run_baselines(options: argparse.Namespace) -> None:
    """The other baselines, refitted and not."""
    log = ResultsLog(options.results / "strong-baselines.jsonl")
    for name, seed in jobs(options.only, public=False):
        for model in options.models:
            settings = BASELINES[model].make(**chosen_settings(name, model, seed, options.results))
            for refit in options.refits:
                key = {"data": name, "seed": seed, "refit": refit, "model": model}
                if log.find(key) is None:
                    data, begin = split_of(name, seed, options.data), time.perf_counter()
                    learned = data.log(("train", "valid")) if refit == "validation" else data.train
                    fitted = settings.fit(learned, seed=seed)
                    line = {"settings": settings.model_dump(), "split": data.hash}
                    seconds = round(time.perf_counter() - begin, 2)
                    log.add(key, line | {"seconds": seconds, "test": tested(fitted, data)})
                    print(key, flush=True)


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


def run_times(options: argparse.Namespace) -> None:
    """Seconds and processor seconds of each budget, refit and all, beside implicit's ALS before and after it."""
    log = ResultsLog(options.results / "strong-times.jsonl")
    rival = BASELINES["ials"].make(factors=256, iterations=15, alpha=40.0, regularisation=60.0)

    def took(work: Callable[[], Any]) -> tuple[float, float]:
        begin, used = time.perf_counter(), time.process_time()
        work()
        return time.perf_counter() - begin, time.process_time() - used

    for name in (each for each in options.only if each not in GUARDS):
        data = split_of(name, 0 if name in PUBLIC else 10, options.data)
        for budget in ("fast", "default"):
            key = {"data": name, "budget": budget}
            if log.find(key) is None:
                busy = busy_cores()
                before = took(partial(rival.fit, data.train, seed=0))
                settings = choose_settings("strong", words=[f"budget={budget}"])
                ours = took(partial(train, data, settings, seed=10, device="cpu"))
                after = took(partial(rival.fit, data.train, seed=0))
                line = {"seconds": ours, "rival_seconds": [before, after], "cores_busy_elsewhere": busy}
                log.add(key, line | {"times": 2 * ours[0] / (before[0] + after[0])})
                print(key, line, flush=True)


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
    "test": run_tests, "als": run_als, "baselines": run_baselines, "ablations": run_ablations, "times": run_times,
    "large": run_large,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device")
    parser.add_argument(
        "--only", nargs="*", default=[*ROWS, *GUARDS, *PUBLIC, *TENTH, *INNER, *NEWEST], help="data sets"
    )
    parser.add_argument("--refits", nargs="*", default=list(REFITS), help="validation: refitted on it too; none")
    parser.add_argument("--budgets", nargs="*", default=["default", "thorough"], help="of test")
    parser.add_argument(
        "--alone", action="store_true", help="nothing else is on the device: lines of strong-alone, whose seconds count"
    )
    parser.add_argument("--models", nargs="*", default=["ials", "rp3beta", "ease", "itemknn"], help="of baselines")
    options = parser.parse_args()
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
