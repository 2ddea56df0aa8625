"""How complementary models are for single users (Eq. 7)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from concf.evaluation.complementarity import Pairs, union


def user_level(y: Pairs, models: Iterable[Pairs], n_items: int) -> NDArray[np.float64]:
    """[v] CHR(y; M) of each user by itself (Eq. 7), in the order of users; only those for whom M has any hit."""
    all_hits = union(models)
    missed = ~np.isin(all_hits, y, assume_unique=True)
    _, user, total = np.unique(all_hits // n_items, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(user, missed) / total)


def quantiles(values: NDArray[np.float64]) -> list[float]:
    """101 floats, the inverse of the CDF at 0, 0.01, .., 1: the least value that k % of the values do not exceed.

    They are values that occur, nothing between two of them. All are 0 if there are no values.
    """
    if not len(values):
        return [0.0] * 101
    counts = -(-np.arange(101) * len(values) // 100)  # whole numbers: 0.07 * 100 is more than 7
    levels: list[float] = np.sort(values)[np.maximum(counts, 1) - 1].tolist()
    return levels
