"""Updates against training from scratch: the lines of docs/new-data.md.

    python benchmarks/bench_update.py                # a base and ten updates: Ciao, and a simulated log that drifts
    python benchmarks/bench_update.py --only drifting --ways updated left --updates 1 2
    python benchmarks/render_update.py

A log is cut by time: 45 % of its pairs are the base, and eleven periods follow. After each of the first ten, the run
that is updated with it, one that is trained from scratch on everything until then, and the base as it was are measured
on the pairs of the next period whose user and item are known by then. The base gives a user whom it does not know its
most popular items. What is in the results is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from concf.comparison.results_log import ResultsLog
from concf.data.interactions import Interactions
from concf.data.parts import TEST, TRAIN
from concf.data.prepare import prepare, split_of
from concf.data.protocols import Given
from concf.data.reading.read import read
from concf.data.recipe import SplitRecipe
from concf.data.simulate import DRIFTING
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import NOTHING
from concf.evaluation.scorers import ListFunction
from concf.models import choose_settings, train
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.strong.update import update

RESULTS = Path(__file__).parent / "results" / "update.jsonl"
BASE, PERIODS = 0.45, 11  # share of the pairs in the base; the periods after it, of equal length, the last to test on
AT, METRICS = 50, ("recall", "ndcg")
LENGTH = 200  # of a list, of which known items are taken out
SETTINGS = choose_settings("strong", {"refit": "everything"})


def frame_of(log: Interactions) -> pl.DataFrame:
    """The pairs of a log, the oldest first."""
    columns = {"user_id": log.user_ids.values[log.user], "item_id": log.item_ids.values[log.item]}
    return pl.DataFrame({**columns, "timestamp": log.timestamp}).sort("timestamp", "user_id", "item_id")


def logs(name: str) -> list[pl.DataFrame]:
    """The base and the periods after it."""
    log = read(DRIFTING.draw(0)) if name == "drifting" else prepare(name, protocol="released").interactions
    rows = frame_of(log)
    ends = (np.linspace(BASE, 1, PERIODS + 1) * len(rows)).round().astype(int)
    return [rows[begin:end] for begin, end in pairwise([0, *ends])]


def next_period(known: Interactions, period: pl.DataFrame) -> Split:
    """A log, and as the test part the pairs of a period whose user and item it knows."""
    wanted = read(period)
    user, item = (
        known.user_ids.positions(wanted.user_ids)[wanted.user],
        known.item_ids.positions(wanted.item_ids)[wanted.item],
    )
    there = (user >= 0) & (item >= 0)
    keys = np.r_[known.user.astype(np.int64) * known.n_items + known.item, user[there] * known.n_items + item[there]]
    cells, first = np.unique(keys, return_index=True)
    parts = np.where(first < len(known), TRAIN, TEST).astype(np.uint8)
    users, items = (each.astype(np.int32) for each in np.divmod(cells, known.n_items))
    whole = Interactions(known.user_ids, known.item_ids, users, items, np.ones(len(cells)))
    return Split(whole, parts, SplitRecipe(source={}, protocol=Given()))


def left(base: Run, now: Interactions, by: str) -> ListFunction:
    """What the base recommends to everyone who is there now, in today's positions."""
    was, popularity = base.data.interactions, np.bincount(base.log.indices, minlength=base.data.interactions.n_items)
    everyone = np.arange(was.n_users)
    listed = _listed(base.recommender(by), everyone)
    popular = np.argsort(-popularity, kind="stable")[: listed.shape[1]]
    before = was.user_ids.positions(now.user_ids)
    lists = np.where(before[:, None] >= 0, listed[before.clip(0)], popular)
    today = np.append(now.item_ids.positions(was.item_ids), NOTHING)  # at -1, behind the end of a short list
    return ListFunction(lambda some, _length: torch.from_numpy(today[lists[some]]))


def _listed(recommender: Any, users: NDArray[np.int64]) -> NDArray[np.int64]:
    if isinstance(recommender, ListFunction):
        return recommender.lists(torch.from_numpy(users), LENGTH).numpy()
    return torch.topk(recommender.scores(torch.from_numpy(users)), LENGTH).indices.numpy()


def figures(of: Callable[[str], Any], data: Split, student: str) -> dict[str, dict[str, float]]:
    """Of the consensus and of the student: its means over the users of the next period."""
    found = {by: evaluate(of(by), data, at=AT, metrics=METRICS).means() for by in (CONSENSUS, student)}
    return {by: {name: round(value, 6) for name, value in means.items()} for by, means in found.items()}


def timed(work: Callable[[], Run]) -> tuple[Run, float]:
    """A run, and the processor seconds that it took."""
    begin = time.process_time()
    run = work()
    return run, round(time.process_time() - begin, 3)


def from_scratch(log: pl.DataFrame) -> Run:
    """The default for production, on everything."""
    return train(split_of(log, 0, min_item=1), SETTINGS, seed=0, device="cpu")


@cache
def base_run(name: str) -> Run:
    """What updates begin with."""
    return from_scratch(logs(name)[0])


def measure(name: str, way: str, updates: Iterable[int], results: ResultsLog) -> None:
    """The lines of one log that are not there: updated, left or refit."""
    base_log, *periods = logs(name)
    missing = [k for k in updates if results.find({"data": name, "update": k, "way": way}) is None]
    if not missing:
        return
    base = run = base_run(name) if way != "refit" else None
    for number in range(1, max(missing) + 1):
        if way == "updated" and run is not None:
            run, seconds = timed(partial(update, run, periods[number - 1], device="cpu"))
        if number not in missing:
            continue
        known = pl.concat([base_log, *periods[:number]])
        if way == "refit":  # of the same log
            run, seconds = timed(partial(from_scratch, known))
        assert run is not None
        data = next_period(read(known), periods[number])
        of = run.recommender if base is None or way == "updated" else partial(left, base, data.interactions)
        found = {"figures": figures(of, data, run.best_head()), "seconds": 0.0 if way == "left" else seconds}
        sizes = {"users": len(data.evaluated), "new_pairs": len(periods[number - 1]), "log": len(known)}
        stages = {} if way == "left" else {each["stage"]: round(each["seconds"], 2) for each in run.history}
        results.add({"data": name, "update": number, "way": way}, found | sizes | {"stages": stages})
        print(name, number, way, found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["ciao", "drifting"])
    parser.add_argument("--ways", nargs="*", default=["updated", "left", "refit"])
    parser.add_argument("--updates", type=int, nargs="*", default=range(1, PERIODS), help="those that are measured")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for name in options.only:
        for way in options.ways:
            measure(name, way, options.updates, ResultsLog(options.results))


if __name__ == "__main__":
    main()
