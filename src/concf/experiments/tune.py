"""A search for better settings with Optuna, by validation alone; a folder holds its trials, and it can be continued."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from concf.data.split import Split
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.evaluation.validation_metric import fitting_metric
from concf.experiments.search_space import as_toml, default_space, differences, nested, read_space
from concf.experiments.study import BEST, opened
from concf.experiments.trials import Objective, resolve_target, run_round
from concf.runtime.arguments import check_count, check_seed
from concf.runtime.files import new_file
from concf.runtime.progress import working
from concf.runtime.settings import flat
from concf.training.config.presets import PRESETS, choose_settings
from concf.training.config.settings import ConCFSettings

if TYPE_CHECKING:
    import optuna

FORMAT = 2  # of the folder; another one is refused
FINISHED_BEFORE_IMPORTANCE = 20  # trials


@dataclass(frozen=True)
class Trial:
    """One trial.

    state: finished; stopped (below the median of the finished trials at the same epoch); refused (the settings
           contradict each other); failed (a loss that is not finite, or no memory left)
    changes: the drawn settings by their full names; the first trial is the preset itself
    validation: the best figure of its epochs, if there is one
    repeats: whether the same settings were tried before, so that they were not trained again
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
    """The state of a search.

    metric: of the validation figures, such as recall@50
    settings: of the best trial; among equals the first, so that they are the preset's unless others are better
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
        """The finished trials without repetitions, best first."""
        finished = [each for each in self.trials if each.state == "finished" and not each.repeats]
        return sorted(finished, key=lambda each: -(each.validation or 0.0))

    def changes(self) -> dict[str, Any]:
        """The settings that differ from the preset, nested: what `best.toml` holds, beside the preset's name."""
        return nested(differences(self.settings, PRESETS[self.preset]))

    def command(self, data: str = "DIR") -> str:
        """The command that trains with the best settings."""
        return f"concf train {data} --config {self.folder / BEST} --seed {self.seed} --out RUN"

    def summary(self) -> dict[str, Any]:
        """What `concf tune --json` prints."""
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

    out:     the folder of the search; if it holds the same search, that is continued up to `trials`
    changes, words: to the preset, as in `choose_settings`; a setting named there is left out of the default space
    space:   setting -> {"low", "high", "log"?, "step"?} or {"choices"}, or a TOML file of these
    seconds: after which no further trial begins; one that is running is completed
    seed:    of every trial's training, and of the search
    target:  whose figure counts: the consensus or a head; None: the one that `training.watch` names
    at_once: trials of a round, which are drawn together and know only those of earlier rounds
    engine:  processes or ray (see `executors`): who trains the trials of a round, with the same result; None: this
             process, one after the other. workers: how many; None: one for each core
    """
    trials, at_once, seed = check_count("trials", trials), check_count("at_once", at_once), check_seed(seed)
    if engine is not None and at_once < 2:
        raise ConfigError("an engine needs several trials at once, such as --at-once 4")
    for library in ("optuna", "tomli_w"):
        if not find_spec(library):
            raise MissingExtraError(library, "tune", "the search for settings")
    from optuna.distributions import distribution_to_json

    words = list(words)
    base = choose_settings(preset, changes, words=words)
    fixed = {*flat(changes or {}), *(word.partition("=")[0].strip() for word in words)}
    searched, target = read_space(default_space(base, fixed) if space is None else space), resolve_target(base, target)
    about = {
        "format": FORMAT, "split_hash": data.hash, "preset": preset, "settings": base.model_dump(mode="json"),
        "space": {name: distribution_to_json(each) for name, each in searched.items()}, "seed": seed,
        "target": target, "at_once": at_once,
    }  # fmt: skip
    data.note_if_few()
    folder, begin = Path(out), time.monotonic()
    objective = Objective(replace(data), base, searched, target, seed, device)
    with opened(folder, about) as study, working("tuning", trials) as advance:
        done = len(study.get_trials(deepcopy=False))
        if done >= trials:
            raise ConfigError(f"{out}: {done} trials are done, no more were asked for. Try: --trials {2 * done}")
        advance(done)
        while done < trials:
            new = run_round(objective, study, at_once, trials, engine, workers)
            best = _write_best(objective, study, folder, preset)
            done += new
            advance(new, "" if best is None else f"best {best.best.validation:.4f}")
            if seconds is not None and time.monotonic() - begin >= seconds:
                break
        if best is None:
            reasons = "; ".join(sorted({each.reason for each in _trials(study)}))
            raise DataError(f"{out}: no trial came to a figure: {reasons}")
        return replace(best, importance=_importance(study))


def _trials(study: optuna.Study) -> tuple[Trial, ...]:
    return tuple(
        Trial(each.number, changes=dict(each.params), **each.user_attrs) for each in study.get_trials(deepcopy=False)
    )


def _write_best(objective: Objective, study: optuna.Study, folder: Path, preset: str) -> Tuning | None:
    """The search with its best trial, whose settings become `best.toml`; None if no trial is finished."""
    trials = _trials(study)
    finished = [each for each in trials if each.state == "finished"]
    if not finished:
        return None
    best = max(finished, key=lambda each: each.validation or 0.0)
    settings = choose_settings(objective.base, nested(best.changes))
    metric = fitting_metric(settings.training.metric, objective.data)
    search = Tuning(folder, preset, objective.seed, objective.target, metric, settings, best, trials, {})
    what = f"{metric} of {search.target} on validation: {best.validation}"
    header = f"# {what}, the best of {len(trials)} trials\n# {search.command()}\n"
    with new_file(folder / BEST) as fresh:
        changes = as_toml({"preset": preset} | differences(settings, PRESETS[preset]))
        fresh.write_text(header + changes, encoding="utf-8")
    return search


def _importance(study: optuna.Study) -> dict[str, float]:
    """By PED-ANOVA, the evaluator of Optuna that needs no further library."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if sum(each.state == "finished" and not each.repeats for each in _trials(study)) < FINISHED_BEFORE_IMPORTANCE:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions warn that it is experimental
        return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))
