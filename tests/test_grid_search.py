"""Grid searches on functions whose best point is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from concf.experiments import grid_search
from concf.experiments.grid_search import Point, at_edges, search


def run(sizes: list[int], function: Callable[[Point], float]) -> tuple[Point, float, list[list[Point]]]:
    """The best point, its score, and what was measured, round by round."""
    steps, rounds = search(sizes), []
    points = next(steps)
    while True:
        rounds.append(points)
        try:
            points = steps.send([function(point) for point in points])
        except StopIteration as end:
            return *end.value, rounds


def test_a_small_grid_is_measured_whole_and_the_first_of_equals_is_best() -> None:
    best, score, rounds = run([3, 4], lambda point: -((point[0] - 1) ** 2))
    assert (best, score) == ((1, 0), 0)
    assert rounds == [list(product(range(3), range(4)))]
    assert run([], lambda point: 7.0) == ((), 7.0, [[()]])


def test_a_large_grid_is_climbed_from_its_middle_by_one_setting_and_by_two() -> None:
    best, score, rounds = run([9, 9], lambda point: -((point[0] - 6) ** 2) - (point[1] - 4) ** 2)
    assert (best, score) == ((6, 4), 0)
    by_one = [[(4, 4)], [(3, 4), (5, 4)], [(6, 4)], [(7, 4)], [(6, 3), (6, 5)]]
    assert rounds == [*by_one, [(5, 3), (5, 5), (7, 3), (7, 5)]]


def test_a_climb_follows_a_ridge_along_which_no_single_setting_leads() -> None:
    best, score, rounds = run([9, 9, 2], lambda point: -10.0 * (point[0] - point[1]) ** 2 + point[0] + point[1])
    assert (best, score) == ((8, 8, 0), 16)
    measured = [point for points in rounds for point in points]
    assert len(measured) == len(set(measured))


@pytest.mark.parametrize("seed", range(2))
def test_where_a_climb_ends_no_neighbour_is_better_and_nothing_was_measured_twice(seed: int) -> None:
    import random

    drawn = random.Random(seed)
    sizes = [5, 1, 6, 4]
    values = {point: drawn.choice([0.1, 0.2, 0.3, 0.4, 0.5]) for point in product(*map(range, sizes))}
    best, score, rounds = run(sizes, values.__getitem__)
    measured = [point for points in rounds for point in points]
    assert len(measured) == len(set(measured)) < len(values)
    assert score == values[best] == max(values[point] for point in measured)
    for steps in product((-1, 0, 1), repeat=4):
        if sum(map(abs, steps)) <= 2:
            beside = tuple(at + step for at, step in zip(best, steps, strict=True))
            assert values.get(beside, 0.0) <= score
    assert run(sizes, values.__getitem__)[2] == rounds


def test_the_size_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(run([6, 10], lambda _: 0.0)[2]) == 1
    assert len(run([61], lambda _: 0.0)[2]) == 2
    monkeypatch.setattr(grid_search, "EVERY_POINT", 2)
    assert run([3], lambda point: point[0])[2] == [[(1,)], [(0,), (2,)]]


def test_edges_are_the_first_and_the_last_of_several_values() -> None:
    grid = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (5,), "d": (1, 2)}
    assert at_edges(grid, (0, 1, 0, 1)) == ["a", "d"]
    assert at_edges(grid, (2, 1, 0, 0)) == ["a", "d"]
