"""Heads and consensus of a run, measured with the attributes of a catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from concf.evaluation.evaluate import METRICS, Evaluation, evaluate
from concf.evaluation.ranking import NOTHING
from concf.inference.ranker import Ranker
from concf.model.scorers import Factors, ListFunction


def evaluate_new(
    ranker: Ranker, *, on: Literal["valid", "test"] = "test", at: Sequence[int] = (20, 50),
    metrics: Sequence[str] = METRICS,
) -> dict[str, Evaluation]:  # fmt: skip
    """As `Run.evaluate`, with attributes: of the items of the log alone, since no others are held out."""
    run, data = ranker.run, ranker.run.data
    run.refuse_learned(on)
    data.note_if_few(on)
    n_items, seen, shown = data.interactions.n_items, data.seen(on), run.settings.consensus.shown
    only_new, others = data.candidates(on) is not None, np.arange(n_items, ranker.n_items)

    def scorer(name: str) -> Factors | ListFunction:
        if name in ranker.heads or only_new:  # the best head says in which order a consensus has new items
            each = ranker.factors(name if name in ranker.heads else run.best_head())
            return Factors(each.user, each.item[:n_items], None if each.bias is None else each.bias[:n_items])

        def lists(users: NDArray[np.int64], k: int) -> NDArray[np.int64]:
            listed, length = np.full((len(users), k), NOTHING, np.int64), min(k, shown)
            hidden = [np.concatenate([seen.indices[seen.indptr[u] : seen.indptr[u + 1]], others]) for u in users]
            for row, (items, _) in zip(listed, ranker.short(users, [length] * len(users), name, hidden), strict=True):
                row[: len(items)] = items
            return listed

        return ListFunction(lists)

    return {name: evaluate(scorer(name), data, on=on, at=at, metrics=metrics) for name in run.rows()}
