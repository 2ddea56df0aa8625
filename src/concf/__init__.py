"""ConCF: consensus learning from heterogeneous objectives for one-class collaborative filtering.

    import concf

    data = concf.prepare("log.csv", protocol="random", seed=0)
    run = concf.train(data, seed=0)
    print(concf.evaluate(run.recommender("consensus"), data).means())

Names are imported when they are first used, so that a part of the package needs only its own libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from concf.runtime.provenance import VERSION as __version__

if TYPE_CHECKING:
    from concf.data.filters import Filter as Filter
    from concf.data.interactions import Interactions as Interactions
    from concf.data.prepare import prepare as prepare
    from concf.data.reading.read import read as read
    from concf.data.reading.scan import Reading as Reading
    from concf.data.simulate import Simulation as Simulation
    from concf.data.split import Split as Split
    from concf.errors import ConcfError as ConcfError
    from concf.errors import ConcfWarning as ConcfWarning
    from concf.errors import ConfigError as ConfigError
    from concf.errors import DataError as DataError
    from concf.evaluation.evaluate import Evaluation as Evaluation
    from concf.evaluation.evaluate import evaluate as evaluate
    from concf.evaluation.evaluate import score_lists as score_lists
    from concf.evaluation.ranking import rank as rank
    from concf.experiments.compare import compare as compare
    from concf.experiments.tune import tune as tune
    from concf.inference.estimator import ConCF as ConCF
    from concf.inference.recommender import Recommender as Recommender
    from concf.model.baselines.table import BASELINES as BASELINES
    from concf.model.baselines.table import Candidate as Candidate
    from concf.model.objectives import Objective as Objective
    from concf.model.scorers import Factors as Factors
    from concf.model.scorers import ListFunction as ListFunction
    from concf.model.scorers import ScoreFunction as ScoreFunction
    from concf.training.checkpoint import load_run as load_run
    from concf.training.config.presets import PRESETS as PRESETS
    from concf.training.config.presets import choose_settings as choose_settings
    from concf.training.config.settings import ConCFSettings as ConCFSettings
    from concf.training.run import Run as Run
    from concf.training.train import train as train

_HOMES = {
    "BASELINES": "model.baselines.table",
    "Candidate": "model.baselines.table",
    "ConCF": "inference.estimator",
    "ConCFSettings": "training.config.settings",
    "ConcfError": "errors",
    "ConcfWarning": "errors",
    "ConfigError": "errors",
    "DataError": "errors",
    "Evaluation": "evaluation.evaluate",
    "Factors": "model.scorers",
    "Filter": "data.filters",
    "Interactions": "data.interactions",
    "ListFunction": "model.scorers",
    "Objective": "model.objectives",
    "PRESETS": "training.config.presets",
    "Reading": "data.reading.scan",
    "Recommender": "inference.recommender",
    "Run": "training.run",
    "ScoreFunction": "model.scorers",
    "Simulation": "data.simulate",
    "Split": "data.split",
    "choose_settings": "training.config.presets",
    "compare": "experiments.compare",
    "evaluate": "evaluation.evaluate",
    "load_run": "training.checkpoint",
    "prepare": "data.prepare",
    "rank": "evaluation.ranking",
    "read": "data.reading.read",
    "score_lists": "evaluation.evaluate",
    "train": "training.train",
    "tune": "experiments.tune",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'concf' has no attribute {name!r}")
    return getattr(import_module(f"concf.{_HOMES[name]}"), name)
