"""Several recommenders on the same splits: tuned on validation, compared on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import known_metrics
from concf.evaluation.metrics import ACCURACY
from concf.evaluation.significance import TESTS, holm
from concf.experiments.contenders import contenders
from concf.experiments.measure import Figures, measure_ahead
from concf.experiments.results_log import ResultsLog
from concf.model.baselines.table import Baseline, Candidate
from concf.runtime.arguments import check_count, check_cutoffs
from concf.runtime.progress import working
from concf.runtime.text_tables import short, words


@dataclass
class Entrant:
    """One model of a comparison.

    settings: chosen on the first split's validation part
    edges:    the settings whose chosen value is the first or last of its grid
    tests:    one dictionary of mean test figures a split
    per_user: with a single split, "recall@50" -> [e]
    """

    name: str
    settings: dict[str, Any]
    validation: float
    edges: list[str]
    tests: list[dict[str, float]] = field(default_factory=list)
    fit_seconds: list[float] = field(default_factory=list)
    per_user: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def mean(self, metric: str) -> float:
        """Over the splits."""
        return float(np.mean([test[metric] for test in self.tests]))

    def std(self, metric: str) -> float:
        """Sample standard deviation over the splits; 0 for a single one."""
        values = [test[metric] for test in self.tests]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass
class Comparison:
    """The entrants, best first by the metric that was tuned on."""

    entrants: list[Entrant]
    metrics: list[str]
    tuned_on: str
    seeds: list[int]
    split_hashes: list[str]
    protocol: str
    source: str
    evaluated_users: list[int]  # of each split

    def p_values(self, metric: str, test: str = "t") -> list[float | None]:
        """Each entrant against the first, Holm-corrected: over splits, or over users if there is one split.

        None for the first, and for a figure that single users do not have where there is one split.
        """
        if len(self.seeds) == 1 and metric not in self.entrants[0].per_user:
            return [None] * len(self.entrants)
        first, *others = (self._row(entrant, metric) for entrant in self.entrants)
        corrected = holm([TESTS[test](first, other) for other in others]) if others else []
        return [None, *corrected]

    def _row(self, entrant: Entrant, metric: str) -> NDArray[np.float64]:
        if len(self.seeds) == 1:
            return entrant.per_user[metric]
        return np.array([test[metric] for test in entrant.tests])

    def as_dict(self, test: str = "t") -> dict[str, Any]:
        """Everything that the tables show, and the figures of every split."""
        p = {metric: self.p_values(metric, test) for metric in self.metrics}
        return {
            "source": self.source,
            "protocol": self.protocol,
            "seeds": self.seeds,
            "split_hashes": self.split_hashes,
            "evaluated_users": self.evaluated_users,
            "tuned_on": f"validation {self.tuned_on}, seed {self.seeds[0]}",
            "test": f"paired {test}, Holm-corrected, over {'splits' if len(self.seeds) > 1 else 'users'}",
            "models": [
                {
                    "model": entrant.name,
                    "settings": entrant.settings,
                    "at_grid_edge": entrant.edges,
                    "validation": entrant.validation,
                    "mean": {metric: entrant.mean(metric) for metric in self.metrics},
                    "std": {metric: entrant.std(metric) for metric in self.metrics},
                    "p_against_first": {metric: p[metric][place] for metric in self.metrics},
                    "fit_seconds": float(np.mean(entrant.fit_seconds)),
                    "splits": entrant.tests,
                }
                for place, entrant in enumerate(self.entrants)
            ],
        }


def compare(
    data: Split,
    models: Sequence[str] | Mapping[str, Candidate],
    *,
    seeds: int = 5,
    at: Sequence[int] | int = (20, 50),
    metrics: Sequence[str] = ("recall", "ndcg"),
    tune_on: str | None = None,
    log: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> Comparison:
    """Tune every model on the first split's validation part, hold the settings, test on every split.

    data:   a prepared data set; split k has the seed of `data` plus k and the same protocol
    models: names of `BASELINES`, `concf:strong` or another preset, or your own candidates by name
    tune_on: the validation figure that chooses the settings; None: the first metric at the greatest length
    log:    JSON lines of what was measured; what stands there already is not run again
    engine: processes or ray (see `executors`): what is independent is measured by several workers, with the same
            result; None: one after the other, here. workers: how many; None: one for each core
    """
    seeds, at = check_count("seeds", seeds), check_cutoffs("at", at)
    entrants = models if isinstance(models, Mapping) else contenders(list(models))
    names = [f"{metric}@{n}" for n in at for metric in known_metrics(metrics)]
    tune_on = f"{metrics[0]}@{max(at)}" if tune_on is None else tune_on
    if tune_on not in names or tune_on.partition("@")[0] not in ACCURACY or not entrants:
        accurate = [name for name in names if name.partition("@")[0] in ACCURACY]
        raise ConfigError(f"cannot tune {list(entrants)} on {tune_on!r}; figures to tune on are {', '.join(accurate)}")
    for model in entrants.values():
        model.refuse_if_absent()
    splits = _splits(data, seeds)
    data.note_if_few()
    book = ResultsLog(Path(log) if log else None)
    wanted = Figures(tune_on, tuple(at), tuple(metrics), keep_users=seeds == 1)
    if engine is not None:
        measure_ahead(entrants, splits, wanted, book, engine, workers)
    done = []
    with working("comparing", len(entrants) * (1 + seeds)) as advance:
        for name, model in entrants.items():
            entrant, chosen = _tuned(name, model, data, wanted, book)
            advance(1)
            for split in splits:
                cell = _tested(name, chosen, split, wanted, book)
                entrant.tests.append(cell["mean"])
                entrant.fit_seconds.append(cell["fit_seconds"])
                entrant.per_user = {metric: np.array(row) for metric, row in cell.get("per_user", {}).items()}
                advance(1)
            done.append(entrant)
    done.sort(key=lambda entrant: -entrant.mean(tune_on))
    return Comparison(
        done, names, tune_on, [split.recipe.seed for split in splits], [split.hash for split in splits],
        data.recipe.protocol.name, str(data.recipe.source["name"]), [len(split.evaluated) for split in splits],
    )  # fmt: skip


def _splits(data: Split, seeds: int) -> list[Split]:
    """The data set's own split and the next ones; the same split again would only look like evidence."""
    splits = [data]
    if seeds > 1 and data.recipe.protocol.name not in ("given", "time"):
        splits += [data.with_seed(data.recipe.seed + k) for k in range(1, seeds)]
    if len({split.hash for split in splits}) < seeds:
        raise ConfigError(
            f"protocol {data.recipe.protocol.name!r} has one split only, whatever the seed; compare with seeds 1"
        )
    return splits


def _tuned(name: str, model: Candidate, split: Split, wanted: Figures, book: ResultsLog) -> tuple[Entrant, Baseline]:
    """The point of the grid with the best validation figure; the first of equals."""
    tried: list[tuple[float, Baseline]] = []
    points = list(model.settings())
    with working(f"tuning {name}", len(points)) as advance:
        for settings in points:
            cell = wanted.found(name, settings, split, "valid", book)
            cell = cell or wanted.add(name, settings, split, "valid", wanted.measure(settings, split, "valid"), book)
            tried.append((cell["mean"][wanted.tune_on], settings))
            advance(1)
    value, best = max(tried, key=lambda pair: pair[0])
    chosen = best.model_dump()
    edges = [
        setting for setting, values in model.grid.items()
        if len(values) > 1 and chosen[setting] in (values[0], values[-1])
    ]  # fmt: skip
    return Entrant(name, chosen, value, edges), best


def _tested(name: str, settings: Baseline, split: Split, wanted: Figures, book: ResultsLog) -> dict[str, Any]:
    cell = wanted.found(name, settings, split, "test", book)
    return cell or wanted.add(name, settings, split, "test", wanted.measure(settings, split, "test"), book)


def comparison_rows(comparison: Comparison, test: str = "t") -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean ± spread of each metric, the first's p, seconds to fit, the chosen settings."""
    report = comparison.as_dict(test)
    header = [
        "model",
        *map(short, comparison.metrics),
        f"p ({short(comparison.tuned_on)})",
        "fit s",
        "settings",
    ]
    rows = []
    for model in report["models"]:
        figures = [f"{model['mean'][m]:.4f} ± {model['std'][m]:.4f}" for m in comparison.metrics]
        p = model["p_against_first"][comparison.tuned_on]
        rows.append(
            [model["model"], *figures, "best" if p is None else f"{p:.2g}", f"{model['fit_seconds']:.1f}",
             words(model["settings"], model["at_grid_edge"])]
        )  # fmt: skip
    return header, rows
