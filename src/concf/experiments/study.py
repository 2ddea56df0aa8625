"""A search as a folder: what is searched, Optuna's journal of the trials, the best settings. No pickle, no database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.errors import ConfigError, DataError
from concf.experiments.search_space import flat
from concf.runtime.files import is_partial, new_file
from concf.runtime.locks import lock
from concf.runtime.provenance import provenance

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

SEARCH, STUDY, BEST = "tune.json", "study.jsonl", "best.toml"
NAME = "concf"  # of the one study in the journal
OUTCOME = "outcome"  # what a trial came to, written in one piece before Optuna is told
STATES = {"finished": "COMPLETE", "stopped": "PRUNED", "refused": "PRUNED", "failed": "FAIL"}  # ours -> Optuna's
COMPARED = 5  # finished trials before one may be stopped


def tried(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that came to an end of their own, in order; those that were killed did not."""
    return [
        each for each in study.get_trials(deepcopy=False) if each.state.is_finished() and OUTCOME in each.user_attrs
    ]


def tell(study: optuna.Study, number: int, outcome: Mapping[str, Any]) -> None:
    """End a trial."""
    from optuna.trial import TrialState

    figure = outcome["validation"] if outcome["state"] == "finished" else None
    study.tell(number, figure, TrialState[STATES[outcome["state"]]])


def median_pruner() -> optuna.pruners.BasePruner:
    """Ends a trial that is worse than half of the finished ones were at that epoch."""
    from optuna.pruners import MedianPruner

    return MedianPruner(n_startup_trials=COMPARED)


class SearchFolder:
    """`tune.json` (what is searched), `study.jsonl` (Optuna's journal of the trials) and `best.toml`."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    @contextmanager
    def study(self) -> Iterator[optuna.Study]:
        """The trials so far, for one process at a time; the system frees the file however that ends."""
        from optuna import logging

        self._begin_or_compare()
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            with (self.path / STUDY).open("ab") as held:
                if not lock(held):
                    raise ConfigError(f"{self.path}: another process is searching here. Choose another --out")
                held.truncate((self.path / STUDY).read_bytes().rfind(b"\n") + 1)  # a line that was cut short
                yield self._open()
        finally:
            logging.set_verbosity(verbosity)

    def _open(self) -> optuna.Study:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

        path = self.path.absolute() / STUDY
        path.with_name(f"{STUDY}.lock").unlink(missing_ok=True)  # of a process that was killed
        begun = path.stat().st_size > 0
        try:
            storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
            if not begun:
                optuna.create_study(storage=storage, study_name=NAME, direction="maximize")
            study = optuna.load_study(storage=storage, study_name=NAME, pruner=median_pruner())
            for each in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # killed: it is tried anew
                tell(study, each.number, each.user_attrs.get(OUTCOME, {"state": "failed"}))
        except (ValueError, KeyError, AssertionError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}). Choose another --out") from None
        return study

    def _begin_or_compare(self) -> None:
        path = self.path / SEARCH
        if not path.is_file():
            self._refuse_occupied()
            with new_file(path) as fresh:
                fresh.write_text(json.dumps(self.about | {"provenance": provenance()}, indent=2) + "\n", "utf-8")
            return
        try:
            before = {"at_once": 1} | dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}). Choose another --out") from None
        for name, now in self.about.items():
            if before.get(name) != now:
                other = _other(name, before.get(name), now)
                raise ConfigError(f"{self.path}: holds a search {other}. Go on with the same, or choose another --out")

    def _refuse_occupied(self) -> None:
        known = self.path / SEARCH
        ours = self.path.is_dir() and all(is_partial(each, known) for each in self.path.iterdir())
        if self.path.exists() and not ours:
            raise ConfigError(f"{self.path}: is neither empty nor a search; it is left alone. Choose another --out")

    def write_best(self, text: str) -> None:
        """Best settings take the place of those before."""
        with new_file(self.path / BEST) as fresh:
            fresh.write_text(text, encoding="utf-8")

    def remove(self) -> None:
        """Take back a search that has not begun."""
        for name in (SEARCH, STUDY):
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()


def _other(name: str, before: Any, now: Any) -> str:
    """How it is another search, in words."""
    if name in ("settings", "space") and isinstance(before, dict):
        old, new = (flat(each) if name == "settings" else each for each in (before, now))
        changed = ", ".join(each for each in old | new if old.get(each) != new.get(each))
        return f"{'from other settings' if name == 'settings' else 'of another space'} ({changed})"
    words = {"split_hash": "on another data set", "format": "in another format", "at_once": "with other rounds"}
    return f"{words.get(name, f'with another {name}')} ({str(before)[:16]}, not {str(now)[:16]})"
