"""Measurements of a comparison, each a cell of the results log: models fitted and evaluated on validation or test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from concf.comparison.models import Model, Trained
from concf.comparison.results_log import ResultsLog
from concf.data.split import Split
from concf.data.weights import UNWEIGHTED
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.runtime.executors import RUNS_PER_GPU, execute
from concf.runtime.progress import working

Cell = dict[str, Any]  # {"mean": {"recall@50": ...}, "fit_seconds": ..., "per_user"?: {"recall@50": [e]}, "everyone"?}
Task = tuple[str, Model, int, str]  # name of the model, settings, seed of the split, valid or test


def device() -> str:
    """Device that baselines are fitted and ranked on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Fit:
    """Fit once, and measure every model that the fit yields: validation by the first metric, test by all."""

    splits: dict[int, Split]  # by seed
    names: tuple[str, ...]  # metrics such as recall@50
    keep_users: bool  # keep per-user metrics

    @property
    def tune_on(self) -> str:
        """Validation metric that chooses the settings."""
        return self.names[0]

    def __call__(self, job: Sequence[Task]) -> list[Cell]:
        """Return a cell for each task."""
        _, settings, seed, on = job[0]
        split, begin = self.splits[seed], time.perf_counter()
        if isinstance(settings, Trained):
            fitted = settings.train(split, self.tune_on)
        elif split.has_new_users:
            if not hasattr(settings, "fold_in"):
                problem = f"{type(settings).__name__} has no fold_in(fitted, histories) for new users"
                raise ConfigError(f"{problem}. Leave it out, or compare on another protocol than 'new-users'")
            train = split.train[np.diff(split.train.indptr) > 0]
            fitted = settings.fold_in(settings.fit(train, seed=seed, device=device()), split.history)
        else:
            parts = ("train", "valid") if self.refits(settings, on) else ("train",)
            pairs = split.train if parts == ("train",) else split.log(parts)
            times = {"times": split.times(parts)} if getattr(settings, "timed", False) else {}
            fitted = settings.fit(pairs, seed=seed, device=device(), **times)
        seconds = {"fit_seconds": time.perf_counter() - begin}
        cells = []
        for _, model, _, on in job:
            if not isinstance(model, Trained):
                cell = self.measure(fitted, split, on, device())
            elif on == "valid" and model.refits and not split.has_new_users:
                cell = {"mean": {self.tune_on: model.validation(fitted, self.tune_on)}}
            else:
                cell = self.measure(model.recommender(fitted, split), split, on)
            cells.append(cell | seconds)
        return cells

    def refits(self, settings: Model, on: str) -> bool:
        """Whether the model is fitted on training and validation pairs, not on training pairs alone."""
        if any(split.has_new_users for split in self.splits.values()):
            return False
        return settings.refits if isinstance(settings, Trained) else on == "test"

    def measure(self, fitted: Any, split: Split, on: str, device: str = "cpu") -> Cell:
        """Evaluate a fitted model."""
        at, metrics = lengths_and_names((self.tune_on,) if on == "valid" else self.names)
        measured = partial(evaluate, fitted, split, at=at, metrics=metrics, device=device)
        result = measured(on="valid" if on == "valid" else "test")
        cell: Cell = {"mean": result.means()}
        if on == "test" and self.keep_users:
            cell["per_user"] = {metric: row.tolist() for metric, row in result.per_user.items()}
        if on == "test" and split.recipe.protocol.time_cut == "all":
            cell["everyone"] = measured(everyone=True).means()
        return cell


def lengths_and_names(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Lengths of the lists, ascending, and the metrics of names such as recall@50."""
    pairs = [name.split("@") for name in names]
    return sorted({int(length) for _, length in pairs}), list(dict.fromkeys(metric for metric, _ in pairs))


class Measurements:
    """Cells of a comparison. engine, workers: where missing cells are measured, see `executors`."""

    def __init__(self, fit: Fit, log: ResultsLog, engine: str | None, workers: int | None) -> None:
        self.fit, self.log, self.engine, self.workers = fit, log, engine, workers

    def measure(self, tasks: Iterable[Task]) -> None:
        """Measure the cells that the log lacks and add them; one worker measures all models of one fit."""
        fits: dict[Any, list[Task]] = {}
        for task in tasks:
            name, settings, seed, on = task
            if self.find(*task) is None:
                run = f"{name} {settings.model_dump()}"
                if isinstance(settings, Trained):  # one run yields several models
                    run = f"{settings.preset} {settings.model_extra}"
                fits.setdefault((seed, run, self.fit.refits(settings, on)), []).append(task)
        jobs = [fits[key] for key in sorted(fits, key=lambda key: key[0])]
        gpus = 1 / RUNS_PER_GPU if any(isinstance(job[0][1], Trained) for job in jobs) else 0.0
        executed = execute(self.fit, jobs, self.engine, self.workers, gpus)
        with working("measuring", len(jobs)) as advance, closing(executed):
            for job, future in executed:
                for task, cell in zip(job, future.result(), strict=True):
                    key = self._key(*task)
                    known = (self.log.find(key) or {"mean": {}})["mean"]  # validation by other metrics
                    self.log.add(key, cell | {"mean": known | cell["mean"]})
                advance(1)

    def find(self, name: str, settings: Model, seed: int, on: str) -> Cell | None:
        """Cell of a task; None unless the log has it with all its metrics."""
        cell = self.log.find(self._key(name, settings, seed, on))
        if cell is None or (on == "valid" and self.fit.tune_on not in cell["mean"]):
            return None
        return None if on == "test" and self.fit.keep_users and "per_user" not in cell else cell

    def get(self, *task: Any) -> Cell:
        """Cell of a task that was measured."""
        return self.find(*task) or {}

    def _key(self, name: str, settings: Model, seed: int, on: str) -> dict[str, Any]:
        split = self.fit.splits[seed]
        key = {"model": name, "settings": settings.model_dump(), "split": split.hash, "on": on}
        if split.weights != UNWEIGHTED:
            key["weights"] = split.weights.model_dump()
        if on == "valid":
            return key | {"without": "train"}  # the part whose items are left out of the lists
        fitted_on = {"fitted_on": "train and valid"} if self.fit.refits(settings, on) else {}
        at, metrics = lengths_and_names(self.fit.names)
        return key | fitted_on | {"at": at, "metrics": metrics, "seed": seed}
