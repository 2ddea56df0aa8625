"""Models of the library `implicit`, which number users and items as the matrix that they were fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix

from concf.data.reading.lists import Lists
from concf.errors import DataError
from concf.model.scorers import Factors

MORE = 16  # items beyond the list that is wanted; some of implicit's models return fewer where many are left out


def has_vectors(model: Any) -> bool:
    """Whether it ranks by inner products: ALS, BPR, logistic factorisation."""
    return all(getattr(model, f"{side}_factors", None) is not None for side in ("user", "item"))


def vectors(model: Any) -> Factors:
    """Its user and item vectors, from a GPU too; biases are among them."""
    return Factors.of(*(_array(getattr(model, f"{side}_factors")) for side in ("user", "item")))


def _array(vectors: Any) -> Any:
    return vectors.to_numpy() if hasattr(vectors, "to_numpy") else np.asarray(vectors)


def lists(model: Any, seen: csr_array, k: int) -> Lists:
    """The first k items that each user has not used, by `recommend`. seen: [users, items]"""
    n_users, n_items = seen.shape
    similarity = getattr(model, "similarity", None)
    if similarity is None or similarity.shape[0] != n_items:
        found = "not fitted" if similarity is None else f"fitted on {similarity.shape[0]:,} items, of {n_items:,}"
        raise DataError(f"{type(model).__name__} is {found}. Fit it on data.train, whose rows and columns it must have")
    rows, wanted = csr_matrix(seen), min(k + MORE, n_items)
    found, scores = model.recommend(np.arange(n_users), rows, N=wanted, filter_already_liked_items=True)
    used = np.repeat(np.arange(n_users), np.diff(seen.indptr)) * np.int64(n_items) + seen.indices
    cells = np.arange(n_users, dtype=np.int64)[:, None] * n_items + found
    there = (found >= 0) & (scores > np.finfo(np.float32).min) & ~np.isin(cells, used)
    order = np.argsort(~there, axis=1, kind="stable")[:, :k]
    items = np.full((n_users, k), -1, np.int32)
    values = np.zeros((n_users, k), np.float32)
    kept = np.take_along_axis(there, order, 1)
    lowest = scores[there].min(initial=np.inf)
    items[:, : order.shape[1]] = np.where(kept, np.take_along_axis(found, order, 1), -1)
    values[:, : order.shape[1]] = np.where(kept, np.take_along_axis(scores, order, 1) - lowest, 0)
    return Lists(items, values)
