"""Some users of a run: what they used, what each head and the consensus recommend, and who voted for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.errors import ConcfError
from concf.evaluation.evaluate import Evaluation
from concf.inference.recommender import Recommender
from concf.training.run import Run

PLACES = 10  # of the lists that are shown
SHOWN = 24  # of a history or of what was held out


def examples_of(
    run: Run, found: Mapping[str, Evaluation], wanted: int, titles: Mapping[Any, str]
) -> list[dict[str, Any]]:
    """Users spaced evenly from the most to the least active, not chosen by how well they are served.

    found: every head and consensus on the test part, where training and validation items are not shown
    """
    if not found or wanted < 1:
        return []
    model, evaluation = Recommender(run), next(iter(found.values()))
    return [_example(model, found, row, titles) for row in _spread(evaluation, wanted)]


def _spread(evaluation: Evaluation, wanted: int) -> list[int]:
    """Rows of the evaluation, by activity."""
    order = np.lexsort((evaluation.users, -evaluation.activity))
    n = min(wanted, len(order))
    return [int(order[(2 * place + 1) * len(order) // (2 * n)]) for place in range(n)]


def _example(
    model: Recommender, found: Mapping[str, Evaluation], row: int, titles: Mapping[Any, str]
) -> dict[str, Any]:
    run, evaluation = model.run, next(iter(found.values()))
    data, user = run.data, int(evaluation.users[row])
    held_out = set(_items(data.test, user).tolist())

    def named(item: int) -> dict[str, Any]:
        identity = model.item_ids.values[[item]].tolist()[0]
        return {"item": identity, "title": titles.get(identity)}

    lists = {name: each.lists[row][each.lists[row] >= 0].tolist() for name, each in found.items()}
    shown = lists[model.default]
    return {
        "user": model.user_ids.values[[user]].tolist()[0],
        "by": model.default,
        "used": len(_items(data.train, user)),
        "history": [named(item) for item in _newest(data, user)[:SHOWN]],
        "held_out": [
            named(item) | {"rank": shown.index(item) + 1 if item in shown else None} for item in sorted(held_out)
        ],
        "lists": {
            name: [named(item) | {"hit": item in held_out} for item in items[:PLACES]]
            for name, items in lists.items()
            if name != R_CONSENSUS
        },
        "votes": _votes(model, user, shown[:PLACES]) if CONSENSUS in lists else None,
    }


def _items(part: csr_array, user: int) -> NDArray[np.int32]:
    return np.asarray(part.indices[part.indptr[user] : part.indptr[user + 1]])


def _newest(data: Split, user: int) -> list[int]:
    """The training items of a user, the newest first where the log has times."""
    log, items = data.interactions, _items(data.train, user)
    if log.timestamp is None:
        return [int(item) for item in items]
    times = {
        int(item): time for item, time in zip(*(c[log.user == user] for c in (log.item, log.timestamp)), strict=True)
    }
    return sorted((int(item) for item in items), key=lambda item: (-times[item], item))


def _votes(model: Recommender, user: int, items: list[int]) -> list[dict[str, Any]] | None:
    """Of each item of a consensus: every voting head's rank, R, consistency C and vote, their mean, and a re-ranker's
    score.

    None where no votes were kept.
    """
    if not model.run.best[CONSENSUS].votes:
        return None
    ids = model.item_ids.values[items].tolist()
    who = model.user_ids.values[[user]].tolist()[0]
    try:
        told = [model.explain(who, identity) for identity in ids]
    except ConcfError:  # a run of an older version kept lists alone
        return None
    return [{part: each[part] for part in ("importance", "reranked", "heads")} for each in told]
