"""Models of a comparison: baselines, and runs of ConCF, by consensus or by the best head.

One training of ConCF yields both; it uses the validation part by itself.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from concf.baselines.table import BASELINES, Baseline, Candidate, candidate
from concf.consensus.consensus import CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.validation import AUTO, USUAL
from concf.models import DEFAULT_OF_ONE, PRESETS, choose_settings, train
from concf.reference.objectives import OBJECTIVES
from concf.runs.settings import RunSettings
from concf.runtime.settings import Settings, flat, nested

PREFIX = "concf:"


class Trained(Settings):
    """A run of a preset that recommends by its consensus, or by the head with the best validation metric.

    Further names are settings that differ from the preset, such as `consensus.weight`; `single` is an objective that is
    trained alone.
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

    def train(self, split: Split, refit: bool, metric: str) -> Any:
        """Train on a split, with everything chosen on its validation part, by a metric unless the settings name one.

        For tests on new users, a refit uses all pairs of the training users, as a baseline's fit does.
        """
        changes: dict[str, Any] = {"weights": split.weights.model_dump()}
        if self.refits:
            changes["refit"] = "validation" if refit or split.has_new_users else "none"
        if self.settings().training.metric == AUTO and metric != USUAL:  # which small logs replace
            changes["training"] = {"metric": metric}
        return train(split, self.settings(**changes), seed=split.recipe.seed)

    def recommender(self, run: Any, split: Split) -> Any:
        """Scorer of the evaluated users."""
        return run.recommender(self._shipped(run), split.history if split.has_new_users else None)

    def validation(self, run: Any, metric: str) -> float | None:
        """Validation metric from before the refit; None if the run was validated by another one."""
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
            known = f"{', '.join(PRESETS)}, or an objective, {', '.join(OBJECTIVES)}"
            raise ConfigError(f"unknown model {chosen!r}; choose from {', '.join(BASELINES)}, a preset, {known}")
    return models
