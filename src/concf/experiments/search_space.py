"""Which settings are searched, and settings by their full names: `consensus.weight`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field, ValidationError

from concf.errors import ConfigError
from concf.runtime.settings import Settings, read_toml
from concf.training.config.settings import ConCFSettings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DEFAULT_SPACE: dict[str, dict[str, Any]] = {
    "training.learning_rate": {"low": 1e-3, "high": 3e-2, "log": True},  # how far a step goes
    "training.weight_decay": {"low": 1e-7, "high": 1e-3, "log": True},  # how strongly parameters are drawn to 0
    "consensus.weight": {"low": 1e-3, "high": 1e-1, "log": True},  # alpha: how loud the consensus target is
    "consensus.temperature": {"low": 3.0, "high": 30.0, "log": True},  # T: how much the top counts
    "consensus.consistency_temperature": {"low": 10.0, "high": 1000.0, "log": True},  # T_c: how little a jump costs
    "consensus.every": {"choices": [5, 10, 20]},  # p: epochs between two rankings
    "model.dimensions": {"choices": [32, 64, 128]},  # of an embedding
    "model.dropout": {"low": 0.0, "high": 0.5},  # of the MLP
}
MEASURE = ("training.metric", "training.watch")  # figures of different ones cannot be compared
EXAMPLE = "{ low = 0.001, high = 0.03, log = true } or { choices = [32, 64] }"


class Range(Settings):
    """Numbers from low to high, both included; log: drawn evenly in the logarithm; step: only low + k step."""

    low: float
    high: float
    log: bool = False
    step: float | None = Field(None, gt=0)

    def holds(self, value: Any) -> bool:
        """Whether the value is one of them."""
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-8

    def distribution(self, name: str) -> BaseDistribution:
        """For Optuna; of whole numbers where the setting is one."""
        from optuna.distributions import FloatDistribution, IntDistribution

        kinds = {LEAVES[name], *get_args(LEAVES[name])}
        if not kinds & {int, float}:
            raise ValueError("it is no number: name its choices")
        if int not in kinds:
            return FloatDistribution(self.low, self.high, log=self.log, step=self.step)
        low, high, step = (int(value) for value in (self.low, self.high, self.step or 1))
        if (low, high, step) != (self.low, self.high, self.step or 1):
            raise ValueError("expected whole numbers")
        return IntDistribution(low, high, log=self.log, step=step)


class Choices(Settings):
    """A few values; the text none where a setting may be none."""

    choices: tuple[bool | int | float | str, ...] = Field(min_length=1)

    def holds(self, value: Any) -> bool:
        """Whether the value is one of them."""
        return value in self.choices

    def distribution(self, name: str) -> BaseDistribution:  # noqa: ARG002
        """For Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.choices)


Space = dict[str, Range | Choices]


def default_space(base: ConCFSettings, fixed: Collection[str]) -> dict[str, dict[str, Any]]:
    """The default without what is fixed, or does nothing: consensus for one head alone, dropout without the MLP.

    A re-ranker does not weigh consistency.
    """
    idle = () if base.several else tuple(name for name in DEFAULT_SPACE if name.startswith("consensus."))
    idle = idle if base.model.encoder == "mlp" else (*idle, "model.dropout")
    idle = (*idle, "consensus.consistency_temperature") if base.consensus.rerank else idle
    return {name: each for name, each in DEFAULT_SPACE.items() if name not in fixed and name not in idle}


def read_space(space: Mapping[str, Any] | str | Path) -> Space:
    """A space from its file, or from a mapping of full names or nested ones; one that makes no sense is refused."""
    if not isinstance(space, Mapping):
        space = read_toml(Path(space))
    found = {name: _entry(name, value) for name, value in flat(space, leaf=_is_entry).items()}
    if not found:
        raise ConfigError(f"the space is empty: name settings, each as {EXAMPLE}")
    return found


def _is_entry(value: Mapping[str, Any]) -> bool:
    return bool({"low", "high", "choices"} & set(value))


def _entry(name: str, value: Any) -> Range | Choices:
    if name not in LEAVES:
        group = name.partition(".")[0]
        near = [each for each in LEAVES if each.startswith(f"{group}.")] or sorted(
            {each.partition(".")[0] for each in LEAVES}
        )
        raise ConfigError(f"the space names an unknown setting {name!r}; there are {', '.join(near)}")
    if name in MEASURE:
        raise ConfigError(f"{name} cannot be searched: it is what trials are compared by")
    if not isinstance(value, Mapping):
        raise ConfigError(f"space: {name} = {value!r}: expected {EXAMPLE}")
    try:
        entry: Range | Choices = Choices(**value) if "choices" in value else Range(**value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            entry.distribution(name)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"space: {name}: {problem['loc'][0]}: {problem['msg']}; expected {EXAMPLE}") from None
    except (ValueError, UserWarning) as error:
        raise ConfigError(f"space: {name}: {error}") from None
    return entry


def _leaves(kind: Any, before: str = "") -> dict[str, Any]:
    """Full name -> type, of every setting."""
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        nested = hasattr(field.annotation, "model_fields")
        found |= _leaves(field.annotation, f"{before}{name}.") if nested else {before + name: field.annotation}
    return found


LEAVES = _leaves(ConCFSettings)


def flat(settings: Mapping[str, Any], before: str = "", leaf: Any = lambda _: False) -> dict[str, Any]:
    """{"consensus": {"weight": 0}} -> {"consensus.weight": 0}; a mapping that is a `leaf` stays whole."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        deeper = isinstance(value, Mapping) and not leaf(value)
        found |= flat(value, f"{before}{name}.", leaf) if deeper else {before + name: value}
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"consensus.weight": 0} -> {"consensus": {"weight": 0}}."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        group, dot, rest = name.partition(".")
        if dot:
            found.setdefault(group, {})[rest] = value
        else:
            found[name] = value
    return found


def differences(settings: ConCFSettings, other: ConCFSettings) -> dict[str, Any]:
    """Full name -> value, of the settings that the other has otherwise."""
    there = flat(other.model_dump())
    return {name: value for name, value in flat(settings.model_dump()).items() if value != there[name]}


def as_toml(settings: Mapping[str, Any]) -> str:
    """Nested settings as the file that `choose_settings` reads; None as "none"."""
    lines = [f"{name} = {_word(value)}" for name, value in settings.items() if not isinstance(value, Mapping)]
    for name, table in settings.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]", *(f"{each} = {_word(value)}" for each, value in table.items())]
    return "\n".join(lines) + "\n"


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    if isinstance(value, float):
        return repr(value)
    text = json.dumps("none" if value is None else value, ensure_ascii=False)  # as TOML writes text, true and 1
    return text.replace("\x7f", "\\u007f")
