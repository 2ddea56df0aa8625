"""A state of nested dictionaries as named tensors and JSON, for one safetensors file; which tensors processes share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from concf.model.model import Model
from concf.runtime.process_group import ProcessGroup
from concf.training.embeddings.sharded_file import Division

TRAINER = "trainer"  # the part that only a run that goes on needs
ALWAYS = f"{TRAINER}/consensus/rankings/", f"{TRAINER}/vectors/"  # what is of users is divided among several processes
PATH = "tensor"  # stands in the JSON for the tensor of that path


def flatten(state: Any, path: str = "") -> tuple[dict[str, Tensor], Any]:
    """The tensors by path, such as `best/consensus/lists`, and the rest, with {"tensor": path} in their place."""
    if isinstance(state, Tensor):
        return {path: state}, {PATH: path}
    if not isinstance(state, dict | list | tuple):
        return {}, state
    keyed = state.items() if isinstance(state, dict) else enumerate(state)
    parts = {str(key): flatten(each, f"{path}/{key}".lstrip("/")) for key, each in keyed}
    tensors = {name: tensor for found, _ in parts.values() for name, tensor in found.items()}
    rest = {key: each for key, (_, each) in parts.items()}
    return tensors, rest if isinstance(state, dict) else list(rest.values())


def unflatten(rest: Any, tensors: dict[str, Tensor]) -> Any:
    """The state again; keys are text."""
    if isinstance(rest, dict):
        if rest.keys() == {PATH}:
            return tensors[rest[PATH]]
        return {key: unflatten(each, tensors) for key, each in rest.items()}
    return [unflatten(each, tensors) for each in rest] if isinstance(rest, list) else rest


def divisions(paths: Iterable[str], model: Model, group: ProcessGroup) -> dict[str, Division]:
    """How those of the tensors that no process has whole are divided.

    Rankings and the stages' vectors of users always, the rest by sharded tables: those rows that the model has in part.
    """
    every, found = {"user": slice(0, model.n_users), "item": slice(0, model.n_items)}, {}
    held = every if model.held is None else dict(zip(every, model.held, strict=True))
    for path in paths if group.several else ():
        rows = _rows(path)
        if rows is None:
            continue
        dim, side = rows
        if held[side] != every[side] or (side == "user" and path.startswith(ALWAYS)):
            found[path] = Division(dim, every[side].stop)
    return found


def _rows(path: str) -> tuple[int, str] | None:
    """The dimension along which a tensor has a row for each user or item, if it has."""
    match path.split("/"):
        case ["trainer", "consensus", "rankings", _]:
            return 1, "user"
        case ["trainer", "vectors", _, ("0" | "1") as number]:
            return 0, ("user", "item")[int(number)]
        case ["best", _, "votes", "reranked"]:
            return 0, "user"
        case ["model", ("user" | "item") as side] | ["best", _, "state", ("user" | "item") as side]:
            return 1, side
        case ["trainer", "optimiser", "state", ("0" | "1") as number, "exp_avg" | "exp_avg_sq"]:
            return 1, ("user", "item")[int(number)]  # the model's first two parameters are its tables
        case ["best", _, "lists"]:
            return 0, "user"
        case ["best", _, "votes", "items" | "consistency"]:
            return 1, "user"
    return None
