"""ConCF: consensus learning from heterogeneous objectives for one-class collaborative filtering.

    import concf

    model = concf.ConCF().fit("log.csv")
    model.recommend(["alice", "bob"], k=10)

    data = concf.prepare("log.csv", protocol="random", seed=0)
    run = concf.train(data, seed=0)
    print(concf.evaluate(run.recommender("consensus"), data).means())

docs/api.md has an example of every name. Names are imported when they are first used, so that a part of the package
needs only its own libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from concf.runtime.provenance import VERSION as __version__

if TYPE_CHECKING:
    from concf.baselines.table import BASELINES, Candidate
    from concf.comparison.compare import compare
    from concf.comparison.rolling import evaluate_rolling
    from concf.data.interactions import Interactions
    from concf.data.prepare import prepare
    from concf.data.reading.read import read
    from concf.data.reading.scan import Reading
    from concf.data.simulate import DriftingSimulation, Simulation
    from concf.data.split import Split
    from concf.data.weights import Weighting
    from concf.errors import ConcfError, ConcfWarning, ConfigError, DataError
    from concf.evaluation.evaluate import evaluate
    from concf.evaluation.ranking import rank
    from concf.inference.estimator import ConCF
    from concf.inference.recommender import Recommender
    from concf.inference.rules import Rules
    from concf.models import PRESETS, choose_settings, load_run, train
    from concf.reference.objectives import OBJECTIVES, Objective
    from concf.reference.settings import ReferenceSettings
    from concf.strong.combine import combine
    from concf.strong.settings import StrongSettings
    from concf.strong.update import update

__all__ = [
    "BASELINES", "OBJECTIVES", "PRESETS", "Candidate", "ConCF", "ConcfError", "ConcfWarning", "ConfigError",
    "DataError", "DriftingSimulation", "Interactions", "Objective", "Reading", "Recommender", "ReferenceSettings",
    "Rules", "Simulation", "Split", "StrongSettings", "Weighting", "__version__", "choose_settings", "combine",
    "compare", "evaluate", "evaluate_rolling", "load_run", "prepare", "rank", "read", "train", "update",
]  # fmt: skip

_MODULES = {
    "data.interactions": ("Interactions",),
    "data.prepare": ("prepare",),
    "data.reading.read": ("read",),
    "data.reading.scan": ("Reading",),
    "data.simulate": ("DriftingSimulation", "Simulation"),
    "data.split": ("Split",),
    "data.weights": ("Weighting",),
    "errors": ("ConcfError", "ConcfWarning", "ConfigError", "DataError"),
    "evaluation.evaluate": ("evaluate",),
    "evaluation.ranking": ("rank",),
    "comparison.compare": ("compare",),
    "comparison.rolling": ("evaluate_rolling",),
    "inference.estimator": ("ConCF",),
    "inference.recommender": ("Recommender",),
    "inference.rules": ("Rules",),
    "baselines.table": ("BASELINES", "Candidate"),
    "reference.objectives": ("OBJECTIVES", "Objective"),
    "strong.combine": ("combine",),
    "models": ("PRESETS", "choose_settings", "load_run", "train"),
    "reference.settings": ("ReferenceSettings",),
    "strong.settings": ("StrongSettings",),
    "strong.update": ("update",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"concf.{module}"), name)
    raise AttributeError(f"module 'concf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
