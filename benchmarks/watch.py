"""Whether the default is as accurate, and as fast beside a yardstick, as when its line was written.

    python benchmarks/watch.py accuracy            # minutes; ends with 1 if a figure is lower than its noise allows
    python benchmarks/watch.py speed
    python benchmarks/watch.py accuracy --write    # measure the line anew, from a clean commit

Accuracy: `--budget fast` on one split of three data sets; test Recall@50 and NDCG@50 of the consensus and of the head.
A line has the figures of several training seeds on that split. One more training, with the first seed, may be lower
than their mean by three of their standard deviations, and by half a per cent in any case.
Speed: ratios of processor seconds within one run, of which the best of the repeats counts; a ratio may be larger than
its line by the factor `TOLERANCE`. The stages of the default are printed beside the budgets that are aimed at.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from measuring import RESULTS

from concf import BASELINES, Recommender, choose_settings, evaluate, prepare, train
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split

DATA = ("citeulike", "ciao", "foursquare")
SEEDS = (0, 1, 2, 3)
DEVIATIONS, LEAST = 3.0, 0.005  # what counts as noise: of the standard deviation, and of the mean in any case
TOLERANCE = 1.4
K = 50
Figures = dict[str, float]  # "consensus recall@50" -> its value
FAST, DEFAULT = (choose_settings("strong", {"budget": budget}) for budget in ("fast", "default"))
BUDGETS = {  # aims, in units of implicit's ALS on the same log: 256 factors, 15 iterations
    "as many sweeps of ALS": 1.0, "training": 2.5, "search": 0.5, "als": 1.3, "rerank": 0.8, "student": 0.5,
    "refit": 0.8, "final": 1.3,
}  # fmt: skip


def figures_of(data: Split, seed: int) -> Figures:
    """The test figures of one training."""
    run = train(data, FAST, seed=seed, device="cpu")
    found = run.evaluate(on="test", at=[K], metrics=["recall", "ndcg"])
    means = {"consensus": found["consensus"].means(), "head": found[run.best_head()].means()}
    return {f"{who} {figure}": value for who, each in means.items() for figure, value in each.items()}


def lowest(values: list[float]) -> float:
    """The lowest figure that is noise, by the figures of several seeds."""
    return mean(values) - max(DEVIATIONS * stdev(values), LEAST * mean(values))


def fallen(line: dict[str, Any], found: Figures) -> list[str]:
    """What is lower than its line allows."""
    return [
        f"{name} {found[name]:.4f} is below {lowest(values):.4f} (mean of {len(values)} seeds {mean(values):.4f})"
        for name, values in line["figures"].items()
        if found[name] < lowest(values)
    ]


def watch_accuracy(log: ResultsLog, write: bool) -> Iterator[str]:
    """Measure a line for each data set, or compare with it: what has fallen."""
    for name in DATA:
        data = prepare(name, protocol="released", seed=0)
        key = {"data": name, "protocol": "released", "split": data.hash, "budget": "fast"}
        if write:
            several = [figures_of(data, seed) for seed in SEEDS]
            figures = {each: [round(one[each], 6) for one in several] for each in several[0]}
            print(log.add(key, {"seeds": list(SEEDS), "figures": figures}), flush=True)
            continue
        line, found = log.find(key), figures_of(data, SEEDS[0])
        print(name, {each: round(value, 4) for each, value in found.items()}, flush=True)
        yield from (
            [f"{name}: no line for this split"] if line is None else (f"{name}: {it}" for it in fallen(line, found))
        )


def used(work: Callable[[], object], repeats: int = 1) -> float:
    """Processor seconds, the best of the repeats."""
    took = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return min(took)


def stages(data: Split) -> Figures:
    """Processor seconds of each stage of the default."""
    ends: list[tuple[str, float]] = [("", time.process_time())]
    watch = lambda record: ends.append((record["stage"], time.process_time()))  # noqa: E731
    train(data, DEFAULT, seed=0, device="cpu", watch=watch)
    return {stage: end - begin for (_, begin), (stage, end) in pairwise(ends)}


def ratios() -> Figures:
    """Training beside implicit's ALS; lists of everyone, and their evaluation, beside a product of matrices."""
    data = prepare(DATA[0], protocol="released", seed=0)
    rival = BASELINES["ials"].make(factors=256, iterations=15, alpha=40.0, regularisation=60.0)
    als = partial(rival.fit, data.train, seed=0)
    als()
    before, run = used(als), list[Any]()
    sweeps = used(lambda: BASELINES["als"].make(factors=256, sweeps=15).fit(data.train, seed=0))
    parts = stages(data)
    ours = used(lambda: run.append(train(data, FAST, seed=0, device="cpu")))
    model, head = Recommender(run[0]), run[0].best_head()
    users, items = (torch.from_numpy(each) for each in (model.user_factors(head), model.item_factors(head)))

    def floor() -> None:  # scores of all items, and the best of them
        for begin in range(0, len(users), 1024):
            (users[begin : begin + 1024] @ items.T).topk(K)

    def bulk() -> None:
        for _ in model.stream(k=K, by=head):
            pass

    scorer = run[0].recommender(head)
    works = {
        "floor": floor,
        "bulk": bulk,
        "evaluation": lambda: evaluate(scorer, data, at=[K], metrics=["recall", "ndcg"]),
    }
    times = {name: used(work, repeats=5) for name, work in works.items()}
    parts |= {"training": ours, "as many sweeps of ALS": sweeps}
    unit = min(before, used(als))
    return {f"{name} / implicit's ALS": parts[name] / unit for name in BUDGETS} | {
        "lists of all users / product and top 50": times["bulk"] / times["floor"],
        "evaluation / product and top 50": times["evaluation"] / times["floor"],
    }


def slower(line: dict[str, Any], found: Figures) -> list[str]:
    """What is slower than its line allows."""
    return [
        f"{name}: {found[name]:.2f} is above {TOLERANCE:g} times {ratio:.2f}"
        for name, ratio in line["ratios"].items()
        if found[name] > TOLERANCE * ratio
    ]


def watch_speed(log: ResultsLog, write: bool) -> Iterator[str]:
    """Measure a line, or compare with it: what is slower."""
    found, key = ratios(), {"data": DATA[0], "budget": "fast", "threads": torch.get_num_threads()}
    line = log.find(key)
    for name, value in found.items():
        budget = BUDGETS.get(name.removesuffix(" / implicit's ALS"))
        print(f"{name}: {value:.2f}" + ("" if budget is None else f" (budget {budget:g})"), flush=True)
    if write:
        log.add(key, {"ratios": {name: round(value, 3) for name, value in found.items()}})
    else:
        yield from [f"no line for {key['threads']} threads"] if line is None else slower(line, found)


WATCHES = {"accuracy": watch_accuracy, "speed": watch_speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WATCHES)
    parser.add_argument("--write", action="store_true", help="append the line that later runs are compared with")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    problems = list(WATCHES[options.what](ResultsLog(options.results / f"{options.what}.jsonl"), options.write))
    print("\n".join(problems) or f"{options.what}: as it was")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
