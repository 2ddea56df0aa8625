"""Hits of one model that others miss (Eq. 6, 7), and the consistency of right and wrong predictions (Section 3.2.3).

The hits of a model are the test interactions at the top of its lists. Such a set is a sorted array of
user * n_items + item, so that unions and differences are those of numpy. A ratio to an empty set is 0: JSON has no NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, consistency, ranks_over_time
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import Evaluation
from concf.evaluation.metrics import hits

Pairs = NDArray[np.int64]  # [h] user * n_items + item, ascending, each once

CELLS = 1 << 22  # of the tables [users, items] and [times, users, M] that are held at a time


def hit_pairs(lists: NDArray[np.int32], users: NDArray[np.int64], held_out: csr_array, n: int = 50) -> Pairs:
    """H_x (Eq. 6): the held-out interactions among the first n items of the lists; a list may be shorter.

    lists: [e, N] of the users [e], -1 where a list is shorter; held_out: [users, items]
    """
    first = lists[:, :n]
    row, column = np.nonzero(hits(first, held_out[users]))
    return np.unique(users[row].astype(np.int64) * held_out.shape[1] + first[row, column])


def hits_of(evaluation: Evaluation, split: Split, n: int = 50) -> Pairs:
    """H_x of a model that was evaluated on the test part of the split, in lists of n items or more."""
    if evaluation.lists.shape[1] < n:
        raise ConfigError(
            f"hits among the first {n} items need longer lists than {evaluation.lists.shape[1]}; evaluate at {n}"
        )
    return hit_pairs(evaluation.lists, evaluation.users, split.test, n)


def union(models: Iterable[Pairs]) -> Pairs:
    """The union of H_x over the models: the hits of any of them."""
    return reduce(np.union1d, models, np.empty(0, np.int64))


def per(x: Pairs, y: Pairs) -> float:
    """Pairwise exclusive-hit ratio PER(x; y) = |H_x - H_y| / |H_x| (Eq. 6); 0 if x has no hits."""
    return len(np.setdiff1d(x, y, assume_unique=True)) / max(len(x), 1)


def per_map(models: Mapping[str, Pairs]) -> dict[str, dict[str, float]]:
    """x -> y -> PER(x; y) for all pairs of models."""
    return {x: {y: per(models[x], models[y]) for y in models} for x in models}


def complementary_hit_ratio(y: Pairs, models: Iterable[Pairs]) -> float:
    """CHR(y; M) = |U - H_y| / |U|, U the union of H_x over M (Eq. 7); 0 if no model has hits.

    In the paper y is one of M; then it is the share of U that y misses.
    """
    return per(union(models), y)


def chr_of_each(models: Mapping[str, Pairs]) -> dict[str, float]:
    """y -> CHR(y; M) for every y of M."""
    return {y: complementary_hit_ratio(models[y], models.values()) for y in models}


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


def consistency_by_rank(
    newest: Tensor,
    window: Sequence[Tensor],
    test: csr_array,
    valid: csr_array,
    users: NDArray[np.int64],
    *,
    depth: int = 100,
    bins: int = 10,
    temperature: float = 10.0,
) -> dict[str, list[float | None]]:
    """The mean consistency C (Eq. 11) in equal bins of ranks: "correct" for test interactions, "incorrect" for others.

    The mean of a bin is over all its cells (user, rank) of that kind, each counting once; None if there are none.
    It is the paper's mean over users, then over the ranks of the bin, where every rank has as many cells of the kind;
    where they differ, as the correct ones do, a rank weighs as much as it has cells.
    newest: [users, M] the ranking of one head without training items, -1 where it is shorter
    window: of [users, M], the rankings over which consistency is measured, the newest among them
    test, valid: [users, items]; validation items are in the rankings and are of neither kind
    users: [e] those who are evaluated; the others do not count
    """
    if bins < 1 or depth < bins or depth % bins:
        raise ConfigError(f"{depth} ranks cannot be cut into {bins} equal bins; choose a divisor of {depth}")
    if not window:
        raise ConfigError("consistency is a deviation over time and needs rankings; the window has none")
    n_items = test.shape[1]
    size = max(1, CELLS // max(n_items + 1, len(window) * window[0].shape[1]))
    total, count = np.zeros((2, bins)), np.zeros((2, bins))
    for begin in range(0, len(users), size):
        block = users[begin : begin + size]
        rows = torch.as_tensor(block, device=newest.device)
        top = newest[rows, :depth].long()
        ranks = ranks_over_time(top, [ranking[rows] for ranking in window], n_items)
        values, items = consistency(ranks, temperature).cpu().numpy(), top.cpu().numpy()
        correct = hits(items, test[block])
        incorrect = (items != NOTHING) & ~correct & ~hits(items, valid[block])
        for kind, of_kind in enumerate((correct, incorrect)):
            at = np.nonzero(of_kind)[1] // (depth // bins)
            total[kind] += np.bincount(at, values[of_kind], minlength=bins)
            count[kind] += np.bincount(at, minlength=bins)
    return {name: _means(total[kind], count[kind]) for kind, name in enumerate(("correct", "incorrect"))}


def _means(total: NDArray[np.float64], count: NDArray[np.float64]) -> list[float | None]:
    return [of / n if n else None for of, n in zip(total.tolist(), count.tolist(), strict=True)]
