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
    mine = [score / unit for score in scores[:, i].tolist()]
    mean, spread = fmean(mine), max(pstdev(mine), 1e-3)
    users = [score for score, there in zip(mine, used[:, i].tolist(), strict=True) if there]
    kin = max(fmean(users) - mean, 0.05) if users else 0.05
    above = mine[u] - mean
    similarity = []
    history = [j for j in range(len(vectors)) if used[u, j]] if history is None else history
    others = list(range(len(vectors))) if others is None else others
    for power in (2, 8):
        alike = fmean([cosine(vectors[i], vectors[j]) ** power for j in history]) if history else 0.0
        usual = sum(cosine(vectors[i], vectors[j]) ** power for j in others if j != i) / len(others)
        similarity.append(log(0.1 + alike / usual))
    both = [min(max(above / spread, -20.0), 20.0), min(max(above / kin, -2.0), 3.0), *similarity]
    return [*both, mine[u], log(spread), log(kin), mean]


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))
