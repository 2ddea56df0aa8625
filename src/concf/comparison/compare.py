"""Comparison of recommenders on the same splits: tuned on validation, refitted with it, compared on test."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain, combinations, product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.baselines.table import Candidate
from concf.comparison.measure import Fit, Measurements, Task
from concf.comparison.models import Grid, Model, check_metric, named_models, with_grid
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.errors import ConfigError, MissingExtraError, note, option
from concf.evaluation.evaluate import at_lengths
from concf.evaluation.metrics import ACCURACY
from concf.evaluation.significance import holm, paired_t
from concf.runtime.arguments import check_count
from concf.runtime.settings import read_toml
from concf.runtime.text_tables import settings_line, short

Point = tuple[int, ...]  # position of each setting's value in its row of the grid
Search = Generator[list[Point], list[float], tuple[Point, float]]  # points to measure -> their scores; then the best

METRICS = ("recall@50", "ndcg@50", "recall@20", "ndcg@20")
EVERY_POINT = 60  # most points of a built-in grid that is measured whole


@dataclass
class Entrant:
    """Model of a comparison, with its chosen settings and test metrics."""

    name: str
    settings: dict[str, Any]  # chosen on the first split's validation part
    validation: float | None
    edges: list[str]  # settings whose chosen value is the first or last of several: a wider grid may hold a better one
    refitted: bool  # whether the tested model was fitted on training and validation pairs
    tests: list[dict[str, float]]  # mean test metrics of each split
    fit_seconds: list[float]
    per_user: dict[str, NDArray[np.float64]]  # with a single split, "recall@50" -> [e] of each evaluated user
    everyone: list[dict[str, float]]  # mean test metrics of all users, warm or not, if split by time; else empty

    def mean(self, metric: str) -> float:
        """Mean over the splits."""
        return float(np.mean([test[metric] for test in self.tests]))

    def std(self, metric: str) -> float:
        """Sample standard deviation over the splits; 0 for a single one."""
        return float(np.std([test[metric] for test in self.tests], ddof=1)) if len(self.tests) > 1 else 0.0


@dataclass
class Comparison:
    """Entrants, best first by the metric that was tuned on."""

    entrants: list[Entrant]
    metrics: list[str]
    tuned_on: str
    seeds: list[int]
    split_hashes: list[str]
    protocol: str
    source: str
    evaluated_users: list[int]  # of each split

    def p_values(self, metric: str) -> list[float | None]:
        """Holm-corrected p (paired t) of each entrant against the first: over splits, or over users of a single split.

        None for the first, and with one split for metrics that single users do not have, such as coverage.
        """
        single = len(self.seeds) == 1
        if single and metric not in self.entrants[0].per_user:
            return [None] * len(self.entrants)
        values = [each.per_user[metric] if single else [test[metric] for test in each.tests] for each in self.entrants]
        first, *others = map(np.asarray, values)
        return [None, *(holm([paired_t(first, other) for other in others]) if others else [])]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the tables, and the metrics of every split."""
        p = {metric: self.p_values(metric) for metric in self.metrics}
        return {
            "source": self.source,
            "protocol": self.protocol,
            "seeds": self.seeds,
            "split_hashes": self.split_hashes,
            "evaluated_users": self.evaluated_users,
            "tuned_on": f"validation {self.tuned_on}, seed {self.seeds[0]}",
            "test": f"paired t, Holm-corrected, over {'splits' if len(self.seeds) > 1 else 'users'}",
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
                    "everyone": entrant.everyone,
                }
                for rank, entrant in enumerate(self.entrants)
            ],
        }


def compare(
    data: Split, models: Sequence[str] | Mapping[str, Candidate] = (), *, grid: Grid | str | Path | None = None,
    seeds: int = 5, metrics: Sequence[str] = METRICS, log: str | Path | None = None, engine: str | None = None,
    workers: int | None = None,
) -> Comparison:  # fmt: skip
    """Tune every model on the first split's validation part, and test the chosen settings on every split.

    data:   a prepared data set; split k has the seed of `data` plus k and the same protocol
    models: names of `BASELINES`, `concf:strong` or another preset, `concf:bpr` or another objective alone, or your own
            candidates by name. A grid of more than 60 points is climbed from its middle (`search`)
    grid:   settings to search in place of a model's own grid, or a TOML file of them: {"ease": {"regularisation":
            [100, 300]}, "reference": {"consensus.weight": [0.005, 0.01]}}. All points are measured; models that only
            the grid names take part, too
    metrics: such as recall@50; by the first, on validation, settings are chosen and models are ordered
    log:    JSON lines of the measurements; those that it holds are not repeated
    engine: processes or ray (see `executors`): several workers measure, with the same result; None: this process
    workers: how many; None: one for each core

    Before the test, baselines are fitted anew, with the chosen settings, on training and validation pairs, as the
    preset strong does by itself; other presets are tested as they were validated. With the protocol `new-users` nothing
    is ever fitted on the users that validate or test; baselines are folded in.
    """
    seeds, names = check_count("seeds", seeds), at_lengths(metrics)
    workers = None if workers is None else check_count("workers", workers)
    searched, tune_on = read_toml(Path(grid)) if isinstance(grid, str | Path) else grid or {}, names[0]
    if not isinstance(models, Mapping):
        models = {} if searched and not models else named_models(list(models))
    candidates = with_grid(models, searched)
    if tune_on.partition("@")[0] not in ACCURACY or not candidates:
        problem = f"cannot choose settings of {list(candidates)} by {tune_on!r}"
        raise ConfigError(f"{problem}; expected a model, and as the first metric one of {', '.join(ACCURACY)}")
    if data.candidates("test") is not None:
        fix = "Attributes rank them: concf evaluate --catalogue"
        raise ConfigError(f"protocol 'new-items' tests items without interactions, which no model here ranks. {fix}")
    for name, model in candidates.items():
        if model.library is not None and not find_spec(model.library):  # at once, not after an hour of tuning
            raise MissingExtraError(model.library, "baselines", f"the baseline {name}")
        if model.timed and (data.interactions.timestamp is None or data.has_new_users):
            lack = "new users" if data.has_new_users else "no times"
            raise ConfigError(f"{name} learns from the times of known users and the data set has {lack}. Leave it out")
        if model.timed and data.recipe.protocol.time_cut != "all":
            note(f"{name}: its metrics may be too high: it learns from pairs newer than held-out ones. Split by time")
    check_metric(candidates, data, tune_on)
    splits = [data]
    if seeds > 1 and data.recipe.protocol.name not in ("given", "time"):
        splits += [data.with_seed(data.recipe.seed + k) for k in range(1, seeds)]
    if len({split.hash for split in splits}) < seeds:  # equal splits are no evidence
        raise ConfigError(f"protocol {data.recipe.protocol.name!r} has one split only; choose {option('seeds', 1)}")
    data.note_if_few()
    by_seed = {split.recipe.seed: replace(split) for split in splits}  # to workers, without cached matrices
    fit = Fit(by_seed, tuple(names), keep_users=seeds == 1)
    entrants = _entrants(candidates, Measurements(fit, ResultsLog(Path(log) if log else None), engine, workers))
    return Comparison(
        sorted(entrants, key=lambda entrant: -entrant.mean(tune_on)),
        sorted(names, key=lambda name: int(name.partition("@")[2])), tune_on, list(by_seed),
        [split.hash for split in splits], data.recipe.protocol.name, str(data.recipe.source["name"]),
        [len(split.evaluated) for split in splits],
    )  # fmt: skip


def _entrants(candidates: Mapping[str, Candidate], measurements: Measurements) -> list[Entrant]:
    """Search all grids on validation, then measure the chosen settings on test.

    All searches advance together, a round at a time. Models without a choice are tested in the first round, so that all
    models of one training are measured at once.
    """
    fit, seeds = measurements.fit, list(measurements.fit.splits)
    searches, tests = {}, list[Task]()
    for name, candidate in candidates.items():
        sizes = [len(values) for values in candidate.grid.values()]
        searches[name] = search(sizes, candidate.every_point)
        if max(sizes, default=1) == 1:
            tests += [(name, next(candidate.settings()), seed, "test") for seed in seeds]
    points = {name: next(each) for name, each in searches.items()}
    chosen: dict[str, tuple[Point, float]] = {}  # best point of each grid, and its validation metric
    while points:
        tasks = {name: [(name, candidates[name].at(at), seeds[0], "valid") for at in points[name]] for name in points}
        measurements.measure([*chain(*tasks.values()), *tests])
        for name, row in tasks.items():
            try:
                points[name] = searches[name].send([measurements.get(*task)["mean"][fit.tune_on] for task in row])
            except StopIteration as end:
                chosen[name] = end.value
                del points[name]
    settings: dict[str, Model] = {name: candidates[name].at(chosen[name][0]) for name in candidates}
    measurements.measure([(name, settings[name], seed, "test") for name in settings for seed in seeds])
    entrants = []
    for name, model in settings.items():
        point, validation = chosen[name]
        cells = [measurements.get(name, model, seed, "test") for seed in seeds]
        at = zip(candidates[name].grid.items(), point, strict=True)
        edges = [setting for (setting, values), k in at if len(values) > 1 and k in (0, len(values) - 1)]
        entrants.append(Entrant(
            name, model.model_dump(), validation, edges, fit.refits(model, "test"),
            [cell["mean"] for cell in cells], [cell["fit_seconds"] for cell in cells],
            {metric: np.array(row) for metric, row in cells[0].get("per_user", {}).items()},
            [cell["everyone"] for cell in cells if "everyone" in cell],
        ))  # fmt: skip
    return entrants


def search(sizes: Sequence[int], every_point: bool = False) -> Search:
    """Yield points to measure, each once, receive their scores, and return the best point and its score.

    All points of a small grid are measured. A large one is climbed from its middle: to better neighbouring values of
    one setting, or of two at once, until no such neighbour is better. Two at once, since the best weight of unobserved
    pairs, say, depends on the penalty: neither helps alone.

    sizes: number of values of each setting. The first of equal scores is the best.
    every_point: measure all points of a large grid too
    """
    if every_point or prod(sizes) <= EVERY_POINT:
        points = list(product(*map(range, sizes)))
        scores = dict(zip(points, (yield points), strict=True))
        best = max(points, key=lambda point: scores[point])
        return best, scores[best]
    current, axes = tuple((size - 1) // 2 for size in sizes), range(len(sizes))
    scores = dict(zip([current], (yield [current]), strict=True))
    directions: list[tuple[int, ...]] = [*combinations(axes, 1), *combinations(axes, 2)]
    at, settled = 0, 0  # settled: directions in a row without a better neighbour
    while settled < len(directions):
        steps = [(k - 1, k + 1) if axis in directions[at] else (k,) for axis, k in enumerate(current)]
        near = [point for point in product(*steps) if all(0 <= k < n for k, n in zip(point, sizes, strict=True))]
        unknown = [point for point in near if point not in scores]
        if unknown:
            scores |= dict(zip(unknown, (yield unknown), strict=True))
        best = max([current, *near], key=lambda point: scores[point])
        if best == current:
            at, settled = (at + 1) % len(directions), settled + 1
        else:
            current, settled = best, 0
    return current, scores[current]


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and rows: mean ± standard deviation of each metric, p against the first, seconds to fit, settings.

    With a split by time, the metric that was tuned on has a second column, of everyone: new users and items too.
    """
    tuned = comparison.tuned_on
    by_time = any(entrant.everyone for entrant in comparison.entrants)
    header = ["model", *map(short, comparison.metrics), *[f"{short(tuned)}, everyone"] * by_time]
    rows = []
    for model in comparison.as_dict()["models"]:
        means = [f"{model['mean'][metric]:.4f} ± {model['std'][metric]:.4f}" for metric in comparison.metrics]
        everyone = [f"{np.mean([split[tuned] for split in model['everyone']]):.4f}"] if by_time else []
        p = model["p_against_first"][tuned]
        settings = settings_line(model["settings"], model["at_grid_edge"])
        seconds = f"{model['fit_seconds']:.1f}"
        rows.append([model["model"], *means, *everyone, "best" if p is None else f"{p:.2g}", seconds, settings])
    return [*header, f"p ({short(tuned)})", "fit s", "settings"], rows
