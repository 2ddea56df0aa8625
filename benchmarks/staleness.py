"""What lists are worth a day, a week and a month after training: the table and the picture of docs/time.md.

    python benchmarks/staleness.py measure --only ciao
    python benchmarks/staleness.py render

A log is cut at 65, 75 and 85 % of its pairs, and a run is trained on all before the cut. A window begins a day, a week
or a month later and holds the next twentieth of the pairs. Lists for its warm users (history before the window; of
their new items those that somebody has chosen before it) come from the run as it was left, from the same at the time
of the window (`at`), and from the run that was refreshed, updated, or trained again with all before the window. A line
that is there already is not measured again. Seconds are of the processor.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from bench_update import frame_of, left, next_period, timed
from measuring import RESULTS
from sources import DOCS, lines, render

from concf.comparison.results_log import ResultsLog
from concf.data.prepare import prepare, split_of
from concf.data.reading.read import read
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train
from concf.runs.settings import CONSENSUS
from concf.runtime.text_tables import markdown
from concf.strong.run import StrongRun
from concf.strong.settings import STUDENT
from concf.strong.update import update

DATA = {"ciao": "Ciao", "amazon-beauty": "Amazon Beauty"}
CUTS, WINDOW = (0.65, 0.75, 0.85), 0.05  # shares of the pairs
DELAYS = {"a day": 1, "a week": 7, "a month": 30}
WAYS = {"left": "nothing", "at": "nothing, at the window's time", "refreshed": "refresh", "updated": "update",
        "again": "training again"}  # fmt: skip
SETTINGS = choose_settings("strong", {"budget": "fast", "refit": "everything"})
METRIC, DAY = "ndcg@10", 86_400


def trained(log: Any) -> StrongRun:
    run = train(split_of(log, 0, min_item=1), SETTINGS, seed=0, device="cpu")
    assert isinstance(run, StrongRun)
    return run


def measure(name: str, cuts: list[int], results: ResultsLog) -> None:
    """Measure every way at every cut and delay that has no line yet."""
    log = frame_of(prepare(name, protocol="released").interactions)
    times, n = log["timestamp"].to_numpy(), len(log)
    for cut in cuts:
        keys = {
            (delay, way): {"data": name, "cut": cut, "delay": delay, "way": way} for delay in DELAYS for way in WAYS
        }
        if all(results.find(key) for key in keys.values()):
            continue
        now = times[round(CUTS[cut - 1] * n)]
        base, seconds = timed(partial(trained, log[: np.searchsorted(times, now)]))
        assert isinstance(base, StrongRun)
        print(name, cut, "trained", seconds, base.chosen.get("time"), flush=True)
        for delay, days in DELAYS.items():
            begin = int(np.searchsorted(times, now + days * DAY))
            known, newer = log[:begin], log[np.searchsorted(times, now) : begin]
            data = next_period(read(known), log[begin : begin + round(WINDOW * n)])
            for way in WAYS:
                if results.find(keys[delay, way]) is None:
                    run, seconds = timed(partial(_run, way, base, known, newer, float(times[begin])))
                    old = way in ("left", "at")
                    of = partial(left, run, data.interactions) if old else run.recommender
                    found = {by: evaluate(of(by), data, at=10).means() for by in (CONSENSUS, STUDENT)}
                    line = {"metrics": found, "seconds": seconds, "users": len(data.evaluated), "new_pairs": len(newer)}
                    results.add(keys[delay, way], line)
                    print(
                        keys[delay, way],
                        {by: round(each[METRIC], 4) for by, each in found.items()},
                        seconds,
                        flush=True,
                    )


def _run(way: str, base: StrongRun, known: Any, newer: Any, time: float) -> StrongRun:
    if way == "again":
        return trained(known)
    if way in ("refreshed", "updated"):
        return update(base, newer, refresh=way == "refreshed", device="cpu")
    if way == "at" and base.clock is not None:
        return _at(base, time)
    return base


def _at(base: StrongRun, time: float) -> StrongRun:
    """The run with the lists of a later time."""
    other = StrongRun(base.data, base.settings, base.seed, base.device)
    lists, _ = base.reranked_at(base.clock_at(time), torch.arange(base.log.shape[0]))
    other.best = base.best | {CONSENSUS: type(base.best[CONSENSUS])(lists=lists)}
    other.history = base.history
    return other


def measured() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(data, delay, way) -> its lines, by cut."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines("staleness"):
        key = line["key"]
        found.setdefault((key["data"], key["delay"], key["way"]), []).append(line)
    return found


def tables() -> dict[str, str]:
    """A row for each log and delay: means over the cuts, of the consensus and of the student, and seconds."""
    rows, cells = [], measured()
    for data, title in DATA.items():
        for delay in DELAYS:
            ways = {way: cells.get((data, delay, way), []) for way in WAYS}
            if not all(ways.values()):
                continue
            users = mean(line["users"] for line in ways["left"])
            shown = [
                " / ".join(f"{mean(line['metrics'][by][METRIC] for line in each):.4f}" for by in (CONSENSUS, STUDENT))
                for each in ways.values()
            ]
            seconds = [f"{mean(line['seconds'] for line in ways[way]):.0f}" for way in list(WAYS)[2:]]
            rows.append([title, delay, str(len(ways["left"])), f"{users:.0f}", *shown, " / ".join(seconds)])
    header = ["log", "after", "cuts", "users", *WAYS.values(), "seconds of refresh / update / training"]
    return {"staleness": markdown(header, rows)}


def pages() -> dict[Path, dict[str, str]]:
    """Page -> its tables."""
    return {DOCS / "time.md": tables()}


def draw() -> None:
    """docs/staleness.svg: NDCG@10 of the consensus relative to training again, by delay."""
    from matplotlib import pyplot, rc_context

    cells = measured()
    with rc_context({"svg.hashsalt": "concf", "font.size": 9}):
        figure, axes = pyplot.subplots(1, len(DATA), figsize=(7.2, 2.9), sharey=True, layout="constrained")
        for axis, (data, title) in zip(axes, DATA.items(), strict=True):
            for way, word in WAYS.items():
                if way == "at":  # hardly different from nothing
                    continue
                values = [
                    mean(line["metrics"][CONSENSUS][METRIC] for line in cells[data, delay, way])
                    / mean(line["metrics"][CONSENSUS][METRIC] for line in cells[data, delay, "again"])
                    for delay in DELAYS
                ]
                axis.plot(list(DELAYS), values, marker="o", markersize=4, label=word)
            axis.set_title(title)
            axis.set_xlabel("after training")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("NDCG@10 of the consensus\n/ that of training again")
        figure.legend(
            *axes[0].get_legend_handles_labels(), ncols=len(WAYS) - 1, loc="outside lower center", frameon=False
        )
        figure.savefig(DOCS / "staleness.svg", metadata=dict.fromkeys(("Creator", "Date")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "render"))
    parser.add_argument("--only", nargs="*", default=list(DATA))
    parser.add_argument("--cuts", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--results", type=Path, default=RESULTS / "staleness.jsonl")
    options = parser.parse_args()
    if options.step == "render":
        render("staleness", pages())
        draw()
        return
    for name in options.only:
        measure(name, options.cuts, ResultsLog(options.results))


if __name__ == "__main__":
    main()
