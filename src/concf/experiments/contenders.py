"""The models of a comparison by name: baselines, and ConCF by its consensus and by its best head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import ConfigDict

from concf.baselines.table import BASELINES, Baseline, Candidate, candidate
from concf.consensus.consensus import CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError
from concf.models import DEFAULT_OF_ONE, PRESETS, choose_settings
from concf.reference.objectives import OBJECTIVES, kind_of
from concf.runs.settings import RunSettings
from concf.runtime.settings import Settings, flat, nested

PREFIX = "concf:"


class Several(ABC):
    """Several models that come of one training, which looks at the validation part, and refits by itself."""

    @property
    @abstractmethod
    def training(self) -> str:
        """Its name, which is the same of all models that come of it."""

    @property
    @abstractmethod
    def refits(self) -> bool:
        """Whether the training refits."""

    @abstractmethod
    def model_dump(self) -> dict[str, Any]:
        """The settings as a dictionary."""

    @abstractmethod
    def train(self, split: Split, refit: bool) -> Any:
        """What holds the models. refit: on training and validation pairs."""

    @abstractmethod
    def recommender(self, trained: Any, split: Split) -> Any:
        """This model of it, for the users of the split who are evaluated."""

    @abstractmethod
    def validation(self, trained: Any, metric: str) -> float | None:
        """The figure from before the refit; None of another metric than the training looked at."""


Model = Baseline | Several


class Trained(Settings, Several):
    """A run of a preset that recommends by its consensus, or by the head with the best validation figure.

    Further names are settings that differ from the preset, as `consensus.weight`; `single` is an objective that is
    trained alone.
    """

    model_config = ConfigDict(extra="allow")

    preset: str
    ship: Literal["consensus", "head"]

    @property
    def training(self) -> str:
        """The preset and its changes."""
        return f"{self.preset} {self.model_extra}" if self.model_extra else self.preset

    def settings(self, **changes: Any) -> RunSettings:
        """Those of the run. changes: nested, over all others"""
        own = dict(self.model_extra or {})
        single = own.pop("single", None)
        return choose_settings(self.preset, nested(own | flat(changes)), single=single)

    @property
    def refits(self) -> bool:
        """Whether the run is refitted by itself, and measures its validation before."""
        return self.settings().recipe is not None

    def train(self, split: Split, refit: bool) -> Any:
        """Train on a split, whose validation part stops the run. Both ways of shipping come of the same run.

        Where new users are tested, a refit is on all pairs of the users who train, as any baseline is fitted on.
        """
        from concf.models import train

        changes: dict[str, Any] = {"weights": split.weights.model_dump()}
        if self.refits:
            changes["recipe"] = {"refit": "validation" if refit or split.has_new_users else "none"}
        return train(split, self.settings(**changes), seed=split.recipe.seed)

    def recommender(self, run: Any, split: Split) -> Any:
        """Of a run that was trained, for the users of the split who are evaluated."""
        return run.recommender(self._shipped(run), split.history if split.has_new_users else None)

    def validation(self, run: Any, metric: str) -> float | None:
        """The figure from before the refit; None of another metric than the run was validated by."""
        return float(run.best[self._shipped(run)].validation) if run.metric == metric else None

    def _shipped(self, run: Any) -> str:
        return CONSENSUS if self.ship == "consensus" else str(run.best_head())


def contenders(names: list[str]) -> dict[str, Candidate]:
    """The models of those names; `concf:strong` and other presets take part twice, by consensus and by head.

    `concf:bpr` and other objectives are trained alone, by the preset reference.
    """
    if not names:
        raise ConfigError(f"no model was named; choose from {', '.join([*BASELINES, f'{PREFIX}strong'])}")
    models: dict[str, Candidate] = {}
    for name in names:
        if not name.startswith(PREFIX):
            models[name] = candidate(name)
            continue
        chosen = name.removeprefix(PREFIX)
        if chosen not in PRESETS and kind_of(chosen) not in OBJECTIVES:
            known = f"{', '.join(PRESETS)}, or an objective, {', '.join(OBJECTIVES)}"
            raise ConfigError(f"unknown model {chosen!r}; choose from {', '.join(BASELINES)}, a preset, {known}")
        if chosen not in PRESETS:
            alone = {"preset": (DEFAULT_OF_ONE,), "ship": ("head",), "single": (chosen,)}
            models[name] = Candidate(Trained, alone)
            continue
        for ship in ("consensus", "head"):
            models[f"{name} {ship}"] = Candidate(Trained, {"preset": (chosen,), "ship": (ship,)})
    return models
