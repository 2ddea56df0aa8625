"""Trials in rounds: those of a round are drawn together, know of the rounds before alone, and can be tried at once.

What a search comes to depends on how many a round has, and not on who tries them, nor when they are done.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from concf.data.split import Split
from concf.experiments.search_space import Space
from concf.experiments.study import OUTCOME, STATES, median_pruner, tried
from concf.runtime.executors import execute, one_after_the_other
from concf.runtime.seeds import derive_seed
from concf.training.config.settings import ConCFSettings

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from concf.experiments.tune import Search

A_GPU = 6  # trials that share a card well


@dataclass(frozen=True)
class Job:
    """Values to try, and the trials that these are held against."""

    number: int
    values: dict[str, Any]
    before: list[FrozenTrial]


@dataclass(frozen=True)
class Trying:
    """Tries a job: what it came to, and its figures by epoch."""

    data: Split
    base: ConCFSettings
    space: Space
    target: str
    seed: int
    device: str | torch.device | None

    def __call__(self, job: Job) -> tuple[dict[str, Any], dict[int, float]]:
        """One training."""
        from concf.experiments.tune import Search

        study = _past(job.before)
        study.enqueue_trial(job.values)
        search = Search(study, self.data, self.base, self.space, self.target, self.seed, self.device)
        trial = study.ask(search.space)
        outcome = search.outcome(trial, is_preset=False)
        gc.collect()  # a trainer refers to itself; what it holds of a GPU is free only now
        return outcome, dict(study.get_trials(deepcopy=False)[-1].intermediate_values)


def step_round(search: Search, size: int, trials: int, engine: str | None, workers: int | None) -> int:
    """The rest of the round that the search is in, up to `trials`; gives how many trials that were.

    The preset is a round of its own. A round that a kill has cut short is drawn again as it was.
    """
    done = len(tried(search.study))
    if done == 0:
        search.step()
        return 1
    begin = 1 + (done - 1) // size * size
    before = tried(search.study)[:begin]
    drawn = {number: _drawn(search, number, before) for number in range(begin, min(begin + size, trials))}
    there = {_name(each.params): (each.user_attrs[OUTCOME], each.intermediate_values) for each in tried(search.study)}
    jobs = [Job(number, values, before) for number, values in drawn.items() if _name(values) not in there]
    first = {_name(job.values): job for job in reversed(jobs)}  # of those drawn twice
    found = _tried(search, [job for job in jobs if first[_name(job.values)] is job], engine, workers)
    for number in range(done, begin + len(drawn)):
        name = _name(drawn[number])
        if number in found:
            outcome, figures = there[name] = found[number]
        else:
            outcome, figures = there[name]
            outcome = outcome | {"seconds": 0.0, "repeats": True}
        _add(search, drawn[number], outcome, figures)
    return begin + len(drawn) - done


def _tried(
    search: Search, jobs: list[Job], engine: str | None, workers: int | None
) -> dict[int, tuple[dict[str, Any], dict[int, float]]]:
    work = Trying(search.data, search.base, search.asked, search.target, search.seed, search.device)
    if engine is None:
        trying = one_after_the_other(work, jobs)
    else:
        trying = execute(work, jobs, engine, workers, 0.0 if str(search.device) == "cpu" else 1 / A_GPU)
    with closing(trying):
        return {job.number: future.result() for job, future in trying}


def _drawn(search: Search, number: int, before: list[FrozenTrial]) -> dict[str, Any]:
    from optuna.samplers import TPESampler

    study = _past(before)
    study.sampler = TPESampler(seed=derive_seed(search.seed, number) % 2**32)
    return dict(study.ask(search.space).params)


def _past(before: list[FrozenTrial]) -> optuna.Study:
    """A study that holds these trials, in memory."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", pruner=median_pruner())
    optuna.logging.set_verbosity(verbosity)
    study.add_trials(before)
    return study


def _add(search: Search, values: dict[str, Any], outcome: dict[str, Any], figures: Mapping[int, float]) -> None:
    """Take down a trial in one piece."""
    from optuna.trial import TrialState, create_trial

    figure = outcome["validation"] if outcome["state"] == "finished" else None
    search.study.add_trial(
        create_trial(
            state=TrialState[STATES[outcome["state"]]], value=figure, params=values, distributions=search.space,
            intermediate_values=dict(figures), user_attrs={OUTCOME: outcome},
        )
    )  # fmt: skip


def _name(values: Mapping[str, Any]) -> str:
    return str(sorted(values.items()))
