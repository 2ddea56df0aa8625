"""Metrics of ranked lists. Every definition is here, and nothing is rounded.

For one user: L is the list cut at N, T the held-out items (|T| >= 1), h_k = 1 if rank k (from 1) of L is in T.
Padding is a miss. The metric of a recommender is the mean over the evaluated users.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Hits = NDArray[np.bool_]  # [e, N]
Counts = NDArray[np.float64]  # [e]
PerUser = NDArray[np.float64]  # [e]
METRICS = ("recall", "ndcg")  # by default


def flat_cells(rows: csr_array) -> NDArray[np.int64]:
    """[n] flat indices of the cells of a matrix [r, items]."""
    return np.asarray(np.repeat(np.arange(rows.shape[0]) * rows.shape[1], np.diff(rows.indptr)) + rows.indices)


def hits(lists: NDArray[np.int32], relevant: csr_array) -> Hits:
    """[e, N] whether the item at each rank is held out. relevant: [e, items], rows in the order of the lists."""
    relevant.sort_indices()
    known = flat_cells(relevant)
    keys = np.arange(len(lists))[:, None] * relevant.shape[1] + lists
    at = np.searchsorted(known, keys).clip(max=max(len(known) - 1, 0))
    return np.asarray((known[at] == keys) & (lists >= 0) if len(known) else np.zeros(lists.shape, bool))


def recall(hit: Hits, total: Counts) -> PerUser:
    """Recall@N = sum_k h_k / |T|."""
    return np.asarray(hit.sum(1) / total)


def precision(hit: Hits, total: Counts) -> PerUser:  # noqa: ARG001
    """Precision@N = sum_k h_k / N, also where the list is shorter than N."""
    return np.asarray(hit.mean(1))


def hit_rate(hit: Hits, total: Counts) -> PerUser:  # noqa: ARG001
    """Hit@N = 1 if any h_k = 1."""
    return np.asarray(hit.any(1), np.float64)


def ndcg(hit: Hits, total: Counts) -> PerUser:
    """NDCG@N = sum_k h_k / log2(k + 1), over the same sum for the ideal list of min(|T|, N) hits."""
    discount = 1 / np.log2(np.arange(hit.shape[1]) + 2)
    ideal = np.cumsum(discount)[np.minimum(total, hit.shape[1]).astype(np.int64) - 1]
    return np.asarray(hit @ discount / ideal)


def average_precision(hit: Hits, total: Counts) -> PerUser:
    """AP@N = sum_k h_k precision@k / |T| (trec_eval's map_cut: over |T|, not min(|T|, N)); its mean is MAP@N."""
    precision_at = hit.cumsum(1) / np.arange(1, hit.shape[1] + 1)
    return np.asarray((hit * precision_at).sum(1) / total)


def reciprocal_rank(hit: Hits, total: Counts) -> PerUser:  # noqa: ARG001
    """RR@N = 1 / the first k with h_k = 1, or 0; its mean is MRR@N."""
    return np.where(hit.any(1), 1 / (hit.argmax(1) + 1), 0.0)


ACCURACY: dict[str, Callable[[Hits, Counts], PerUser]] = {
    "recall": recall, "ndcg": ndcg, "precision": precision, "map": average_precision, "mrr": reciprocal_rank,
    "hit": hit_rate,
}  # fmt: skip


def coverage(lists: NDArray[np.int32], popularity: Counts) -> float:
    """Coverage@N: the share of the catalogue that is in at least one list."""
    return len(np.unique(lists[lists >= 0])) / len(popularity)


def gini(lists: NDArray[np.int32], popularity: Counts) -> float:
    """Gini@N of how often each item of the catalogue is recommended: 0 all alike, towards 1 a few take all."""
    exposure = np.sort(np.bincount(lists[lists >= 0], minlength=len(popularity)))
    n, total = len(exposure), exposure.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ exposure / (n * total)) if total else 0.0


CATALOGUE_WIDE: dict[str, Callable[[NDArray[np.int32], Counts], float]] = {"coverage": coverage, "gini": gini}


def novelty(lists: NDArray[np.int32], popularity: Counts, n_users: int) -> PerUser:
    """Novelty@N: the mean of -log2(p_i / n_users) over the list; p_i training users of item i, at least 1."""
    return _mean_over_list(-np.log2(np.maximum(popularity, 1) / n_users), lists)


def average_popularity(lists: NDArray[np.int32], popularity: Counts, n_users: int) -> PerUser:  # noqa: ARG001
    """Popularity@N: the mean of p_i over the list."""
    return _mean_over_list(popularity, lists)


Beyond = Callable[[NDArray[np.int32], Counts, int], PerUser]
BEYOND: dict[str, Beyond] = {"novelty": novelty, "popularity": average_popularity}


def _mean_over_list(values: Counts, lists: NDArray[np.int32]) -> PerUser:
    """[e] the mean of the values at the listed items; 0 for an empty list."""
    listed = lists >= 0
    return np.asarray(np.where(listed, values[lists], 0.0).sum(1) / np.maximum(listed.sum(1), 1))
