"""The measurements of a comparison, each a cell of a log: fits, evaluated on validation or test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from concf.baselines.table import Baseline
from concf.data.split import Split
from concf.data.weights import UNWEIGHTED
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.experiments.contenders import Model, Several, Trained
from concf.experiments.results_log import ResultsLog
from concf.runtime.executors import RUNS_PER_GPU, execute
from concf.runtime.progress import working

Cell = dict[str, Any]  # {"mean": {"recall@50": ...}, "fit_seconds": ..., "per_user"?: {"recall@50": [e]}}
Wanted = tuple[str, Model, int, str]  # name of the model, settings, seed of the split, valid or test


@dataclass(frozen=True)
class Figures:
    """What is measured: validation by one figure, test by all.

    keep_users: the figures of single users, too; refit: baselines are tested as fitted on training and validation pairs
    """

    tune_on: str
    at: tuple[int, ...]
    metrics: tuple[str, ...]
    keep_users: bool
    refit: bool

    def refits(self, settings: Model, on: str) -> bool:
        """Whether these settings are fitted on training and validation pairs, rather than on training pairs alone."""
        return self.refit and (settings.refits if isinstance(settings, Several) else on == "test")

    def measure(self, fitted: Any, split: Split, on: str) -> Cell:
        """Evaluate a fitted model."""
        if on == "valid":
            metric, _, n = self.tune_on.partition("@")
            return {"mean": evaluate(fitted, split, on="valid", at=[int(n)], metrics=[metric]).means()}
        result = evaluate(fitted, split, on="test", at=self.at, metrics=self.metrics)
        users = {"per_user": {metric: row.tolist() for metric, row in result.per_user.items()}}
        return {"mean": result.means()} | (users if self.keep_users else {})


def fold_in(settings: Baseline, split: Split, seed: int) -> Any:
    """A baseline fitted to the users who train, for the histories of those who do not."""
    if not hasattr(settings, "fold_in"):
        raise ConfigError(
            f"{type(settings).__name__} has no fold_in(fitted, histories), and cannot rank for the users whom protocol "
            "'new-users' holds out. Leave it out, or compare on another protocol"
        )
    train = split.train[np.diff(split.train.indptr) > 0]
    return settings.fold_in(settings.fit(train, seed=seed), split.history)


@dataclass(frozen=True)
class Fit:
    """Fits a model once, and measures all that is wanted of it; some trainings hold several models."""

    figures: Figures
    splits: dict[int, Split]  # by seed

    def __call__(self, job: Sequence[Wanted]) -> list[Cell]:
        """A cell for each."""
        _, settings, seed, on = job[0]
        split, begin = self.splits[seed], time.perf_counter()
        if isinstance(settings, Several):
            fitted = settings.train(split, self.figures.refit)
        elif split.has_new_users:
            fitted = fold_in(settings, split, seed)
        else:
            pairs = split.log(("train", "valid")) if self.figures.refits(settings, on) else split.train
            fitted = settings.fit(pairs, seed=seed)
        seconds = {"fit_seconds": time.perf_counter() - begin}
        cells = []
        for _, each, _, on in job:
            model = each.recommender(fitted, split) if isinstance(each, Several) else fitted
            if on == "valid" and isinstance(each, Several) and each.refits and not split.has_new_users:
                cell: Cell = {"mean": {self.figures.tune_on: each.validation(fitted, self.figures.tune_on)}}
            else:
                cell = self.figures.measure(model, split, on)
            cells.append(cell | seconds)
        return cells


class Measurements:
    """The cells of a comparison. engine, workers: who measures what the log does not have, see `executors`."""

    def __init__(
        self, figures: Figures, splits: Sequence[Split], log: ResultsLog, engine: str | None, workers: int | None
    ) -> None:
        self.figures, self.log, self.engine, self.workers = figures, log, engine, workers
        self.splits = {split.recipe.seed: replace(split) for split in splits}  # to workers, without cached matrices

    def measure(self, wanted: Iterable[Wanted]) -> None:
        """Add to the log what it does not have. What comes of one fit is measured by one worker."""
        fits: dict[Any, list[Wanted]] = {}
        for each in wanted:
            name, settings, seed, on = each
            if self.find(*each) is None:
                run = settings.training if isinstance(settings, Several) else f"{name} {settings.model_dump()}"
                fits.setdefault((seed, run, self.figures.refits(settings, on)), []).append(each)
        jobs = [fits[key] for key in sorted(fits, key=lambda key: key[0])]
        gpus = 1 / RUNS_PER_GPU if any(isinstance(job[0][1], Trained) for job in jobs) else 0.0
        executed = execute(Fit(self.figures, self.splits), jobs, self.engine, self.workers, gpus)
        with working("measuring", len(jobs)) as advance, closing(executed):
            for job, future in executed:
                for each, cell in zip(job, future.result(), strict=True):
                    key = self._key(*each)
                    known = (self.log.find(key) or {"mean": {}})["mean"]  # other validation figures of these settings
                    self.log.add(key, cell | {"mean": known | cell["mean"]})
                advance(1)

    def find(self, name: str, settings: Model, seed: int, on: str) -> Cell | None:
        """The cell, if the log has it with all the figures."""
        cell = self.log.find(self._key(name, settings, seed, on))
        if cell is None or (on == "valid" and self.figures.tune_on not in cell["mean"]):
            return None
        return None if on == "test" and self.figures.keep_users and "per_user" not in cell else cell

    def get(self, name: str, settings: Model, seed: int, on: str) -> Cell:
        """The cell, which was measured."""
        cell = self.find(name, settings, seed, on)
        assert cell is not None
        return cell

    def _key(self, name: str, settings: Model, seed: int, on: str) -> dict[str, Any]:
        split = self.splits[seed]
        key = {"model": name, "settings": settings.model_dump(), "split": split.hash, "on": on}
        if split.weights != UNWEIGHTED:
            key["weights"] = split.weights.model_dump()
        if on == "valid":
            return key | {"without": "train"}  # the part that is left out of the lists
        fitted_on = {"fitted_on": "train and valid"} if self.figures.refits(settings, on) else {}
        return key | fitted_on | {"at": list(self.figures.at), "metrics": list(self.figures.metrics), "seed": seed}
