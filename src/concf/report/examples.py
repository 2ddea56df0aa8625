"""Example users of a run: their histories, the lists of every head and of the consensus, and the votes for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.evaluation.evaluate import Evaluation
from concf.inference.explain import Contribution
from concf.inference.lookup import place_of
from concf.inference.recommender import Recommender
from concf.training.run import Run

LIST_LENGTH = 10  # items of a list that are shown
HISTORY_LENGTH = 24  # training items that are shown
LIFTS = 2  # of an item that are named
KINDS = {"score": "scores above everyone's", "similarity": "similarity to the history", "popularity": "popularity"}

Evaluations = Mapping[str, Evaluation]  # by head or consensus


def examples_of(run: Run, evaluations: Evaluations, n: int, titles: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Users spaced evenly from the most to the least active, not chosen by how well they are served.

    evaluations: of every head and consensus on the test part, whose lists leave out training and validation items
    """
    if not evaluations:
        return []
    model, first = Recommender(run), next(iter(evaluations.values()))
    order = np.lexsort((first.users, -first.activity))
    n = min(n, len(order))
    rows = [int(order[(2 * k + 1) * len(order) // (2 * n)]) for k in range(n)]
    return [_example(model, evaluations, row, titles) for row in rows]


def _example(model: Recommender, evaluations: Evaluations, row: int, titles: Mapping[Any, str]) -> dict[str, Any]:
    data, user = model.run.data, int(next(iter(evaluations.values())).users[row])
    test_items = _items(data.test, user)

    def named(item: int) -> dict[str, Any]:
        identity = model.item_ids.values[[item]].tolist()[0]
        return {"item": identity, "title": titles.get(identity)}

    lists = {name: each.lists[row][each.lists[row] >= 0].tolist() for name, each in evaluations.items()}
    shown = lists[model.default]
    return {
        "user": model.user_ids.values[[user]].tolist()[0],
        "by": model.default,
        "used": len(_items(data.train, user)),
        "history": [named(item) for item in _newest(data, user)[:HISTORY_LENGTH]],
        "held_out": [named(item) | {"rank": shown.index(item) + 1 if item in shown else None} for item in test_items],
        "lists": {
            name: [named(item) | {"hit": item in test_items} for item in items[:LIST_LENGTH]]
            for name, items in lists.items()
            if name != R_CONSENSUS
        },
        "votes": _votes(model, user, shown[:LIST_LENGTH], named) if CONSENSUS in lists else None,
    }


def _items(part: csr_array, user: int) -> list[int]:
    """The items of a user in ascending order."""
    return sorted(part[[user]].indices.tolist())


def _newest(data: Split, user: int) -> list[int]:
    """The training items of a user, the newest first where the log has times."""
    log, items = data.interactions, _items(data.train, user)
    if log.timestamp is None:
        return items
    own = log.user == user
    times = dict(zip(log.item[own].tolist(), log.timestamp[own].tolist(), strict=True))
    return sorted(items, key=lambda item: (-times[item], item))


def _votes(
    model: Recommender, user: int, items: list[int], named: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Of each item: the rank, R, consistency C and vote of every voter, their mean, the re-ranker's score, and why.

    None if the run has no votes, as with a softmax consensus.
    """
    if not model.run.best[CONSENSUS].votes:
        return None
    user_id = model.user_ids.values[[user]].tolist()[0]
    explained = [model.explain(user_id, item_id) for item_id in model.item_ids.values[items].tolist()]
    return [
        {
            "importance": each["importance"],
            "reranked": each["reranked"],
            "heads": each["heads"],
            "because": [named(place_of(model.item_ids, used["item"])) for used in each["because"]],
            "lifts": _lifts(each["contributions"] or []),
        }
        for each in explained
    ]


def _lifts(contributions: list[Contribution]) -> list[tuple[str, float]]:
    """What lifts an item most: each voter's rank, and the rest by kind."""
    totals: dict[str, float] = {}
    for each in contributions:
        what = f"{each['voter']}'s rank" if each["kind"] == "rank" else KINDS[each["kind"]]
        totals[what] = totals.get(what, 0.0) + each["value"]
    return sorted(((what, value) for what, value in totals.items() if value > 0), key=lambda lift: -lift[1])[:LIFTS]
