"""The models of a comparison by name: baselines, and ConCF by its consensus and by its best head."""

from __future__ import annotations

from typing import Any, Literal

from concf.consensus.settings import CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError
from concf.model.baselines.table import BASELINES, Candidate, candidate
from concf.runtime.settings import Settings
from concf.training.config.presets import preset

PREFIX = "concf:"


class Trained(Settings):
    """A run of a preset that recommends by its consensus, or by the head with the best validation figure."""

    preset: str
    ship: Literal["consensus", "head"]

    def train(self, split: Split) -> Any:
        """Train on a split, whose validation part stops the run. Both ways of shipping come of the same run."""
        from concf.training.train import train

        return train(split, preset=self.preset, seed=split.recipe.seed)

    def recommender(self, run: Any) -> Any:
        """Of a run that was trained."""
        return run.recommender(CONSENSUS if self.ship == "consensus" else run.best_head())


def contenders(names: list[str]) -> dict[str, Candidate]:
    """The models of those names; `concf:strong` and other presets take part twice, by consensus and by head."""
    if not names:
        raise ConfigError(f"no model was named; choose from {', '.join([*BASELINES, f'{PREFIX}strong'])}")
    models: dict[str, Candidate] = {}
    for name in names:
        if not name.startswith(PREFIX):
            models[name] = candidate(name)
            continue
        chosen = name.removeprefix(PREFIX)
        preset(chosen)  # refuses an unknown one
        for ship in ("consensus", "head"):
            models[f"{name} {ship}"] = Candidate(Trained, {"preset": (chosen,), "ship": (ship,)})
    return models
