"""What each rule costs a list, and what it does to recall, coverage and Gini.

python benchmarks/bench_rules.py [--users 1000] [--seed 0]

Ciao with its categories, preset `strong` (budget `fast`). Lists of 20 for tested users, what they trained on left out,
by the consensus and by the best head. Milliseconds are processor time on one thread, the least of three rounds in
turns. A condition is measured as an operator would use one: the categories that hold half of all items.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from measuring import write
from numpy.typing import NDArray

from concf.data.catalogue import fetch
from concf.data.prepare import prepare
from concf.evaluation.evaluate import score_lists
from concf.evaluation.ranking import NOTHING
from concf.inference.lookup import Positions, Short
from concf.inference.ranker import Ranker
from concf.inference.rules import Rules, catalogue_of
from concf.models import choose_settings, train
from concf.runs.settings import CONSENSUS

K, ROUNDS = 20, 3


def half_of_all(catalogue: pl.DataFrame) -> str:
    """A condition for the largest categories, which hold half of the items together."""
    sizes = catalogue["category"].value_counts(sort=True)
    first = sizes.filter(pl.col("count").cum_sum() <= len(catalogue) / 2)["category"].to_list()
    return f"category in ({', '.join(map(str, first))})"


def lists(ranker: Ranker, by: str, users: NDArray[np.int64], hidden: list[Positions], **rules: Any) -> list[Short]:
    """As `Recommender.recommend`, but only what a user trained on is hidden."""

    def draw(at: Positions, k: int, closed: Any, among: Positions | None) -> list[Short]:
        return ranker.short(users[at], k, by, closed, anew=among is not None, among=among)

    ruled = Rules(**rules).applied(ranker, by if by in ranker.heads else ranker.run.best_head())
    everyone = np.arange(len(users))
    if ruled is None:
        return draw(everyone, K, hidden, None)
    return ruled.lists(
        draw, everyone, K, hidden, None, 0 if by in ranker.heads else ranker.run.settings.consensus.shown
    )


def milliseconds(works: Mapping[str, Callable[[], object]], each: int) -> dict[str, float]:
    """Name -> processor time for each of the lists, the least of some rounds in turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            begin = time.process_time()
            work()
            times[name].append(time.process_time() - begin)
    return {name: 1000 * min(found) / each for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data = prepare("ciao", protocol="released", seed=chosen.seed)
    settings = choose_settings("strong", {"budget": "fast", "dimensions": 64})
    ranker = Ranker(train(data, settings, seed=chosen.seed))
    ratings = pl.read_csv(next(path for path in fetch("ciao") if path.suffix == ".csv"))
    known = pl.col("item_id").is_in(ranker.item_ids.values.tolist())
    frame = ratings.filter(known).group_by("item_id").agg(pl.col("category").first())
    catalogue = catalogue_of(frame).joined_to(ranker.item_ids)
    rules: dict[str, dict[str, Any]] = {
        "none": {},
        "where, half of the items": {"where": half_of_all(frame)},
        "at_most 2 of a category": {"at_most": {"category": 2}},
        "diversity 0.3": {"diversity": 0.3},
        "diversity 0.7": {"diversity": 0.7},
        "popularity_penalty 0.3": {"popularity_penalty": 0.3},
        "popularity_penalty 0.7": {"popularity_penalty": 0.7},
        "all of them": {
            "where": half_of_all(frame), "at_most": {"category": 2}, "diversity": 0.3, "popularity_penalty": 0.3,
        },
    }  # fmt: skip
    users = data.evaluated[: chosen.users]
    seen = data.seen("test")
    hidden: list[Positions] = [seen.indices[seen.indptr[user] : seen.indptr[user + 1]] for user in users]
    for by in (CONSENSUS, ranker.run.best_head()):
        works = {
            name: partial(lists, ranker, by, users, hidden, catalogue=catalogue, **each) for name, each in rules.items()
        }
        took = milliseconds(works, len(users))
        for name, work in works.items():
            table = np.full((len(users), K), NOTHING, np.int32)
            for row, (items, _) in zip(table, work(), strict=True):
                row[: len(items)] = items
            figures = score_lists(table, users, data.test, data.train, at=K, metrics=["recall", "coverage", "gini"])
            line = {"data": "ciao", "seed": chosen.seed, "preset": "strong", "budget": "fast", "users": len(users)}
            full = float((table != NOTHING).mean())
            write("rules", line | {"by": by, "rule": name, "ms": took[name], "full": full, "test": figures.means()})


if __name__ == "__main__":
    main()
