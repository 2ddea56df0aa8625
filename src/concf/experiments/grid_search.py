"""A search over a grid of settings: every point of a small grid; in a large one, uphill from the middle."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

Point = tuple[int, ...]  # the position of each setting's value in its row of the grid
Search = Generator[list[Point], list[float], tuple[Point, float]]  # points to measure -> their scores; then the best

EVERY_POINT = 60  # of grids up to this size


def search(sizes: Sequence[int]) -> Search:
    """Yields points that are to be measured, each once, receives their scores and returns the best point and its score.

    sizes: how many values each setting has. The first of equals is the best.
    """
    return _everywhere(sizes) if prod(sizes) <= EVERY_POINT else _uphill(sizes)


def _everywhere(sizes: Sequence[int]) -> Search:
    points = list(product(*map(range, sizes)))
    scores = dict(zip(points, (yield points), strict=True))
    best = max(points, key=lambda point: scores[point])
    return best, scores[best]


def _uphill(sizes: Sequence[int]) -> Search:
    """One setting after the other moves to the better of its neighbouring values, until no neighbour is better."""
    here = tuple((size - 1) // 2 for size in sizes)
    scores = dict(zip([here], (yield [here]), strict=True))
    axis, settled = 0, 0  # settled: settings in a row that stay where they are
    while settled < len(sizes):
        beside = [(*here[:axis], at, *here[axis + 1 :]) for at in (here[axis] - 1, here[axis] + 1)]
        beside = [point for point in beside if 0 <= point[axis] < sizes[axis]]
        unknown = [point for point in beside if point not in scores]
        if unknown:
            scores |= dict(zip(unknown, (yield unknown), strict=True))
        best = max([here, *beside], key=lambda point: scores[point])
        if best == here:
            axis, settled = (axis + 1) % len(sizes), settled + 1
        else:
            here, settled = best, 0
    return here, scores[here]


def at_edges(grid: Mapping[str, Sequence[Any]], point: Point) -> list[str]:
    """The settings of several values whose chosen one is the first or the last: a wider grid may hold a better one."""
    places = zip(grid.items(), point, strict=True)
    return [name for (name, values), at in places if len(values) > 1 and at in (0, len(values) - 1)]
