"""Preset `strong` compared with tuned baselines, and without each of its parts: the lines of docs/strong.md.

    python benchmarks/strong.py baselines         # with the settings that docs/baselines.md chose on seed 0
    python benchmarks/strong.py test              # strong, and the same voters trained separately: seeds 5 to 9
    python benchmarks/strong.py ablations         # strong without each part, on validation: seeds 0 to 4
    python benchmarks/strong.py alone             # one run with the machine to itself: how long it takes
    python benchmarks/strong.py steps             # single steps and rankings of that run
    python benchmarks/render_strong.py

--data: a folder of prepared splits NAME-PROTOCOL-SEED, made if need be. What is in the results is not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measuring import busy_cores, in_turns, medians
from torch import Tensor

from concf.consensus.features import PAIR_FEATURES, HeadFeatures
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.experiments.results_log import ResultsLog
from concf.model.baselines.table import BASELINES
from concf.training.config.presets import STUDENTS, VOTERS, choose_settings
from concf.training.memory import kept_memory
from concf.training.train import train
from concf.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = ("citeulike-paper", "foursquare-released", "ciao-released", "citeulike-released")  # the slowest first
TEST_SEEDS, CHOICE_SEEDS = range(5, 10), range(5)
ALONE = ("citeulike-paper", 5)  # data and seed
AT, METRICS = (20, 50), ("recall", "ndcg")
RANKS_ONLY, NO_SIMILARITY = "re-ranker on ranks only", "re-ranker without similarity"
DROPPED = {RANKS_ONLY: slice(None), NO_SIMILARITY: slice(PAIR_FEATURES - 2, PAIR_FEATURES)}  # features of a head
ABLATIONS = {
    "strong": [],
    "no distillation": ["consensus.weight=0"],
    "no re-ranker": ["consensus.rerank=false"],
    RANKS_ONLY: [],
    NO_SIMILARITY: [],
    "three student heads": [f"objectives={json.dumps([*VOTERS, *STUDENTS, 'student-3=weighted-squares@0.05'])}"],
    "no fixed voters": ["consensus.fixed_voters=[]"],
    "all heads distilled": ["consensus.undistilled=[]"],
}
SQUARES = '"weighted-squares@0.03","weighted-squares@0.04"'
TESTED = {
    "strong": [],
    "apart": ["consensus.weight=0"],
    "squares, re-ranked": [
        f"objectives=[{SQUARES}]",
        "consensus.fixed_voters=[]",
        "consensus.undistilled=[]",
        "consensus.weight=0",
    ],
}
Job = tuple[str, int, str, tuple[str, ...]]  # data, seed, variant, changes


def split_of(name: str, seed: int, folder: Path) -> Split:
    """The prepared folder, made if it is not there."""
    path = folder / f"{name}-{seed}"
    if not path.exists():
        from concf.data.prepare import prepare

        source, _, protocol = name.partition("-")
        prepare(source, protocol=protocol, seed=seed, out=path)
    return Split.load(path)


@contextmanager
def fewer_features(variant: str) -> Iterator[None]:
    """The re-ranker without some features of the heads, for the variants that are about it."""
    whole = HeadFeatures.__call__

    def reduced(self: HeadFeatures, users: Tensor, items: Tensor) -> Tensor:
        features = whole(self, users, items)
        features[..., DROPPED[variant]] = 0
        return features

    if variant in DROPPED:
        HeadFeatures.__call__ = reduced  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeadFeatures.__call__ = whole  # type: ignore[method-assign]


def trained(job: Job, folder: Path, device: str | None) -> dict[str, Any]:
    """Every head and consensus at its best, on validation and test."""
    name, seed, variant, changes = job
    data = split_of(name, seed, folder)
    begin = time.perf_counter()
    with fewer_features(variant):
        run = train(data, choose_settings("strong", words=changes), seed=seed, device=device)
    seconds = time.perf_counter() - begin
    rows = {
        each: {
            "validation": round(run.best[each].validation, 6),
            "epoch": run.best[each].epoch,
            "test": {figure: round(value, 6) for figure, value in result.means().items()},
        }
        for each, result in run.evaluate(at=AT, metrics=METRICS).items()
    }
    curve = [record["validation"] for record in run.history if "validation" in record]
    return {
        "changes": list(changes),
        "settings": run.settings.model_dump(mode="json"),
        "split": data.hash,
        "best_head": run.best_head(),
        "rows": rows,
        "curves": {each: [round(point[each], 4) for point in curve] for each in rows},
        "epochs": run.epoch,
        "seconds": round(seconds, 2),
        "device": str(run.model.user.device),
    }


def measure(jobs: list[Job], log: ResultsLog, folder: Path, device: str | None, workers: int) -> None:
    """Run the jobs that the log does not have, several at a time."""
    missing = [job for job in jobs if log.find(_key(job)) is None]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        pending = {pool.submit(trained, job, folder, device): job for job in missing}
        for future in as_completed(pending):
            job = pending[future]
            if error := future.exception():
                log.add(_key(job) | {"failed": True}, {"error": str(error)})
                continue
            line = log.add(_key(job), future.result() | {"workers": workers})
            best = line["rows"][line["best_head"]], line["rows"]["consensus"]
            print(*job[:3], *(row["test"]["recall@50"] for row in best), f"{line['seconds']} s", flush=True)


def _key(job: Job) -> dict[str, Any]:
    return {"data": job[0], "seed": job[1], "variant": job[2]}


def chosen_settings(name: str, model: str) -> dict[str, Any]:
    """The settings with the best validation score on seed 0, over the whole grid, in the committed lines."""
    lines = [json.loads(line) for line in (RESULTS / f"baselines-{name}.jsonl").read_text("utf-8").splitlines()]
    tried = [line for line in lines if line["key"]["on"] == "valid" and line["key"]["model"] == model]
    best = max(tried, key=lambda line: line["mean"].get("recall@50", 0))
    return dict(best["key"]["settings"])


def baselines(log: ResultsLog, folder: Path) -> None:
    for name in DATA:
        for model, candidate in BASELINES.items():
            settings = candidate.make(**chosen_settings(name, model))
            for seed in TEST_SEEDS:
                key = {"data": name, "seed": seed, "variant": model}
                if log.find(key) is None:
                    data, begin = split_of(name, seed, folder), time.perf_counter()
                    fitted = settings.fit(data.train, seed=seed)
                    seconds = time.perf_counter() - begin
                    means = evaluate(fitted, data, on="test", at=AT, metrics=METRICS).means()
                    test = {figure: round(value, 6) for figure, value in means.items()}
                    line = {"settings": settings.model_dump(), "split": data.hash, "seconds": round(seconds, 2)}
                    log.add(key, line | {"rows": {model: {"test": test}}})
            print(name, model, flush=True)


def alone(log: ResultsLog, folder: Path, device: str | None) -> None:
    job: Job = (*ALONE, "strong", ())
    line = trained(job, folder, device)
    log.add(_key(job) | {"alone": True, "device": line["device"]}, line)
    print(line["seconds"], "s", flush=True)


def steps(log: ResultsLog, folder: Path, device: str | None) -> None:
    """Medians of six steps and rankings, and what a whole run takes by them."""
    data, settings = split_of(*ALONE, folder), choose_settings("strong")
    trainer = Trainer(data, settings, ALONE[1], device or "cpu")
    batches = list(trainer._draw(0).split(trainer.batch_size))
    works = {
        "step": lambda: trainer._step(batches[0], False),
        "ranking": lambda: trainer.consensus.validate(trainer.consensus.update()),
        "taught_step": lambda: trainer._step(batches[0], True),
    }
    with kept_memory(trainer.model):
        took = medians(in_turns(works, 6))
    epochs, every, first = settings.training.epochs, settings.consensus.every, settings.consensus.first_consensus_epoch
    whole = len(batches) * (first * took["step"] + (epochs - first) * took["taught_step"])
    whole += len({*range(0, epochs, every), epochs - 1}) * took["ranking"]
    line = {"seconds": took, "batches": len(batches), "whole_run_seconds": whole, "threads": torch.get_num_threads()}
    log.add({"data": ALONE[0], "seed": ALONE[1], "device": str(trainer.device)}, line | {"busy": busy_cores()})
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["baselines", "test", "ablations", "alone", "steps"])
    parser.add_argument("--data", type=Path, default=ROOT / "data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=DATA, help="data sets")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--variants", nargs="*")
    options = parser.parse_args()
    if options.what == "baselines":
        baselines(ResultsLog(options.results / "strong-baselines.jsonl"), options.data)
        return
    if options.what in ("alone", "steps"):
        work = {"alone": alone, "steps": steps}[options.what]
        work(ResultsLog(options.results / f"strong-{options.what}.jsonl"), options.data, options.device)
        return
    test = options.what == "test"
    variants = TESTED if test else ABLATIONS
    jobs = [
        (name, seed, variant, tuple(changes))
        for variant, changes in variants.items()
        for name in DATA
        for seed in options.seeds or (TEST_SEEDS if test else CHOICE_SEEDS)
        if name in options.only and variant in (options.variants or variants)
    ]
    log = ResultsLog(options.results / ("strong.jsonl" if test else "strong-ablations.jsonl"))
    measure(jobs, log, options.data, options.device, options.workers)


if __name__ == "__main__":
    main()
