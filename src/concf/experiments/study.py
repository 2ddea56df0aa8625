"""The folder of a search: what is searched, Optuna's journal of the trials, and the best settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.errors import ConfigError, DataError
from concf.experiments.search_space import flat
from concf.runtime.files import new_file
from concf.runtime.locks import held
from concf.runtime.provenance import provenance

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage

STUDY, BEST, LOCK = "study.jsonl", "best.toml", "tune.lock"
NAME = "concf"  # of the only study in the journal
FINISHED_BEFORE_PRUNING = 5  # trials


def new_study(storage: BaseStorage | None = None) -> optuna.Study:
    """An empty study, in memory unless a storage is given, which prunes trials below the median of the others."""
    import optuna

    pruner = optuna.pruners.MedianPruner(n_startup_trials=FINISHED_BEFORE_PRUNING)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # Optuna announces every new study
    try:
        return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", pruner=pruner)
    finally:
        optuna.logging.set_verbosity(verbosity)


class SearchFolder:
    """`study.jsonl` (Optuna's journal: what is searched, and the trials) and `best.toml`.

    about: what tells another search apart from this one; it must survive JSON
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    @contextmanager
    def study(self) -> Iterator[optuna.Study]:
        """The trials so far, for one process at a time. A search that ends without any trial leaves nothing."""
        journal, is_empty = self.path / STUDY, False
        if not self._is_ours():
            raise ConfigError(f"{self.path}: is neither empty nor a search; it is left alone. Choose another --out")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with held(self.path / LOCK, "is searching here"):
                study = self._load(journal.absolute())
                try:
                    yield study
                finally:
                    is_empty = not study.get_trials(deepcopy=False)
        finally:
            if is_empty:
                journal.unlink()
                self.path.rmdir()

    def _is_ours(self) -> bool:
        """Whether the folder is new, empty but for a lock, or holds a search."""
        if not self.path.is_dir():
            return not self.path.exists()
        return (self.path / STUDY).is_file() or all(each.name == LOCK for each in self.path.iterdir())

    def _load(self, path: Path) -> optuna.Study:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

        path.with_name(f"{STUDY}.lock").unlink(missing_ok=True)  # of a process that was killed
        with path.open("ab") as journal:
            journal.truncate(path.read_bytes().rfind(b"\n") + 1)  # a line that was cut short
        try:
            storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
            if storage.get_all_studies():
                study = optuna.load_study(storage=storage, study_name=NAME)
            else:
                study = new_study(storage)
            if study.get_trials(deepcopy=False):
                self._compare(study.user_attrs["about"])
            else:
                study.set_user_attr("about", self.about)
                study.set_user_attr("provenance", provenance())
        except (ValueError, KeyError, AssertionError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}). Choose another --out") from None
        return study

    def _compare(self, about: dict[str, Any]) -> None:
        there, here = flat(about), flat(self.about)
        for name in there | here:
            if there.get(name) != here.get(name):
                raise ConfigError(
                    f"{self.path}: holds another search, whose {name} is {there.get(name)} and not {here.get(name)}. "
                    "Continue with the same, or choose another --out"
                )

    def write_best(self, text: str) -> None:
        """Replace `best.toml`."""
        with new_file(self.path / BEST) as fresh:
            fresh.write_text(text, encoding="utf-8")
