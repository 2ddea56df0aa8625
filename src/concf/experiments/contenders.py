"""ConCF as one more model of a comparison: its consensus, and the head that it would deploy."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from concf.consensus.settings import CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError
from concf.model.baselines.table import BASELINES, Candidate, candidate
from concf.runtime.settings import Settings
from concf.training.config.presets import PRESETS, preset

PREFIX = "concf:"


class Trained(Settings):
    """A run of a preset; what ranks is its consensus, or the head with the best validation."""

    preset: str
    ship: Literal["consensus", "head"]

    def fit_split(self, split: Split) -> Any:
        """Train on a split; the run stops by its validation part. Both ways of shipping come of one run."""
        return _recommenders(self.preset, _ByHash(split))[self.ship]


class _ByHash:
    """A split that is known by what it holds."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __hash__(self) -> int:
        return hash(self.split.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByHash) and other.split.hash == self.split.hash


@cache
def _recommenders(name: str, known: _ByHash) -> dict[str, Any]:
    from concf.training.train import train

    run = train(known.split, preset=name, seed=known.split.recipe.seed)
    return {"consensus": run.recommender(CONSENSUS), "head": run.recommender(run.best_head())}


def contenders(names: list[str]) -> dict[str, Candidate]:
    """The models of those names: baselines, and `concf:strong` and the like, of which head and consensus take part."""
    if not names:
        raise ConfigError(f"no model was named; choose from {', '.join([*BASELINES, f'{PREFIX}strong'])}")
    found: dict[str, Candidate] = {}
    for name in names:
        if not name.startswith(PREFIX):
            found[name] = candidate(name)
            continue
        chosen = name.removeprefix(PREFIX)
        preset(chosen)
        for ship in ("consensus", "head"):
            grid: dict[str, tuple[Any, ...]] = {"preset": (chosen,), "ship": (ship,)}
            found[f"{name} {ship}"] = Candidate(Trained, grid)
    return found


NAMES = tuple(f"{PREFIX}{name}" for name in PRESETS)
