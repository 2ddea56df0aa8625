"""Trials of a search, in rounds: those of a round are drawn together from the rounds before, and can run at once.

What is drawn depends on the seed, the number of the trial and the earlier rounds: not on who trains them, nor when
they end, nor on a kill in between.
"""

from __future__ import annotations

import gc
import time
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.experiments.search_space import contains, nested
from concf.experiments.study import new_study
from concf.runtime.executors import RUNS_PER_GPU, execute
from concf.runtime.seeds import derive_seed
from concf.runtime.settings import flat
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.train import train

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from concf.experiments.search_space import Space

STATES = {"finished": "COMPLETE", "stopped": "PRUNED", "refused": "PRUNED", "failed": "FAIL"}  # ours -> Optuna's


def resolve_target(settings: ConCFSettings, target: str | None) -> str:
    """Whose validation figure counts: the target if the settings have it; None: the one that `training.watch` names."""
    names = list(settings.heads)
    if settings.several:
        names = [CONSENSUS, R_CONSENSUS, *names]
    target = target or (settings.training.watch if settings.training.watch in names else names[0])
    if target not in names:
        raise ConfigError(f"target {target!r}: choose from {', '.join(names)}")
    return target


@dataclass
class Watch:
    """Called with the record of every epoch: keeps the best figure, and ends a trial below the median of the others.

    first: the epoch before which no trial is ended, the first with consensus loss
    """

    trial: optuna.Trial
    target: str
    first: int = 0
    best: float | None = None
    epochs: int = 0

    def __call__(self, record: dict[str, Any]) -> None:
        """Report an epoch."""
        from optuna import TrialPruned

        self.epochs += 1
        if self.target in record.get("validation", {}):
            figure = float(record["validation"][self.target])
            self.best = figure if self.best is None else max(self.best, figure)
            self.trial.report(self.best, record["epoch"])
            if record["epoch"] >= self.first and self.trial.should_prune():
                raise TrialPruned


@dataclass(frozen=True)
class Objective:
    """Draws the settings of a trial, and trains with them."""

    data: Split
    base: ConCFSettings
    space: Space
    target: str
    seed: int
    device: str | torch.device | None

    def draw(self, number: int, before: list[FrozenTrial]) -> optuna.Trial:
        """A trial of a study in memory that holds those before: the preset first, then what TPE draws.

        The preset's trial has the settings whose preset value the space contains.
        """
        from optuna.samplers import TPESampler

        study = new_study()
        study.add_trials(before)
        study.sampler = TPESampler(seed=derive_seed(self.seed, number) % 2**32)
        if number > 0:
            return study.ask(self.space)
        preset = {name: "none" if value is None else value for name, value in flat(self.base.model_dump()).items()}
        drawn = {name: each for name, each in self.space.items() if contains(each, preset[name])}
        study.enqueue_trial({name: preset[name] for name in drawn})
        return study.ask(drawn)

    def __call__(self, trial: optuna.Trial) -> FrozenTrial:
        """Train once; only the preset, which has none before it, may not be refused."""
        from optuna import TrialPruned
        from optuna.trial import TrialState

        begin, watch, state, reason = time.perf_counter(), Watch(trial, self.target), "finished", ""
        try:
            settings = choose_settings(self.base, nested(trial.params))
            resolve_target(settings, self.target)
            watch.first = settings.consensus.first_consensus_epoch
            train(self.data, settings, seed=self.seed, device=self.device, watch=watch)
        except TrialPruned:
            state = "stopped"
        except ConfigError as error:
            if trial.number == 0:
                raise
            state, reason = "refused", str(error)
        except (DataError, MemoryError, torch.OutOfMemoryError) as error:
            state, reason = "failed", str(error) or type(error).__name__
        outcome = {"state": state, "validation": watch.best, "epochs": watch.epochs, "reason": reason}
        for name, value in (outcome | {"seconds": time.perf_counter() - begin}).items():
            trial.set_user_attr(name, value)
        gc.collect()  # a trainer refers to itself; what it holds of a GPU is free only now
        return trial.study.tell(trial, watch.best if state == "finished" else None, TrialState[STATES[state]])


def run_round(
    objective: Objective, study: optuna.Study, at_once: int, trials: int, engine: str | None, workers: int | None
) -> int:
    """Add the rest of the current round to the study, up to `trials` in all; returns the number of new trials.

    The preset is a round of its own, trained here. Settings that were tried before are not trained again.
    """
    done = study.get_trials(deepcopy=False)
    begin, end = 0, 1
    if done:
        begin = 1 + (len(done) - 1) // at_once * at_once
        end = min(begin + at_once, trials)
    drawn = [objective.draw(number, done[:begin]) for number in range(len(done), end)]
    tried = {_key(trial): trial for trial in done}
    jobs = {_key(trial): trial for trial in reversed(drawn) if _key(trial) not in tried}
    gpus = 0.0 if str(objective.device) == "cpu" else 1 / RUNS_PER_GPU
    with closing(execute(objective, list(jobs.values())[::-1], engine if done else None, workers, gpus)) as executed:
        new = {_key(trial): future.result() for trial, future in executed}
    for trial in drawn:
        if jobs.get(_key(trial)) is trial:
            study.add_trial(new[_key(trial)])
        else:
            repeated = deepcopy((tried | new)[_key(trial)])
            repeated.user_attrs |= {"seconds": 0.0, "repeats": True}
            study.add_trial(repeated)
    return len(drawn)


def _key(trial: optuna.Trial | FrozenTrial) -> str:
    return str(sorted(trial.params.items()))
