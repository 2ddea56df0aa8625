"""Grids of settings that a user gives: which values of which settings are searched, for which models."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from concf.baselines.table import BASELINES, Candidate
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError, option
from concf.evaluation.validation_metric import fitting_metric
from concf.experiments.contenders import PREFIX, Trained, contenders
from concf.runtime.settings import flat, read_toml

Grid = Mapping[str, Mapping[str, Any]]  # model -> setting -> the values to try
MOST_POINTS = 300  # of a grid that is searched without further ado
FIXED = {"weights": "weights= or --weights", "recipe.refit": "refit= or --no-refit"}  # what a comparison itself decides


def read_grid(grid: Grid | str | Path) -> Grid:
    """A grid from a TOML or JSON file, such as `[ease]`, `regularisation = [100, 300]`."""
    if isinstance(grid, Mapping):
        return grid
    if Path(grid).suffix != ".json":
        return read_toml(Path(grid))
    try:
        read: Grid = json.loads(Path(grid).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{grid}: cannot be read as JSON ({error})") from None
    if not isinstance(read, Mapping):
        raise ConfigError(f"{grid}: expected an object of models, found {type(read).__name__}")
    return read


def with_grid(candidates: Mapping[str, Candidate], grid: Grid, most: int = MOST_POINTS) -> dict[str, Candidate]:
    """The candidates and those that the grid names, which are searched at every point of it.

    A name is that of a candidate, a baseline, a preset, or an objective that is trained alone (`concf:bpr`, since bpr
    is a baseline). Settings that are not named keep the values of the baseline or the preset.
    """
    searched, points = dict(candidates), 0
    for name, settings in grid.items():
        lists = flat(settings) if isinstance(settings, Mapping) else {}
        if not lists:
            raise ConfigError(f"grid: {name}: expected settings and their values, such as regularisation = [100, 300]")
        for setting, values in lists.items():
            if not isinstance(values, list | tuple) or not values:
                raise ConfigError(f"grid: {name}: {setting} = {values!r}: expected a list of values to try")
            for fixed, instead in FIXED.items():
                if f"{setting}.".startswith(f"{fixed}."):
                    raise ConfigError(f"grid: {name}: {setting} is of the whole comparison: {instead}")
        points += prod(map(len, lists.values()))
        if points > most:
            raise ConfigError(
                f"grid: {points:,} points up to {name} are more than {most:,}, and each is fitted. "
                f"Leave some out, or allow more: {option('most_points', points)}"
            )
        known = {**BASELINES, **candidates}
        whole = {name: known[name]} if name in known else contenders([PREFIX + name.removeprefix(PREFIX)])
        for entrant, model in whole.items():
            fixed_values = model.grid if model.make is Trained else {}
            values_of = fixed_values | {setting: tuple(values) for setting, values in lists.items()}
            searched[entrant] = replace(model, grid=values_of, every_point=True)
            _check(name, searched[entrant])
    return searched


def _check(name: str, model: Candidate) -> None:
    """Refuse unknown settings, wrong values and settings without effect, before anything is fitted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConcfWarning)
            for settings in model.settings():
                if isinstance(settings, Trained):
                    settings.settings()
    except ValidationError as error:
        problem = error.errors()[0]
        where, known = ".".join(map(str, problem["loc"])), ", ".join(model.make.model_fields) or "none"
        raise ConfigError(f"grid: {name}: {where}: {problem['msg']}; its settings are {known}") from None
    except (ConfigError, ConcfWarning) as error:
        raise ConfigError(f"grid: {name}: {error}") from None


def refuse_other_metric(candidates: Mapping[str, Candidate], data: Split, tune_on: str) -> None:
    """A preset that refits itself has one validation figure, from before: a grid of it is searched by no other."""
    for name, model in candidates.items():
        for settings in model.settings() if model.every_point and model.make is Trained else ():
            own = fitting_metric(settings.settings().training.metric, data)  # type: ignore[attr-defined]
            if settings.refits and own != tune_on and not data.has_new_users:  # type: ignore[attr-defined]
                raise ConfigError(
                    f"grid: {name} validates by {own} and the comparison by {tune_on}. "
                    f'Add to its grid: "training.metric" = ["{tune_on}"]'
                )
