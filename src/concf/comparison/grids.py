"""Grids of settings: those that a user gives, and the search for the best point of a grid."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Any

from pydantic import ValidationError

from concf.baselines.table import BASELINES, Candidate
from concf.comparison.models import PREFIX, Trained, named_models
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError
from concf.evaluation.validation import AUTO, USUAL, fitting_metric
from concf.runtime.settings import flat

Grid = Mapping[str, Mapping[str, Any]]  # model -> setting -> values to try
Point = tuple[int, ...]  # position of each setting's value in its row of the grid
Search = Generator[list[Point], list[float], tuple[Point, float]]  # points to measure -> their scores; then the best

EVERY_POINT = 60  # size of a built-in grid up to which all points are measured
FIXED = {"weights": "weights= or --weights", "refit": "refit= or --no-refit"}  # set for the whole comparison


def with_grid(candidates: Mapping[str, Candidate], grid: Grid) -> dict[str, Candidate]:
    """Candidates, and the models of the grid, which are searched at every point of it.

    A name is that of a candidate, a baseline, a preset, or an objective that is trained alone (`concf:bpr`). Settings
    that are not named keep the values of the baseline or the preset.
    """
    searched, known = dict(candidates), {**BASELINES, **candidates}
    for name, settings in grid.items():
        lists = flat(settings) if isinstance(settings, Mapping) else {}
        if not lists:
            raise ConfigError(f"grid: {name}: expected settings and their values, such as regularisation = [100, 300]")
        for setting, values in lists.items():
            if not isinstance(values, list | tuple) or not values:
                raise ConfigError(f"grid: {name}: {setting} = {values!r}: expected a list of values to try")
            for fixed, instead in FIXED.items():
                if f"{setting}.".startswith(f"{fixed}."):
                    raise ConfigError(f"grid: {name}: {setting} is set for the whole comparison: {instead}")
        whole = {name: known[name]} if name in known else named_models([PREFIX + name.removeprefix(PREFIX)])
        for entrant, model in whole.items():
            own = model.grid if model.make is Trained else {}
            rows = own | {setting: tuple(values) for setting, values in lists.items()}
            searched[entrant] = replace(model, grid=rows, every_point=True)
            _check(name, searched[entrant])
    return searched


def _check(name: str, model: Candidate) -> None:
    """Check all points of a grid before anything is fitted: names, values, settings without effect."""
    try:
        with warnings.catch_warnings(action="error", category=ConcfWarning):
            for settings in model.settings():
                if isinstance(settings, Trained):
                    settings.settings()
    except ValidationError as error:
        problem = error.errors()[0]
        where, known = ".".join(map(str, problem["loc"])), ", ".join(model.make.model_fields) or "none"
        raise ConfigError(f"grid: {name}: {where}: {problem['msg']}; its settings are {known}") from None
    except (ConfigError, ConcfWarning) as error:
        raise ConfigError(f"grid: {name}: {error}") from None


def check_metric(candidates: Mapping[str, Candidate], data: Split, tune_on: str) -> None:
    """Check that presets with a grid validate by `tune_on`: one that refits has no other validation metric."""
    for name, model in candidates.items():
        for settings in model.settings() if model.every_point and model.make is Trained else ():
            own = settings.settings().training.metric  # type: ignore[attr-defined]
            own = tune_on if own == AUTO and tune_on != USUAL else fitting_metric(own, data)
            if settings.refits and own != tune_on and not data.has_new_users:  # type: ignore[attr-defined]
                fix = f'Add to its grid: "training.metric" = ["{tune_on}"]'
                raise ConfigError(f"grid: {name} validates by {own} and the comparison by {tune_on}. {fix}")


def search(sizes: Sequence[int], every_point: bool = False) -> Search:
    """Yield points to measure, each once, receive their scores, and return the best point and its score.

    All points of a small grid are measured. A large one is climbed from its middle: to better neighbouring values of
    one setting, or of two at once, until no such neighbour is better. Two at once, since the best weight of unobserved
    pairs, say, depends on the penalty: neither helps alone.

    sizes: number of values of each setting. The first of equal scores is the best.
    every_point: measure all points of a large grid too
    """
    if every_point or prod(sizes) <= EVERY_POINT:
        points = list(product(*map(range, sizes)))
        scores = dict(zip(points, (yield points), strict=True))
        best = max(points, key=lambda point: scores[point])
        return best, scores[best]
    here, axes = tuple((size - 1) // 2 for size in sizes), range(len(sizes))
    scores = dict(zip([here], (yield [here]), strict=True))
    directions: list[tuple[int, ...]] = [*combinations(axes, 1), *combinations(axes, 2)]
    at, settled = 0, 0  # settled: directions in a row without a better neighbour
    while settled < len(directions):
        steps = [(k - 1, k + 1) if axis in directions[at] else (k,) for axis, k in enumerate(here)]
        near = [point for point in product(*steps) if all(0 <= k < n for k, n in zip(point, sizes, strict=True))]
        unknown = [point for point in near if point not in scores]
        if unknown:
            scores |= dict(zip(unknown, (yield unknown), strict=True))
        best = max([here, *near], key=lambda point: scores[point])
        if best == here:
            at, settled = (at + 1) % len(directions), settled + 1
        else:
            here, settled = best, 0
    return here, scores[here]


def at_edges(grid: Mapping[str, Sequence[Any]], point: Point) -> list[str]:
    """Settings whose chosen value is the first or last of several: a wider grid may hold a better one."""
    chosen = zip(grid.items(), point, strict=True)
    return [name for (name, values), at in chosen if len(values) > 1 and at in (0, len(values) - 1)]
