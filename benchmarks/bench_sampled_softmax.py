"""A sampled softmax against the full one: test figures, and the time of a step as the catalogue grows.

python benchmarks/bench_sampled_softmax.py accuracy DATA ... [--samples 256 1024] [--seeds 0 1 2] [--device cuda]
python benchmarks/bench_sampled_softmax.py time [--items 3000 25000 200000 500000] [--device cuda]

DATA: prepared data sets, such as `concf prepare ciao --protocol released --out DATA`. Preset `reference`, whole and
(--single) one head alone; --powers: of the proposal; --epochs: at most so many. A line a run, or a catalogue.
Times: steps without a consensus target on random pairs of 20,000 users, the ways in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_scaling import random_split
from measuring import fastest, in_turns, medians, write

from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

NAME = "sampled_softmax"
USERS, PAIRS_PER_USER = 20_000, 30


def chosen_settings(
    samples: int | None, power: float = 0.5, single: str | None = None, epochs: int | None = None
) -> RunSettings:
    words = [f"losses.softmax_samples={'none' if samples is None else samples}", f"losses.softmax_power={power}"]
    words += [] if epochs is None else [f"training.epochs={epochs}"]
    return choose_settings("reference", words=words, single=single)


def accuracy(data: Split, settings: RunSettings, seed: int, device: str) -> dict[str, Any]:
    """Test figures of every head and consensus, each at its best epoch, and how long training took."""
    begin = time.perf_counter()
    run = train(data, settings, seed=seed, device=device)
    seconds = time.perf_counter() - begin
    steps = -(-data.train.nnz // settings.training.batch) * len(run.history)
    return {
        "data": data.recipe.source["name"], "protocol": data.recipe.protocol.name, "split_seed": data.recipe.seed,
        "seed": seed, "objectives": list(settings.objectives), "samples": settings.losses.softmax_samples,
        "power": settings.losses.softmax_power, "epochs": len(run.history), "steps": steps, "seconds": seconds,
        "seconds_of_steps": sum(record["seconds"] for record in run.history),
        "best_epoch": {name: best.epoch for name, best in run.best.items()},
        "test": {name: evaluate(run.recommender(name), data, at=(20, 50)).means() for name in run.rows()},
    }  # fmt: skip


def step_of(data: Split, samples: int | None, single: str | None, device: str) -> Callable[[], None]:
    trainer = Trainer(data, chosen_settings(samples, single=single), 0, device)
    first = next(trainer._draw(0).split(trainer.batch_size))
    count = iter(range(10**9))

    def work() -> None:
        batch = first
        if trainer.sampled is not None:  # the draw is a part of the step
            batch = replace(first, drawn=trainer.sampled.draw(0, 0, next(count)).to(trainer.device))
        with trainer._precision():
            trainer.step(batch, False)
        if device == "cuda":
            torch.cuda.synchronize()

    return work


def times(n_items: int, samples: list[int], single: str | None, device: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step in full and sampled, measured in turns."""
    data = random_split(USERS, n_items, USERS * PAIRS_PER_USER)
    ways = {"full": None} | {str(n): n for n in samples}
    steps = {name: step_of(data, n, single, device) for name, n in ways.items()}
    found = in_turns(steps, rounds, warm_up=5 if device == "cuda" else 1)
    middle, best = medians(found), fastest(found)
    return {
        "objectives": single or "reference", "users": USERS, "items": n_items, "pairs": int(data.train.nnz),
        "rounds": rounds, "threads": torch.get_num_threads(), "median_seconds": middle, "fastest_seconds": best,
        "full_over_sampled": {name: middle["full"] / each for name, each in middle.items() if name != "full"},
        "fastest_full_over_sampled": {name: best["full"] / each for name, each in best.items() if name != "full"},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "time"))
    parser.add_argument("data", type=Path, nargs="*")
    parser.add_argument("--samples", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--powers", type=float, nargs="+", default=[0.5], help="of the proposal")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--single", nargs="*", default=["multinomial"], help="heads measured alone")
    parser.add_argument("--no-full", action="store_true", help="leave out the full softmax")
    parser.add_argument("--no-reference", action="store_true", help="leave out the whole preset")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--items", type=int, nargs="+", default=[3000, 25_000, 200_000, 500_000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    kind = {"device": torch.cuda.get_device_name(0) if chosen.device == "cuda" else "cpu", "what": chosen.what}
    models = [*chosen.single, *([] if chosen.no_reference else [None])]
    if chosen.what == "time":
        for n_items in chosen.items:
            for single in models:
                write(NAME, kind | times(n_items, chosen.samples, single, chosen.device, chosen.rounds))
        return
    ways = [] if chosen.no_full else [(None, 0.5)]
    ways += [(samples, power) for samples in chosen.samples for power in chosen.powers]
    for folder in chosen.data:
        data = Split.load(folder)
        for seed in chosen.seeds:
            for single in models:
                for samples, power in ways:
                    settings = chosen_settings(samples, power, single, chosen.epochs)
                    write(NAME, kind | accuracy(data, settings, seed, chosen.device))


if __name__ == "__main__":
    main()
