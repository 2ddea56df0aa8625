"""Signs that a voter was fitted on what it is validated on.

Weights that are fitted to such a voter trust it too much, or not at all. Two signs, each with odds of less than one in
ten thousand for a voter that has not seen the validation part:

    it lists fewer held-out items than by chance    it takes them for used ones, and leaves them out
    it finds far more of the validation than of the test part    it has learned the former

The second one is looked for where both parts are drawn alike, and not by time. It looks at the test part; all that
comes of it is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.data.split import Split
from concf.errors import note
from concf.evaluation.metrics import flat_cells

SIGMAS = 4.0  # how far from what is expected
FEWEST = 10  # hits by chance, where none is a sign
TIMES = 1.5  # as many of the validation as of the test part
DRAWN_ALIKE = ("random", "released", "paper")  # protocols with both parts


def note_leaks(data: Split, users: NDArray[np.int64], lists: Mapping[str, Tensor]) -> None:
    """Warn of voters by their lists [n, K] of users [n]."""
    parts, alike = (data.valid[users], data.test[users]), data.recipe.protocol.name in DRAWN_ALIKE
    for name, listed in lists.items():
        items = listed.cpu().numpy()
        valid, test = (hits(items, part) for part in parts)
        expected = by_chance(items, data.train[users], parts[0])
        if expected >= FEWEST and valid < expected - SIGMAS * sqrt(expected):
            note(
                f"voter {name!r}: its lists hold {valid:,} held-out items, fewer than by chance ({expected:,.0f}). "
                "Was it fitted on the validation part too, whose items it leaves out? Fit it on the training part alone"
            )
        elif alike and _far_above(valid, parts[0].nnz, test, parts[1].nnz):
            shares = [100 * found / part.nnz for found, part in zip((valid, test), parts, strict=True)]
            note(
                f"voter {name!r}: it finds {shares[0]:.1f} % of the validation part and {shares[1]:.1f} % of the test "
                "part. Was it fitted on the validation part too? Fit it on the training part alone"
            )


def hits(items: NDArray[np.int32], held_out: csr_array) -> int:
    """How many of the listed items [n, K] users hold out [n, items]."""
    n_items = held_out.shape[1]
    cells = np.arange(len(items), dtype=np.int64)[:, None] * n_items + items
    return int(np.isin(cells[items >= 0], flat_cells(held_out)).sum())


def by_chance(items: NDArray[np.int32], train: csr_array, held_out: csr_array) -> float:
    """How many it would be if every list [n, K] were drawn at random from what its user has not used."""
    length, used, wanted = (items >= 0).sum(1), np.diff(train.indptr), np.diff(held_out.indptr)
    return float((length * wanted / np.maximum(train.shape[1] - used, 1)).sum())


def _far_above(found: int, of: int, others: int, of_others: int) -> bool:
    """Whether a share is above another one by far more than chance explains."""
    if not (of and of_others):
        return False
    one, other, both = found / of, others / of_others, (found + others) / (of + of_others)
    deviation = sqrt(both * (1 - both) * (1 / of + 1 / of_others))
    return one > TIMES * other and one - other > SIGMAS * deviation
