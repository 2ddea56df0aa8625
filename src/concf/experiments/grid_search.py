"""A search over a grid of settings: every point of a small grid; in a large one, uphill from the middle."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import Any

Point = tuple[int, ...]  # the position of each setting's value in its row of the grid
Search = Generator[list[Point], list[float], tuple[Point, float]]  # points to measure -> their scores; then the best

EVERY_POINT = 60  # of grids up to this size


def search(sizes: Sequence[int], every_point: bool = False) -> Search:
    """Yields points that are to be measured, each once, receives their scores and returns the best point and its score.

    sizes: how many values each setting has. The first of equals is the best.
    every_point: measure all of them, however many
    """
    return _everywhere(sizes) if every_point or prod(sizes) <= EVERY_POINT else _uphill(sizes)


def _everywhere(sizes: Sequence[int]) -> Search:
    points = list(product(*map(range, sizes)))
    scores = dict(zip(points, (yield points), strict=True))
    best = max(points, key=lambda point: scores[point])
    return best, scores[best]


def _uphill(sizes: Sequence[int]) -> Search:
    """Moves to better neighbouring values of one setting, or of two at once, until no such neighbour is better.

    Two at once, since the best weight of unobserved pairs, say, depends on the penalty: neither helps alone.
    """
    here = tuple((size - 1) // 2 for size in sizes)
    scores = dict(zip([here], (yield [here]), strict=True))
    axes = range(len(sizes))
    directions: list[tuple[int, ...]] = [*combinations(axes, 1), *combinations(axes, 2)]
    at, settled = 0, 0  # settled: directions in a row that lead to nothing better
    while settled < len(directions):
        beside = _beside(here, directions[at], sizes)
        unknown = [point for point in beside if point not in scores]
        if unknown:
            scores |= dict(zip(unknown, (yield unknown), strict=True))
        best = max([here, *beside], key=lambda point: scores[point])
        if best == here:
            at, settled = (at + 1) % len(directions), settled + 1
        else:
            here, settled = best, 0
    return here, scores[here]


def _beside(here: Point, axes: Sequence[int], sizes: Sequence[int]) -> list[Point]:
    """The points of the grid that differ by one step along each of these axes, and nowhere else."""
    steps = [(here[axis] - 1, here[axis] + 1) if axis in axes else (here[axis],) for axis in range(len(sizes))]
    return [point for point in product(*steps) if all(0 <= at < size for at, size in zip(point, sizes, strict=True))]


def at_edges(grid: Mapping[str, Sequence[Any]], point: Point) -> list[str]:
    """The settings of several values whose chosen one is the first or the last: a wider grid may hold a better one."""
    places = zip(grid.items(), point, strict=True)
    return [name for (name, values), at in places if len(values) > 1 and at in (0, len(values) - 1)]
