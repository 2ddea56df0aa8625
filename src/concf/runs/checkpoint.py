"""A run as a folder: `run.json`, `history.jsonl`, `checkpoint.safetensors`, `README.md`, each complete or absent.

The checkpoint holds everything that the next epoch depends on. Random draws depend on seed and epoch alone, so the
epoch is their state. It is one file with its checksum in it, renamed into place: a run that is killed at any moment
is resumed from the last one. While a process trains, `train.lock` names it, and keeps others out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray
from safetensors import SafetensorError

from concf.data.split import Split
from concf.errors import ConfigError, DataError, option
from concf.runs.model_card import model_card
from concf.runs.run import Run, as_tensors
from concf.runtime.files import BLANK, FIELD, held, is_partial, mapped_tensors, new_file, refuse_changed, seal
from concf.runtime.provenance import VERSION, provenance
from concf.runtime.settings import flat

if TYPE_CHECKING:
    from torch import Tensor

    from concf.runtime.process_group import ProcessGroup

FORMAT = 4  # any other is refused
RUN, HISTORY, CHECKPOINT = "run.json", "history.jsonl", "checkpoint.safetensors"
LOCK = "train.lock"  # of the process that trains
CARD = "README.md"  # the model card
DATA = "data"  # the data set, where the run keeps it itself
TRAINER = "trainer"  # part of the state that only training needs
PATH = "tensor"  # key in the JSON of a state, whose value is the path of a tensor


class Resumable(Protocol):
    """Trainer whose state is in the checkpoint until the run is finished."""

    group: ProcessGroup

    def state_dict(self) -> dict[str, Any]:
        """State that its next epochs or stages depend on, of all users; all processes call it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class RunFolder:
    """Folder of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.own_data = self.path / DATA  # where the run keeps its data set itself, if it does

    def begin(self, run: Run, **made: dict[str, Any]) -> None:
        """Describe the run before it trains; a folder that holds a run or something else is left alone.

        made: how the run was made, if not by `train`: update= or combine=; its first checkpoint follows
        """
        self.refuse_occupied()
        self._refuse_another_inside(run.data)
        folder = None if run.data.folder is None else str(run.data.folder.absolute())
        description = _description(run) | {"data_folder": folder, "provenance": provenance()} | made
        with new_file(self.path / RUN) as fresh:
            fresh.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        self._write_card(run)

    def _write_card(self, run: Run) -> None:
        """Write the model card of the run as it is now."""
        path, card = self.path / CARD, model_card(run).encode()
        if not path.exists() or path.read_bytes() != card:
            with new_file(path) as fresh:
                fresh.write_bytes(card)

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / RUN).exists()

    def refuse_occupied(self) -> None:
        """Refuse a folder that holds a run or something else than a run's own data set."""
        if self.begun:
            fix = f"Continue it with: concf train --resume --out {self.path}, or choose another folder"
            raise ConfigError(f"{self.path}: holds a run already. {fix}")
        if self.path.exists() and not (
            self.path.is_dir()
            and all(is_partial(each, self.path / RUN) or each.name in (DATA, LOCK) for each in self.path.iterdir())
        ):
            raise ConfigError(f"{self.path}: is neither empty nor a run; it is left alone. Choose another folder")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the folder; a second process is refused by an error that names the first."""
        if not self.begun:
            self.refuse_occupied()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with held(self.path / LOCK, "trains here"):
                yield
        finally:
            with suppress(OSError):  # only a folder without a run is empty
                self.path.rmdir()

    def keep(self, data: Split) -> None:
        """Keep the data set in the run's own folder; an existing one must be equal."""
        self._refuse_another_inside(data)
        if not self.own_data.exists():
            data.save(self.own_data)

    def _refuse_another_inside(self, data: Split) -> None:
        if self.own_data.exists() and Split.load(self.own_data).hash != data.hash:
            raise ConfigError(f"{self.own_data}: is another data set; it is left alone. Choose another {option('out')}")

    def record(self, epoch: dict[str, Any]) -> None:
        """Append a line to the history."""
        try:
            with (self.path / HISTORY).open("a", encoding="utf-8") as file:
                file.write(json.dumps(epoch) + "\n")
        except OSError as error:
            raise DataError(f"{self.path / HISTORY}: could not be written ({error.strerror})") from error

    def save(self, run: Run, trainer: Resumable | None = None) -> None:
        """Write the checkpoint; without the trainer's state, which is most of it, once the run is finished.

        Without its trainer a run can be used, but not resumed. All processes call it, and one writes.
        """
        from safetensors.torch import save_file

        state = run.state_dict()
        if trainer is not None and not run.finished:
            state[TRAINER] = trainer.state_dict()
        if trainer is not None and not trainer.group.is_main:
            return
        tensors, rest = flatten(state)
        metadata = {"concf": json.dumps(_description(run) | {"state": rest}), FIELD: BLANK}
        with new_file(self.path / CHECKPOINT) as fresh:
            try:
                on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
                save_file(on_cpu, fresh, metadata=metadata)
                seal(fresh)
            except SafetensorError as error:
                problem = f"could not be written ({error}). The one before is left"
                raise DataError(f"{self.path / CHECKPOINT}: {problem}") from None
            fresh.chmod((self.path / RUN).stat().st_mode)  # safetensors would let no one else read it
        self._write_card(run)

    def load(self, run: Run, trainer: Resumable | None = None) -> None:
        """Restore the run from the checkpoint, to use it; nothing is written.

        With a trainer, restore that too, to resume; a run killed before its first checkpoint starts again.
        """
        _refuse_another(self.description(), run, self.path)
        if (self.path / CHECKPOINT).exists():
            self._restore(run, trainer)
        elif trainer is None:
            raise DataError(f"{self.path}: no {CHECKPOINT} yet. Continue with: concf train --resume --out {self.path}")
        path, run.history = self.path / HISTORY, self._history(run.epoch)
        if trainer is None or not trainer.group.is_main:
            return
        kept = "".join(json.dumps(record) + "\n" for record in run.history)
        if kept != (path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""):
            with new_file(path) as fresh:
                fresh.write_text(kept, encoding="utf-8")
        self._write_card(run)

    def _restore(self, run: Run, trainer: Resumable | None) -> None:
        path = self.path / CHECKPOINT
        if not os.access(path, os.R_OK):
            raise DataError(f"{path}: may not be read. Change its permissions")
        refuse_changed(path)
        try:
            metadata, arrays = mapped_tensors(path)
            description = _known(json.loads(metadata["concf"]), path)
        except (AttributeError, OSError, ValueError, KeyError, TypeError) as error:
            fix = "Restore a copy, or remove it to start again"
            raise DataError(f"{path}: cut short or damaged ({error}). {fix}") from None
        _refuse_another(description, run, path)
        rest = description["state"]
        resumed = rest.pop(TRAINER, None)
        try:
            run.load_state_dict(unflatten(rest, arrays))
            if trainer and resumed is None and not run.finished:
                fix = f"Choose another {option('out')}"
                raise ConfigError(f"{self.path}: saved without its trainer, it cannot be resumed. {fix}")
            if trainer and resumed is not None:
                trainer.load_state_dict(unflatten(resumed, as_tensors(arrays, run.device)))
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"{path}: does not fit the run that {RUN} describes ({error}). Restore a copy") from None

    def description(self) -> dict[str, Any]:
        """Contents of `run.json`."""
        path = self.path / RUN
        if not path.is_file():
            raise DataError(f"{self.path}: not a run (no {RUN}). Make one with: concf train DIR --out RUN")
        try:
            return _known(json.loads(path.read_text(encoding="utf-8")), path)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__}). Restore a copy") from None

    def data(self) -> Split:
        """Load the data set that the run was trained on, from where it was then."""
        description = self.description()
        folder = str(self.own_data) if self.own_data.is_dir() else description.get("data_folder")
        if folder is None or not Path(folder).is_dir():
            was = "was not in a folder" if folder is None else f"was in {folder}, where it is no longer"
            known = f"split hash {description['data']['split_hash'][:16]}"
            fix = f"Name its folder: {option('data')}, or DATA of concf train"
            raise DataError(f"{self.path}: its data set ({known}) {was}. {fix}")
        return Split.load(folder)

    def _history(self, epoch: int) -> list[dict[str, Any]]:
        """Records before that epoch; later ones, or a line cut short, will be written again."""
        path, kept = self.path / HISTORY, []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                if record["epoch"] < epoch:
                    kept.append(record)
        return kept


def _description(run: Run) -> dict[str, Any]:
    """Description of a run, in `run.json` and in its checkpoint."""
    return {
        "format": FORMAT, "concf": VERSION, "model": run.settings.kind,
        "settings": run.settings.model_dump(mode="json"), "seed": run.seed, "device": str(run.device),
        "data": {"split_hash": run.data.hash, "recipe": run.data.recipe.model_dump(mode="json")},
    }  # fmt: skip


def _known(description: dict[str, Any], path: Path) -> dict[str, Any]:
    """Check that a description has the format of this version, and all its parts."""
    if description["format"] != FORMAT:
        advice = "older. Train the run again" if description["format"] < FORMAT else "newer. Update concf"
        raise DataError(f"{path}: concf {VERSION} reads format {FORMAT}, and this is {description['format']}, {advice}")
    _ = description["model"], description["settings"], description["seed"], description["data"]["split_hash"]
    return description


def _refuse_another(stored: dict[str, Any], run: Run, where: Path) -> None:
    refuse_other_data(stored, run.data, where)
    if stored["seed"] != run.seed:
        raise ConfigError(f"{where}: its seed is {stored['seed']}, not {run.seed}. Leave {option('seed')} out")
    if stored["model"] != run.settings.kind:
        models = f"its model is {stored['model']}, not {run.settings.kind}"
        raise ConfigError(f"{where}: {models}. Leave {option('preset')} out")
    own, other = flat(stored["settings"]), flat(run.settings.model_dump(mode="json"))
    if own != other:
        names = sorted(name for name in own.keys() | other.keys() if own.get(name) != other.get(name))
        found = ", ".join(f"{name} = {own.get(name)!r}, not {other.get(name)!r}" for name in names)
        raise ConfigError(f"{where}: the run has other settings: {found}. Leave them out, or change {option('out')}")


def refuse_other_data(description: dict[str, Any], data: Split, where: Path) -> None:
    """Refuse a data set that the run of that description was not trained on."""
    trained_on = description["data"]["split_hash"]
    if trained_on != data.hash:
        raise DataError(f"{where}: trained on another data set (hash {trained_on[:16]}, this one has {data.hash[:16]})")


def flatten(state: Any, path: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split a state of nested dictionaries: tensors by path, such as `best/consensus/lists`, and the rest as JSON."""
    from torch import Tensor

    if isinstance(state, Tensor):
        return {path: state}, {PATH: path}
    if not isinstance(state, dict | list | tuple):
        return {}, state
    keyed = state.items() if isinstance(state, dict) else enumerate(state)
    parts = {str(key): flatten(each, f"{path}/{key}".lstrip("/")) for key, each in keyed}
    tensors = {name: tensor for tensors, _ in parts.values() for name, tensor in tensors.items()}
    rest = {key: each for key, (_, each) in parts.items()}
    return tensors, rest if isinstance(state, dict) else list(rest.values())


def unflatten(rest: Any, tensors: Mapping[str, Tensor | NDArray[Any]]) -> Any:
    """Put a state together again; keys are text."""
    if isinstance(rest, dict):
        if rest.keys() == {PATH}:
            return tensors[rest[PATH]]
        return {key: unflatten(each, tensors) for key, each in rest.items()}
    return [unflatten(each, tensors) for each in rest] if isinstance(rest, list) else rest
