"""The folder of a search: what is searched, Optuna's journal of the trials, and the best settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.errors import ConfigError, DataError
from concf.runtime.locks import held
from concf.runtime.provenance import provenance
from concf.runtime.settings import flat

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


@contextmanager
def opened(folder: Path, about: dict[str, Any]) -> Iterator[optuna.Study]:
    """The trials so far, for one process at a time. A search that ends without any trial leaves nothing.

    about: what tells another search apart from this one, which is refused; it must survive JSON
    """
    if not _is_ours(folder):
        raise ConfigError(f"{folder}: is neither empty nor a search; it is left alone. Choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    journal, is_empty = folder / STUDY, False
    try:
        with held(folder / LOCK, "is searching here"):
            study = _load(journal.absolute(), about)
            try:
                yield study
            finally:
                is_empty = not study.get_trials(deepcopy=False)
    finally:
        if is_empty:
            journal.unlink()
            folder.rmdir()


def _is_ours(folder: Path) -> bool:
    """Whether the folder is new, empty but for a lock, or holds a search."""
    if not folder.is_dir():
        return not folder.exists()
    return (folder / STUDY).is_file() or all(each.name == LOCK for each in folder.iterdir())


def _load(path: Path, about: dict[str, Any]) -> optuna.Study:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    path.with_name(f"{STUDY}.lock").unlink(missing_ok=True)  # of a process that was killed
    with path.open("ab") as journal:
        journal.truncate(path.read_bytes().rfind(b"\n") + 1)  # a line that was cut short
    try:
        storage = JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
        begun = bool(storage.get_all_studies())
        study = optuna.load_study(storage=storage, study_name=NAME) if begun else new_study(storage)
        if study.get_trials(deepcopy=False):
            _refuse_another(path.parent, flat(study.user_attrs["about"]), flat(about))
        else:
            study.set_user_attr("about", about)
            study.set_user_attr("provenance", provenance())
    except (ValueError, KeyError, AssertionError) as error:
        raise DataError(f"{path}: damaged ({type(error).__name__}). Choose another --out") from None
    return study


def _refuse_another(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    for name in there | here:
        if there.get(name) != here.get(name):
            raise ConfigError(
                f"{folder}: holds another search, whose {name} is {there.get(name)} and not {here.get(name)}. "
                "Continue with the same, or choose another --out"
            )
