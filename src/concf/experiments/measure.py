"""The measurements of a comparison: what each is known by, and all that are independent by several workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.experiments.contenders import Trained
from concf.experiments.results_log import ResultsLog
from concf.model.baselines.table import Baseline, Candidate
from concf.runtime.executors import execute
from concf.runtime.progress import working

A_GPU = 6  # runs that share a card well


@dataclass(frozen=True)
class Figures:
    """What is measured: validation by one figure, test by all; keep_users: the figures of single users, too."""

    tune_on: str
    at: tuple[int, ...]
    metrics: tuple[str, ...]
    keep_users: bool

    def found(self, name: str, settings: Baseline, split: Split, on: str, book: ResultsLog) -> dict[str, Any] | None:
        """The cell, if it was measured."""
        cell = book.find(self._key(name, settings, split, on))
        if cell is None or (on == "valid" and self.tune_on not in cell["mean"]):
            return None
        return None if on == "test" and self.keep_users and "per_user" not in cell else cell

    def add(
        self, name: str, settings: Baseline, split: Split, on: str, cell: dict[str, Any], book: ResultsLog
    ) -> dict[str, Any]:
        """Take down a cell; other validation figures of the same settings stay beside it."""
        key = self._key(name, settings, split, on)
        known = (book.find(key) or {"mean": {}})["mean"] if on == "valid" else {}
        return book.add(key, cell | {"mean": known | cell["mean"]})

    def _key(self, name: str, settings: Baseline, split: Split, on: str) -> dict[str, Any]:
        key: dict[str, Any] = {"model": name, "settings": settings.model_dump(), "split": split.hash, "on": on}
        if on == "valid":
            key |= {"without": "train"}  # what was left out of lists; older versions left out the test part too
        if on == "test":
            key |= {"at": list(self.at), "metrics": list(self.metrics), "seed": split.recipe.seed}
        return key

    def measure(self, settings: Baseline, split: Split, on: str) -> dict[str, Any]:
        """Fit on the training part, and evaluate."""
        begin = time.perf_counter()
        if isinstance(settings, Trained):
            fitted = settings.fit_split(split)
        else:
            fitted = settings.fit(split.train, seed=split.recipe.seed)
        seconds = time.perf_counter() - begin
        if on == "valid":
            metric, _, n = self.tune_on.partition("@")
            value = evaluate(fitted, split, on="valid", at=[int(n)], metrics=[metric]).means()[self.tune_on]
            return {"mean": {self.tune_on: value}, "fit_seconds": seconds}
        result = evaluate(fitted, split, on="test", at=self.at, metrics=self.metrics)
        users = {"per_user": {metric: row.tolist() for metric, row in result.per_user.items()}}
        return {"mean": result.means(), "fit_seconds": seconds} | (users if self.keep_users else {})


@dataclass(frozen=True)
class Job:
    """Measurements of a split that one worker makes, because they come of one fit: (model, settings, on) each."""

    seed: int
    cells: tuple[tuple[str, Baseline, str], ...]


@dataclass
class Measuring:
    """Makes the measurements of a job; it is given the first split, and divides it anew where another is asked for."""

    data: Split
    wanted: Figures

    def __call__(self, job: Job) -> list[dict[str, Any]]:
        """A cell for each."""
        if job.seed not in self._splits:
            self._splits.clear()  # one is enough: jobs come split by split
            self._splits[job.seed] = self.data.with_seed(job.seed)
        split = self._splits[job.seed]
        return [self.wanted.measure(settings, split, on) for _, settings, on in job.cells]

    @cached_property
    def _splits(self) -> dict[int, Split]:
        return {self.data.recipe.seed: self.data}


def measure_ahead(
    entrants: Mapping[str, Candidate], splits: Sequence[Split], wanted: Figures, book: ResultsLog, engine: str,
    workers: int | None = None,
) -> None:  # fmt: skip
    """Put every cell of a comparison into the book: first what depends on nothing, then the tests of what was chosen.

    What has no settings to choose is tested in the first round.
    """
    first, later = [], []
    points = {name: list(model.settings()) for name, model in entrants.items()}
    for name, tried in points.items():
        first += [(name, settings, splits[0], "valid") for settings in tried]
        if len(tried) == 1:
            first += [(name, tried[0], split, "test") for split in splits]
    _measure(first, splits, wanted, book, engine, workers)
    for name, tried in points.items():
        if len(tried) > 1:
            cells = [wanted.found(name, settings, splits[0], "valid", book) or {} for settings in tried]
            best = max(range(len(tried)), key=lambda place: cells[place]["mean"][wanted.tune_on])
            later += [(name, tried[best], split, "test") for split in splits]
    _measure(later, splits, wanted, book, engine, workers)


def _measure(
    cells: list[tuple[str, Baseline, Split, str]], splits: Sequence[Split], wanted: Figures, book: ResultsLog,
    engine: str, workers: int | None,
) -> None:  # fmt: skip
    jobs: dict[Any, list[tuple[str, Baseline, str]]] = {}
    for name, settings, split, on in cells:
        if wanted.found(name, settings, split, on, book) is None:
            run = settings.preset if isinstance(settings, Trained) else f"{name} {settings.model_dump()}"
            jobs.setdefault((split.recipe.seed, run), []).append((name, settings, on))
    by_seed = {split.recipe.seed: split for split in splits}
    asked = [Job(seed, tuple(each)) for (seed, _), each in sorted(jobs.items(), key=lambda job: job[0][0])]
    gpus = 1 / A_GPU if any(isinstance(settings, Trained) for _, settings, _, _ in cells) else 0.0
    work = Measuring(replace(splits[0]), wanted)  # without the matrices that it has made by now
    with working("measuring", len(asked)) as advance, closing(execute(work, asked, engine, workers, gpus)) as measured:
        for job, future in measured:
            for (name, settings, on), cell in zip(job.cells, future.result(), strict=True):
                wanted.add(name, settings, by_seed[job.seed], on, cell, book)
            advance(1)
