"""Models of a comparison: baselines, runs of ConCF, by consensus or by the best head, and the grids of their settings.

One training of ConCF yields both; it uses the validation part by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError

from concf.baselines.table import BASELINES, Baseline, Candidate, candidate
from concf.data.split import Split
from concf.errors import ConcfWarning, ConfigError
from concf.evaluation.validation import AUTO, USUAL, fitting_metric
from concf.models import DEFAULT_OF_ONE, PRESETS, choose_settings, train
from concf.reference.objectives import OBJECTIVES
from concf.runs.settings import CONSENSUS, RunSettings
from concf.runtime.settings import Settings, flat, nested

Grid = Mapping[str, Mapping[str, Any]]  # model -> setting -> values to try

PREFIX = "concf:"
FIXED = ("weights", "refit")  # settings that a grid cannot change


class Trained(Settings):
    """Run of a preset that recommends by its consensus, or by the head with the best validation metric.

    Further names are settings that differ from the preset, such as `consensus.weight`; `single`: an objective, alone.
    """

    model_config = ConfigDict(extra="allow")

    preset: str
    ship: Literal["consensus", "head"]

    def settings(self, **changes: Any) -> RunSettings:
        """Settings of the run. changes: nested, take precedence."""
        own = dict(self.model_extra or {})
        single = own.pop("single", None)
        return choose_settings(self.preset, nested(own | flat(changes)), single=single)

    @property
    def refits(self) -> bool:
        """Whether the run refits itself, after it has measured its validation metric."""
        return self.settings().kind == "strong"

    def train(self, split: Split, metric: str) -> Any:
        """Train on a split, with everything chosen on its validation part, by a metric unless the settings name one.

        For tests on new users, a refit uses all pairs of the training users, as a baseline's fit does.
        """
        changes: dict[str, Any] = {"weights": split.weights.model_dump()}
        if self.refits:
            changes["refit"] = "validation"
        if self.settings().training.metric == AUTO and metric != USUAL:  # which small logs replace
            changes["training"] = {"metric": metric}
        return train(split, self.settings(**changes), seed=split.recipe.seed)

    def recommender(self, run: Any, split: Split) -> Any:
        """Return the scorer of the evaluated users."""
        return run.recommender(self._shipped(run), split.history if split.has_new_users else None)

    def validation(self, run: Any, metric: str) -> float | None:
        """Return the validation metric from before the refit; None if the run was validated by another one."""
        return float(run.best[self._shipped(run)].validation) if run.metric == metric else None

    def _shipped(self, run: Any) -> str:
        return CONSENSUS if self.ship == "consensus" else str(run.best_head())


Model = Baseline | Trained


def named_models(names: list[str]) -> dict[str, Candidate]:
    """Candidates by name; `concf:strong` and other presets take part twice, by consensus and by head.

    `concf:bpr` and other objectives are trained alone, by the preset reference.
    """
    if not names:
        raise ConfigError(f"no model was named; choose from {', '.join([*BASELINES, f'{PREFIX}strong'])}")
    models: dict[str, Candidate] = {}
    for name in names:
        chosen = name.removeprefix(PREFIX)
        if chosen == name:
            models[name] = candidate(name)
        elif chosen in PRESETS:
            for ship in ("consensus", "head"):
                models[f"{name} {ship}"] = Candidate(Trained, {"preset": (chosen,), "ship": (ship,)})
        elif chosen.partition("#")[0] in OBJECTIVES:  # `bpr` of `bpr#2`
            models[name] = Candidate(Trained, {"preset": (DEFAULT_OF_ONE,), "ship": ("head",), "single": (chosen,)})
        else:
            known = f"{', '.join(BASELINES)}, or as {PREFIX}NAME from {', '.join([*PRESETS, *OBJECTIVES])}"
            raise ConfigError(f"unknown model {chosen!r}; choose from {known}")
    return models


def with_grid(candidates: Mapping[str, Candidate], grid: Grid) -> dict[str, Candidate]:
    """Candidates, and the models of the grid, which are searched at every point of it.

    A name is that of a candidate, a baseline, a preset, or an objective that is trained alone (`concf:bpr`). Settings
    that are not named keep the values of the baseline or the preset.
    """
    searched, known = dict(candidates), {**BASELINES, **candidates}
    for name, settings in grid.items():
        lists = flat(settings) if isinstance(settings, Mapping) else {"": settings}
        for setting, values in lists.items():
            if not isinstance(values, list | tuple) or not values:
                raise ConfigError(f"grid: {name}: {setting} = {values!r}: expected a list of values to try")
            if setting.partition(".")[0] in FIXED:
                raise ConfigError(f"grid: {name}: {setting} is set for the whole comparison")
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
