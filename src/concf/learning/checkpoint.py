"""A run as a folder: `run.json`, `history.jsonl` and `checkpoint.safetensors`, each whole or not there.

The checkpoint holds everything that the next epoch depends on. Random draws depend on seed and epoch alone, so the
epoch is their state. It is one file, renamed into place: a run that is killed at any moment goes on from the last one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from concf.data.folders import new_file
from concf.errors import ConfigError, DataError
from concf.learning.run import Best, Run
from concf.learning.settings import ConCFSettings
from concf.learning.trainer import Trainer
from concf.provenance import provenance
from concf.version import VERSION

FORMAT = 1  # a newer one is refused
RUN, HISTORY, CHECKPOINT = "run.json", "history.jsonl", "checkpoint.safetensors"


class RunFolder:
    """Where a run is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begin(self, run: Run, data_folder: str | None = None) -> None:
        """Say what the run is, before it runs; a folder that holds a run or something else is left alone."""
        if (self.path / RUN).exists():
            raise ConfigError(f"{self.path}: holds a run already. Go on with --resume, or choose another --out")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path}: is not empty and not a run. Choose another --out")
        self._write_json(RUN, self._description(run) | {"data_folder": data_folder, "provenance": provenance()})

    def _description(self, run: Run) -> dict[str, Any]:
        data = run.trainer.data
        return {
            "format": FORMAT,
            "concf": VERSION,
            "settings": run.settings.model_dump(mode="json"),
            "seed": run.seed,
            "device": str(run.trainer.device),
            "data": {"split_hash": data.hash, "recipe": data.recipe.model_dump(mode="json")},
        }

    def record(self, epoch: dict[str, Any]) -> None:
        """One line of history."""
        with (self.path / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(epoch) + "\n")

    def save(self, run: Run) -> None:
        """The checkpoint."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(run).items()}
        best = {name: {"validation": each.validation, "epoch": each.epoch} for name, each in run.best.items()}
        trainer = run.trainer
        state = {"format": FORMAT, "epoch": run.epoch, "finished": run.finished, "best": best}
        state |= {"rankings": trainer.n_rankings, "queue": len(trainer.queue), "window": _frozen(trainer)}
        state |= {"data": trainer.data.hash, "settings": run.settings.model_dump(mode="json"), "seed": run.seed}
        with new_file(self.path / CHECKPOINT) as fresh:
            save_file(tensors, fresh, metadata={"concf": json.dumps(state)})

    def resume(self, run: Run) -> None:
        """Bring the run to where the checkpoint left it; from the beginning if it was killed before the first one."""
        self._refuse_another(run)
        if (self.path / CHECKPOINT).exists():
            self._restore(run)
        run.history = self._history(run.epoch)
        with new_file(self.path / HISTORY) as fresh:
            fresh.write_text("".join(json.dumps(record) + "\n" for record in run.history), encoding="utf-8")

    def load(self, run: Run) -> None:
        """Bring the run to where the checkpoint left it, and write nothing."""
        self._refuse_another(run)
        if not (self.path / CHECKPOINT).exists():
            raise DataError(f"{self.path}: no {CHECKPOINT} yet. Go on with: concf train --resume")
        self._restore(run)
        run.history = self._history(run.epoch)

    def _restore(self, run: Run) -> None:
        state, tensors = self._read()
        if state["data"] != run.trainer.data.hash:
            raise DataError(f"{self.path / CHECKPOINT}: trained on another data set (split hash {state['data'][:16]})")
        _restore(run, state, {name: tensor.to(run.trainer.device) for name, tensor in tensors.items()})

    def description(self) -> dict[str, Any]:
        """What `run.json` says."""
        path = self.path / RUN
        if not path.is_file():
            raise DataError(f"{self.path}: not a run (no {RUN}). Make one with: concf train DIR --out RUN")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            newer = found["format"] > FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({type(error).__name__})") from None
        if newer:
            raise DataError(
                f"{path}: format {found['format']} is newer than this concf ({VERSION}) knows. Update concf"
            )
        return dict(found)

    def settings(self) -> ConCFSettings:
        """The run's settings."""
        return ConCFSettings.model_validate(self.description()["settings"])

    def _refuse_another(self, run: Run) -> None:
        found, wanted = self.description(), self._description(run)
        if found["data"]["split_hash"] != wanted["data"]["split_hash"]:
            raise DataError(
                f"{self.path}: trained on another data set (split hash {found['data']['split_hash'][:16]}, "
                f"this one has {wanted['data']['split_hash'][:16]})"
            )
        if found["seed"] != wanted["seed"]:
            raise ConfigError(f"{self.path}: the run has seed {found['seed']}, not {wanted['seed']}")
        other = _differing(found["settings"], json.loads(json.dumps(wanted["settings"])))
        if other:
            raise ConfigError(f"{self.path}: the run has other settings: {', '.join(other)}")

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        path = self.path / CHECKPOINT
        try:
            with safe_open(path, framework="pt") as file:
                state = json.loads(file.metadata()["concf"])
                if state["format"] > FORMAT:
                    raise DataError(
                        f"{path}: format {state['format']} is newer than this concf ({VERSION}) knows. Update concf"
                    )
                return state, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: cut short or damaged ({error}). Remove it to begin the run again, or bring back a copy"
            ) from None

    def _history(self, epoch: int) -> list[dict[str, Any]]:
        """The records before that epoch; later ones, or a line cut short, will be written again."""
        path, kept = self.path / HISTORY, []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["epoch"] < epoch:
                kept.append(record)
        return kept

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with new_file(self.path / name) as fresh:
            fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _frozen(trainer: Trainer) -> int:
    """Rankings of a window that does not move; a moving one is the queue's end."""
    return 0 if trainer.settings.consensus.window_moves else len(trainer.window)


def _tensors(run: Run) -> dict[str, Tensor]:
    trainer = run.trainer
    tensors = {f"model/{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    for kind, optimiser in (("optimiser", trainer.optimiser), ("weight_optimiser", trainer.weight_optimiser)):
        for place, parts in optimiser.state_dict()["state"].items():
            tensors |= {f"{kind}/{place}/{name}": part for name, part in parts.items() if part is not None}
    tensors |= {f"queue/{place}": ranking for place, ranking in enumerate(trainer.queue)}
    tensors |= {f"window/{place}": trainer.window[place] for place in range(_frozen(trainer))}
    tensors |= {"weights": trainer.weights, "initial": trainer.initial, "lesson": trainer.lesson}
    for name, best in run.best.items():
        tensors |= {f"best/{name}/state/{part}": tensor for part, tensor in best.state.items()}
        tensors |= {f"best/{name}/lists": best.lists} if best.lists is not None else {}
    return tensors


def _restore(run: Run, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    trainer = run.trainer
    trainer.model.load_state_dict(_under("model/", tensors))
    for kind, optimiser in (("optimiser", trainer.optimiser), ("weight_optimiser", trainer.weight_optimiser)):
        parts: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under(f"{kind}/", tensors).items():
            place, _, part = name.partition("/")
            parts.setdefault(int(place), {})[part] = tensor
        optimiser.load_state_dict({"state": parts, "param_groups": optimiser.state_dict()["param_groups"]})
    trainer.queue = [tensors[f"queue/{place}"] for place in range(state["queue"])]
    moves, length = trainer.settings.consensus.window_moves, trainer.settings.consensus.window
    trainer.window = trainer.queue[-length:] if moves else [tensors[f"window/{k}"] for k in range(state["window"])]
    trainer.n_rankings = state["rankings"]
    for name in ("weights", "initial", "lesson"):
        getattr(trainer, name).copy_(tensors[name])
    for name, best in state["best"].items():
        found = _under(f"best/{name}/state/", tensors)
        run.best[name] = Best(best["validation"], best["epoch"], found, tensors.get(f"best/{name}/lists"))
    run.epoch, run.finished = state["epoch"], state["finished"]


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _differing(found: Any, wanted: Any, name: str = "") -> list[str]:
    """The names of settings that differ, with both values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        parts = sorted(found.keys() | wanted.keys())
        return [
            word
            for part in parts
            for word in _differing(found.get(part), wanted.get(part), f"{name}.{part}".lstrip("."))
        ]
    return [] if found == wanted else [f"{name} = {found!r}, not {wanted!r}"]


def load_run(folder: str | Path, data: Any, device: str | torch.device = "cpu", **own: Any) -> Run:
    """The run in a folder, with the data set that it was trained on. own: objectives and encoder of yours, if any."""
    home = RunFolder(folder)
    run = Run(Trainer(data, home.settings(), home.description()["seed"], device, **own))
    home.load(run)
    return run
