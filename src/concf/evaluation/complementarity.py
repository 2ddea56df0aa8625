"""Hits of one model that others miss (Eq. 6, 7).

The hits of a model are the test interactions at the top of its lists. Such a set is a sorted array of
user * n_items + item, so that unions and differences are those of numpy. A ratio to an empty set is 0: JSON has no NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import Evaluation
from concf.evaluation.metrics import hits

Pairs = NDArray[np.int64]  # [h] user * n_items + item, ascending, each once


def hits_of(evaluation: Evaluation, split: Split, n: int = 50) -> Pairs:
    """H_x (Eq. 6): the test pairs of the split among the first n items of a model's lists, of n items or more."""
    if evaluation.lists.shape[1] < n:
        length = evaluation.lists.shape[1]
        raise ConfigError(f"hits among the first {n} items need longer lists than {length}; evaluate at {n}")
    first = evaluation.lists[:, :n]
    row, column = np.nonzero(hits(first, split.test[evaluation.users]))
    return np.unique(evaluation.users[row].astype(np.int64) * split.test.shape[1] + first[row, column])


def union(models: Iterable[Pairs]) -> Pairs:
    """The union of H_x over the models: the hits of any of them."""
    return reduce(np.union1d, models, np.empty(0, np.int64))


def per(x: Pairs, y: Pairs) -> float:
    """Pairwise exclusive-hit ratio PER(x; y) = |H_x - H_y| / |H_x| (Eq. 6); 0 if x has no hits."""
    return len(np.setdiff1d(x, y, assume_unique=True)) / max(len(x), 1)


def per_map(models: Mapping[str, Pairs]) -> dict[str, dict[str, float]]:
    """Map x -> y -> PER(x; y) for all pairs of models."""
    return {x: {y: per(models[x], models[y]) for y in models} for x in models}


def complementary_hit_ratio(y: Pairs, models: Iterable[Pairs]) -> float:
    """CHR(y; M) = |U - H_y| / |U|, U the union of H_x over M (Eq. 7); 0 if no model has hits.

    In the paper y is one of M; then it is the share of U that y misses.
    """
    return per(union(models), y)
