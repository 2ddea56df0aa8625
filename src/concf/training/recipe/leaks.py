"""Signs that a voter was fitted on what it is validated on.

Weights that are fitted to such a voter trust it too much, or not at all. Two signs that a voter which has not seen the
validation part all but never gives:

    it lists fewer held-out items than by chance    it takes them for used ones, and leaves them out
    it has twice as many of them in its first places as RP3beta, fitted on the training part    it has learned them

The test part plays no role.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.data.split import Split
from concf.errors import note
from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import rank
from concf.model.baselines.neighbours import RP3beta

SIGMAS = 4.0  # how far from what is expected
FEWEST = 10  # hits by chance, where none is a sign
TIMES = 2.0  # as many hits as RP3beta has


def note_leaks(data: Split, users: NDArray[np.int64], lists: Mapping[str, Tensor]) -> None:
    """Warn of voters by their lists [n, K] of users [n]."""
    held_out = data.valid[users]

    @cache
    def by_walks(k: int) -> int:
        return first_hits(rank(RP3beta().fit(data.train), users, k, seen=data.train), held_out)

    for name, listed in lists.items():
        items = listed.cpu().numpy()
        found, expected = hits(items, held_out), by_chance(items, data.train[users], held_out)
        if expected >= FEWEST and found < expected - SIGMAS * sqrt(expected):
            note(
                f"voter {name!r}: its lists hold {found:,} held-out items, fewer than by chance ({expected:,.0f}). "
                "Was it fitted on the validation part too, whose items it leaves out? Fit it on the training part alone"
            )
            continue
        first, others = first_hits(items, held_out), by_walks(items.shape[1])
        if first > TIMES * others + SIGMAS * sqrt(first):
            note(
                f"voter {name!r}: its first places have {first:,} items of the validation part, those of RP3beta, "
                f"which has not seen it, {others:,}. Was it fitted on the validation part too? Fit it on the training "
                "part alone"
            )


def hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """How many of the listed items [n, K] users hold out [n, items]."""
    n_items = held_out.shape[1]
    cells = np.arange(len(items), dtype=np.int64)[:, None] * n_items + items
    return int(np.isin(cells[items >= 0], flat_cells(held_out)).sum())


def first_hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """The same in as many first places as a user holds out items."""
    beyond = np.arange(items.shape[1]) >= np.diff(held_out.indptr)[:, None]
    return hits(np.where(beyond, -1, items), held_out)


def by_chance(items: NDArray[np.int32], train: csr_array, held_out: csr_array) -> float:
    """How many it would be if every list [n, K] were drawn at random from what its user has not used."""
    length, used, wanted = (items >= 0).sum(1), np.diff(train.indptr), np.diff(held_out.indptr)
    return float((length * wanted / np.maximum(train.shape[1] - used, 1)).sum())
