"""A state of nested dictionaries as named tensors and JSON, for one safetensors file."""

from __future__ import annotations

from typing import Any

from torch import Tensor

TRAINER = "trainer"  # the part that only a run that goes on needs
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
