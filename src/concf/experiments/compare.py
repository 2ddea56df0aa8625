"""Several recommenders on the same splits: tuned on validation, refitted with it, compared on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.baselines.table import Candidate
from concf.data.split import Split
from concf.errors import ConfigError, option
from concf.evaluation.evaluate import known_metrics
from concf.evaluation.metrics import ACCURACY
from concf.evaluation.significance import TESTS, holm
from concf.experiments.contenders import Model, Trained, contenders
from concf.experiments.fusing import fusions as fusions_of
from concf.experiments.grid_search import Point, at_edges, search
from concf.experiments.grids import MOST_POINTS, Grid, read_grid, refuse_other_metric, with_grid
from concf.experiments.measure import Figures, Measurements, Wanted
from concf.experiments.results_log import ResultsLog
from concf.runtime.arguments import check_count, check_cutoffs
from concf.runtime.text_tables import settings_line, short


@dataclass
class Entrant:
    """One model of a comparison.

    settings: chosen on the first split's validation part
    edges:    the settings whose chosen value is the first or last of its grid
    tests:    the mean test figures of each split
    refitted: whether the tested model was fitted on training and validation pairs
    per_user: with a single split, "recall@50" -> [e], the figure of each evaluated user
    """

    name: str
    settings: dict[str, Any]
    validation: float | None
    edges: list[str]
    refitted: bool
    tests: list[dict[str, float]]
    fit_seconds: list[float]
    per_user: dict[str, NDArray[np.float64]]

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

        None for the first, and with one split for figures that single users do not have, such as coverage.
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
                    "fitted_on": "train and valid" if entrant.refitted else "train",
                    "validation": entrant.validation,
                    "mean": {metric: entrant.mean(metric) for metric in self.metrics},
                    "std": {metric: entrant.std(metric) for metric in self.metrics},
                    "p_against_first": {metric: p[metric][rank] for metric in self.metrics},
                    "fit_seconds": float(np.mean(entrant.fit_seconds)),
                    "splits": entrant.tests,
                }
                for rank, entrant in enumerate(self.entrants)
            ],
        }


def compare(
    data: Split,
    models: Sequence[str] | Mapping[str, Candidate] = (),
    *,
    grid: Grid | str | Path | None = None,
    most_points: int = MOST_POINTS,
    seeds: int = 5,
    at: Sequence[int] | int = (20, 50),
    metrics: Sequence[str] = ("recall", "ndcg"),
    tune_on: str | None = None,
    refit: bool = True,
    fusions: bool = False,
    log: str | Path | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> Comparison:
    """Tune every model on the first split's validation part, and test the chosen settings on every split.

    data:   a prepared data set; split k has the seed of `data` plus k and the same protocol
    models: names of `BASELINES`, `concf:strong` or another preset, `concf:bpr` or another objective alone, or your own
            candidates by name. Of a grid of more than 60 points some are tried: uphill from the middle (`grid_search`)
    grid:   settings to search in place of a model's own grid, or a TOML or JSON file of them: {"ease":
            {"regularisation": [100, 300]}, "reference": {"consensus.weight": [0.005, 0.01]}}. All points are measured;
            models that only the grid names take part, too
    most_points: of the grid; a larger one is refused
    tune_on: the validation figure that chooses the settings; None: the first metric at the greatest length
    refit:  baselines are fitted anew, with the chosen settings, on training and validation pairs before the test, as
            the preset strong does by itself; other presets are tested as they were validated. False: all are. With the
            protocol `new-users` nothing is ever fitted on the users that validate or test; baselines are folded in
    fusions: the baselines, with the settings that were chosen for each, take part by their plain fusions too
    log:    JSON lines of the measurements; what it holds already is not measured again
    engine: processes or ray (see `executors`): several workers measure, with the same result; None: this process, one
            after the other. workers: how many; None: one for each core
    """
    seeds, at = check_count("seeds", seeds), check_cutoffs("at", at)
    searched = {} if grid is None else read_grid(grid)
    if isinstance(models, Mapping):
        candidates = dict(models)
    else:
        candidates = {} if searched and not models else contenders(list(models))
    candidates = with_grid(candidates, searched, check_count("most_points", most_points))
    names = [f"{metric}@{n}" for n in at for metric in known_metrics(metrics)]
    accurate = [name for name in names if name.partition("@")[0] in ACCURACY]
    tune_on = f"{metrics[0]}@{max(at)}" if tune_on is None else tune_on
    if tune_on not in accurate or not candidates:
        raise ConfigError(f"cannot tune {list(candidates)} on {tune_on!r}; choose from {', '.join(accurate)}")
    if data.candidates("test") is not None:
        raise ConfigError(
            "a data set that was split by 'new-items' tests items about which these models know nothing. "
            "Attributes rank them: concf evaluate --catalogue"
        )
    for model in candidates.values():
        model.refuse_if_absent()
    refuse_other_metric(candidates, data, tune_on)
    voters = [name for name, model in candidates.items() if model.make is not Trained]
    if fusions and (len(voters) < 2 or data.has_new_users):
        why = (
            "users who train, not of those whom protocol 'new-users' holds out"
            if data.has_new_users
            else (f"at least two baselines; found {', '.join(voters) or 'none'}")
        )
        raise ConfigError(f"{option('fusions', True)}: lists are fused of {why}")
    splits = _splits(data, seeds)
    data.note_if_few()
    refit = refit and not data.has_new_users
    figures = Figures(tune_on, tuple(at), tuple(metrics), keep_users=seeds == 1, refit=refit)
    measurements = Measurements(figures, splits, ResultsLog(Path(log) if log else None), engine, workers)
    entrants = _entrants(candidates, measurements, tune_on, voters if fusions else [])
    return Comparison(
        sorted(entrants, key=lambda entrant: -entrant.mean(tune_on)), names, tune_on, list(measurements.splits),
        [split.hash for split in splits], data.recipe.protocol.name, str(data.recipe.source["name"]),
        [len(split.evaluated) for split in splits],
    )  # fmt: skip


def _splits(data: Split, seeds: int) -> list[Split]:
    """The data set's own split and those of the next seeds, which must differ: equal splits are no evidence."""
    splits = [data]
    if seeds > 1 and data.recipe.protocol.name not in ("given", "time"):
        splits += [data.with_seed(data.recipe.seed + k) for k in range(1, seeds)]
    if len({split.hash for split in splits}) < seeds:
        raise ConfigError(
            f"protocol {data.recipe.protocol.name!r} has one split only, whatever the seed; compare with seeds 1"
        )
    return splits


def _entrants(
    candidates: Mapping[str, Candidate], measurements: Measurements, tune_on: str, fused: Sequence[str]
) -> list[Entrant]:
    """Search all grids on validation, then measure the chosen settings on test. fused: the baselines to be fused"""
    seeds = list(measurements.splits)
    single = [name for name, model in candidates.items() if all(len(tried) == 1 for tried in model.grid.values())]
    fixed: list[Wanted] = [(name, next(candidates[name].settings()), seed, "test") for name in single for seed in seeds]
    chosen = _choose(candidates, measurements, tune_on, fixed)
    settings: dict[str, Model] = {name: candidates[name].at(point) for name, (point, _) in chosen.items()}
    edges = {name: at_edges(candidates[name].grid, point) for name, (point, _) in chosen.items()}
    validation = {name: figure for name, (_, figure) in chosen.items()}
    voters = {name: candidates[name].at(chosen[name][0]) for name in fused}
    some = fusions_of(voters, tune_on, max(measurements.figures.at)) if voters else {}
    settings |= some
    validated: list[Wanted] = [(name, each, seeds[0], "valid") for name, each in some.items()]
    tested: list[Wanted] = [(name, each, seed, "test") for name, each in settings.items() for seed in seeds]
    measurements.measure([*validated, *tested])
    validation |= {cell[0]: measurements.get(*cell)["mean"][tune_on] for cell in validated}

    entrants = []
    for name in settings:
        cells = [measurements.get(name, settings[name], seed, "test") for seed in seeds]
        entrants.append(Entrant(
            name, settings[name].model_dump(), validation[name], edges.get(name, []),
            measurements.figures.refits(settings[name], "test"),
            [cell["mean"] for cell in cells], [cell["fit_seconds"] for cell in cells],
            {metric: np.array(row) for metric, row in cells[0].get("per_user", {}).items()},
        ))  # fmt: skip
    return entrants


def _choose(
    candidates: Mapping[str, Candidate], measurements: Measurements, tune_on: str, fixed: list[Wanted]
) -> dict[str, tuple[Point, float]]:
    """Name -> the best point of its grid and its validation figure. All searches go on together, a round at a time.

    fixed: what is to be measured whatever is chosen; it is measured in the first round
    """
    seed = next(iter(measurements.splits))
    searches = {
        name: search([len(tried) for tried in model.grid.values()], model.every_point)
        for name, model in candidates.items()
    }
    points = {name: next(each) for name, each in searches.items()}
    chosen = {}
    while points:
        wanted = {
            name: [(name, candidates[name].at(at), seed, "valid") for at in some] for name, some in points.items()
        }
        measurements.measure([*chain(*wanted.values()), *fixed])
        for name, cells in wanted.items():
            try:
                points[name] = searches[name].send([measurements.get(*cell)["mean"][tune_on] for cell in cells])
            except StopIteration as end:
                chosen[name] = end.value
                del points[name]
    return {name: chosen[name] for name in candidates}


def comparison_rows(comparison: Comparison, test: str = "t") -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean ± standard deviation of each metric, p against the first, seconds to fit, settings."""
    header = ["model", *map(short, comparison.metrics), f"p ({short(comparison.tuned_on)})", "fit s", "settings"]
    rows = []
    for model in comparison.as_dict(test)["models"]:
        figures = [f"{model['mean'][metric]:.4f} ± {model['std'][metric]:.4f}" for metric in comparison.metrics]
        p = model["p_against_first"][comparison.tuned_on]
        settings = settings_line(model["settings"], model["at_grid_edge"])
        rows.append([
            model["model"], *figures, "best" if p is None else f"{p:.2g}", f"{model['fit_seconds']:.1f}", settings,
        ])  # fmt: skip
    return header, rows
