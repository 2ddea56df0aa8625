"""What a re-ranker hears of a head, written out: one user, one item at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log, sqrt
from statistics import fmean

from torch import Tensor


def pstdev(values: Sequence[float]) -> float:
    """The population standard deviation; that of `statistics` computes with fractions, and is slow."""
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / len(values))


def features(
    scores: Tensor, vectors: Tensor, used: Tensor, u: int, i: int, *, history: list[int] | None = None,
    others: list[int] | None = None,
) -> list[float]:  # fmt: skip
    """[8] of user u and item i. scores: [users, items]; vectors: [items, d]; used: [users, items].

    history: the items of u that are looked at, none: all; others: those that stand for all items
    """
    unit = pstdev(scores.flatten().tolist())
    every = [
        statistics([score / unit for score in column], own)
        for column, own in zip(scores.T.tolist(), used.T.tolist(), strict=True)
    ]
    mean, spread, kin = every[i]
    mine = [score / unit for score in scores[:, i].tolist()]
    above = mine[u] - mean
    similarity = []
    history = [j for j in range(len(vectors)) if used[u, j]] if history is None else history
    others = list(range(len(vectors))) if others is None else others
    for power in (2, 8):
        alike = fmean([cosine(vectors[i], vectors[j]) ** power for j in history]) if history else 0.0
        usual = sum(cosine(vectors[i], vectors[j]) ** power for j in others if j != i) / len(others)
        similarity.append(log(0.1 + alike / usual))
    both = [min(max(above / spread, -20.0), 20.0), min(max(above / kin, -2.0), 3.0), *similarity]
    pairs = [
        (log(d), log(gap), m)
        for (m, d, gap), own in zip(every, used.T.tolist(), strict=True)
        for _ in range(int(sum(map(bool, own))))
    ]
    of_item = zip((log(spread), log(kin), mean), zip(*pairs, strict=True), strict=True)
    return [*both, mine[u], *((value - fmean(column)) / max(pstdev(column), 1e-3) for value, column in of_item)]


def statistics(mine: Sequence[float], used: Sequence[float]) -> tuple[float, float, float]:
    """m, d and o - m of an item: mine are its scores over all users; used: who used it."""
    mean, users = fmean(mine), [score for score, there in zip(mine, used, strict=True) if there]
    return mean, max(pstdev(mine), 1e-3), max(fmean(users) - mean, 0.05) if users else 0.05


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))
