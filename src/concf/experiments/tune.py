"""Settings searched for by Optuna, on the validation part alone; what was tried stands in a folder and is gone on with.

What a trial draws depends on the seed and on the trials before it: a search that was killed goes on to the same end.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.evaluation.validation_metric import fitting_metric
from concf.experiments.search_space import Space, as_toml, default_space, differences, flat, nested, read_space
from concf.experiments.study import BEST, OUTCOME, SearchFolder, tell, tried
from concf.experiments.tune_rounds import step_round
from concf.runtime.arguments import check_count, check_seed
from concf.runtime.progress import working
from concf.runtime.seeds import derive_seed
from concf.training.config.presets import PRESETS, choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.train import train

if TYPE_CHECKING:
    import optuna

FORMAT = 1  # of the folder; another one is refused
ENOUGH = 20  # finished trials before anything is said about importance


@dataclass(frozen=True)
class Trial:
    """One try.

    state: finished; stopped (worse than half of the finished ones were at that epoch); refused (these settings make no
           sense together); failed (a loss that is not finite, or no memory left)
    changes: what was drawn; the first trial is the preset itself
    validation: the best figure of its epochs, if it came to one
    repeats: whether the same had been tried before, so that it was not trained again
    """

    number: int
    state: Literal["finished", "stopped", "refused", "failed"]
    changes: dict[str, Any]
    validation: float | None = None
    epochs: int = 0
    seconds: float = 0.0
    reason: str = ""
    repeats: bool = False


@dataclass(frozen=True)
class Tuning:
    """A search as far as it has come.

    metric: what validation figures are of, such as recall@50
    settings: the best trial's; the first of equals, so that they are the preset's unless others are better
    importance: of each setting for being among the best tenth (PED-ANOVA), in sum 1; empty with few finished trials
    """

    folder: Path
    preset: str
    seed: int
    target: str
    metric: str
    settings: ConCFSettings
    best: Trial
    trials: tuple[Trial, ...]
    importance: dict[str, float]

    def ranked(self) -> list[Trial]:
        """The finished trials, best first, each once."""
        finished = [each for each in self.trials if each.state == "finished" and not each.repeats]
        return sorted(finished, key=lambda each: -(each.validation or 0.0))

    def changes(self) -> dict[str, Any]:
        """The settings that differ from the preset, nested: what `best.toml` holds, beside the preset's name."""
        return nested(differences(self.settings, PRESETS[self.preset]))

    def command(self, data: str = "DIR") -> str:
        """How to train with the best settings."""
        return f"concf train {data} --config {self.folder / BEST} --seed {self.seed} --out RUN"

    def summary(self) -> dict[str, Any]:
        """What `concf tune --json` says."""
        return {
            "folder": str(self.folder), "preset": self.preset, "seed": self.seed, "target": self.target,
            "metric": self.metric, "best": asdict(self.best), "changes": self.changes(),
            "importance": self.importance, "trials": [asdict(each) for each in self.trials],
        }  # fmt: skip


def tune(
    data: Split,
    out: str | Path,
    *,
    preset: str = "reference",
    changes: Mapping[str, Any] | None = None,
    words: Iterable[str] = (),
    space: Mapping[str, Any] | str | Path | None = None,
    trials: int = 50,
    seconds: float | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    target: str | None = None,
    at_once: int = 1,
    engine: str | None = None,
    workers: int | None = None,
) -> Tuning:
    """Search the space for the settings with the best validation figure; the first trial is the preset.

    out:     the folder of the search; one that holds the same search is gone on with, up to `trials`
    changes, words: to the preset, as in `choose_settings`; a setting named there is left out of the default space
    space:   setting -> {"low", "high", "log"?, "step"?} or {"choices"}, or a TOML file of these
    seconds: after this no further trial begins; the one under way is brought to its end
    seed:    of every trial's training, and of the search
    target:  whose figure: the consensus or a head; if not said, the one that `training.watch` names
    at_once: trials that are drawn together, and held against those of earlier rounds alone
    engine:  processes or ray (see `executors`): who tries those of a round, with the same result; None: they are
             tried here, one after the other. workers: how many; None: one for each core
    """
    trials, at_once, seed = check_count("trials", trials), check_count("at_once", at_once), check_seed(seed)
    if engine is not None and at_once < 2:
        raise ConfigError("an engine needs several trials at once, such as --at-once 4: else each waits for the last")
    if not find_spec("optuna"):
        raise MissingExtraError("optuna", "tune", "the search for settings")
    words = list(words)
    base = choose_settings(preset, changes, words=words)
    fixed = {*flat(changes or {}), *(word.partition("=")[0].strip() for word in words)}
    wanted, target = read_space(default_space(base, fixed) if space is None else space), _target(base, target)
    about = {
        "format": FORMAT, "split_hash": data.hash, "preset": preset, "settings": base.model_dump(mode="json"),
        "space": {name: each.model_dump(mode="json") for name, each in wanted.items()}, "seed": seed, "target": target,
        "at_once": at_once,
    }  # fmt: skip
    data.note_if_few()
    folder, begin = SearchFolder(Path(out), about), time.monotonic()
    with folder.study() as study, working("tuning", trials) as advance:
        search = Search(study, replace(data), base, wanted, target, seed, device)
        found, done = _best(search, folder), len(search.trials())
        if done >= trials:
            raise ConfigError(f"{out}: {done} trials are done, no more were asked for. Try: --trials {2 * done}")
        advance(done)
        while done < trials:
            try:
                new = search.step() if at_once == 1 else step_round(search, at_once, trials, engine, workers)
            except ConfigError:  # the preset itself is refused: there is nothing to search
                folder.remove()
                raise
            found = _best(search, folder)
            done += new
            advance(new, "" if found is None else f"best {found.best.validation:.4f}")
            if seconds is not None and time.monotonic() - begin >= seconds:
                break
        if found is None:
            reasons = "; ".join(sorted({each.reason for each in search.trials()}))
            raise DataError(f"{out}: no trial came to a figure: {reasons}")
        return replace(found, importance=search.importance())


def _best(search: Search, folder: SearchFolder) -> Tuning | None:
    """The best so far, which `best.toml` holds from then on."""
    found = search.result(folder.path, folder.about["preset"])
    if found is not None:
        what = f"{found.metric} of {found.target} on validation: {found.best.validation}"
        head = f"# {what}, the best of {len(found.trials)} trials\n# {found.command()}\n"
        folder.write_best(head + as_toml({"preset": found.preset} | found.changes()))
    return found


def _target(settings: ConCFSettings, target: str | None) -> str:
    """Whose figure trials are compared by."""
    names = (CONSENSUS, R_CONSENSUS, *settings.heads) if settings.several else tuple(settings.heads)
    watched = settings.training.watch if settings.training.watch in names else names[0]
    target = target or watched
    if target not in names:
        raise ConfigError(f"target {target!r}: choose from {', '.join(names)}")
    return target


class Watch:
    """Called with every epoch's record: keeps the best figure, and ends a trial that is worse than half of the others.

    first: the epoch of the first epoch with consensus loss; none is ended before, as no run is out of patience before
    """

    def __init__(self, trial: optuna.Trial, target: str, first: int) -> None:
        self.trial, self.target, self.first = trial, target, first
        self.best: float | None = None
        self.epochs = 0

    def __call__(self, record: dict[str, Any]) -> None:
        """Look at one epoch."""
        from optuna import TrialPruned

        self.epochs += 1
        if "validation" in record:
            figure = float(record["validation"][self.target])
            self.best = figure if self.best is None else max(self.best, figure)
            self.trial.report(self.best, record["epoch"])
            if record["epoch"] >= self.first and self.trial.should_prune():
                raise TrialPruned


class Search:
    """A study, and what a trial of it is.

    start: the preset's values, of the settings whose space holds them
    """

    def __init__(
        self, study: optuna.Study, data: Split, base: ConCFSettings, space: Space, target: str, seed: int,
        device: str | torch.device | None,
    ) -> None:  # fmt: skip
        self.study, self.data, self.base, self.target, self.seed, self.device = study, data, base, target, seed, device
        self.asked, self.space = space, {name: each.distribution(name) for name, each in space.items()}
        values = {name: "none" if value is None else value for name, value in flat(base.model_dump()).items()}
        self.start = {name: values[name] for name, each in space.items() if each.holds(values[name])}

    def step(self) -> int:
        """One trial: the preset first, then what TPE draws; the same is not trained twice."""
        number = len(tried(self.study))
        trial = self._ask(number)
        twin = next((each for each in tried(self.study) if each.params == trial.params), None) if number else None
        if twin is None:
            outcome = self.outcome(trial, is_preset=number == 0)
            gc.collect()  # a trainer refers to itself; what it holds of a GPU is free only now
        else:
            outcome = twin.user_attrs[OUTCOME] | {"seconds": 0.0, "repeats": True}
            for epoch, figure in twin.intermediate_values.items():
                trial.report(figure, epoch)
        trial.set_user_attr(OUTCOME, outcome)
        tell(self.study, trial.number, outcome)
        return 1

    def _ask(self, number: int) -> optuna.Trial:
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        self.study.sampler = TPESampler(seed=derive_seed(self.seed, number) % 2**32)
        if number:
            return self.study.ask(self.space)
        if not self.study.get_trials(states=(TrialState.WAITING,)):  # else a killed process has left it there
            self.study.enqueue_trial(self.start)
        return self.study.ask({name: self.space[name] for name in self.start})

    def outcome(self, trial: optuna.Trial, *, is_preset: bool) -> dict[str, Any]:
        """What the trial comes to; only the preset is not allowed to make no sense."""
        from optuna import TrialPruned

        begin, watch, state, reason = time.perf_counter(), Watch(trial, self.target, 0), "finished", ""
        try:
            settings = choose_settings(self.base, nested(trial.params))
            _target(settings, self.target)
            watch.first = settings.consensus.first_consensus_epoch
            train(self.data, settings, seed=self.seed, device=self.device, watch=watch)
        except TrialPruned:
            state = "stopped"
        except ConfigError as error:
            if is_preset:
                raise
            state, reason = "refused", str(error)
        except (DataError, MemoryError, torch.OutOfMemoryError) as error:
            state, reason = "failed", str(error) or type(error).__name__
        seconds = time.perf_counter() - begin
        return {"state": state, "validation": watch.best, "epochs": watch.epochs, "seconds": seconds, "reason": reason}

    def trials(self) -> tuple[Trial, ...]:
        """All that came to an end of their own."""
        found = enumerate(tried(self.study))
        return tuple(Trial(number, changes=dict(each.params), **each.user_attrs[OUTCOME]) for number, each in found)

    def result(self, folder: Path, preset: str) -> Tuning | None:
        """The best so far, if any trial is finished."""
        trials = self.trials()
        finished = [each for each in trials if each.state == "finished"]
        if not finished:
            return None
        best = max(finished, key=lambda each: each.validation or 0.0)
        settings = choose_settings(self.base, nested(best.changes))
        metric = fitting_metric(settings.training.metric, self.data)
        return Tuning(folder, preset, self.seed, self.target, metric, settings, best, trials, {})

    def importance(self) -> dict[str, float]:
        """By PED-ANOVA, the one of Optuna's that needs no further library."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        if sum(each.state == "finished" and not each.repeats for each in self.trials()) < ENOUGH:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # older versions call it an experiment
            return dict(get_param_importances(self.study, evaluator=PedAnovaImportanceEvaluator()))
