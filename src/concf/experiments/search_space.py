"""Which settings are searched, and settings by their full names: `consensus.weight`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from concf.errors import ConfigError
from concf.runtime.settings import flat, read_toml
from concf.training.config.settings import ConCFSettings

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    Space = dict[str, BaseDistribution]  # by the full name of a setting

DEFAULT_SPACE: dict[str, dict[str, Any]] = {
    "training.learning_rate": {"low": 1e-3, "high": 3e-2, "log": True},
    "training.weight_decay": {"low": 1e-7, "high": 1e-3, "log": True},
    "consensus.weight": {"low": 1e-3, "high": 1e-1, "log": True},  # alpha
    "consensus.temperature": {"low": 3.0, "high": 30.0, "log": True},  # T
    "consensus.consistency_temperature": {"low": 10.0, "high": 1000.0, "log": True},  # T_c
    "consensus.every": {"choices": [5, 10, 20]},  # p
    "model.dimensions": {"choices": [32, 64, 128]},
    "model.dropout": {"low": 0.0, "high": 0.5},
}
SETTINGS = tuple(flat(ConCFSettings().model_dump()))  # by their full names
METRIC_SETTINGS = ("training.metric", "training.watch")  # trials are compared by them
EXAMPLE = "{ low = 0.001, high = 0.03, log = true } or { choices = [32, 64] }"


def default_space(base: ConCFSettings, fixed: Collection[str]) -> dict[str, dict[str, Any]]:
    """The default space without the settings that are fixed or have no effect.

    A single head has no consensus, only the MLP has dropout, and a recipe chooses the settings of its voters itself.
    """
    unused = set(fixed)
    if base.recipe is not None:
        unused |= DEFAULT_SPACE.keys() - {"consensus.temperature", "model.dimensions"}
    if not base.several:
        unused |= {name for name in DEFAULT_SPACE if name.startswith("consensus.")}
    if base.model.encoder != "mlp":
        unused.add("model.dropout")
    return {name: each for name, each in DEFAULT_SPACE.items() if name not in unused}


def read_space(space: Mapping[str, Any] | str | Path) -> Space:
    """A space from a TOML file, or from a mapping with full or nested names; errors name the setting."""
    entries = space if isinstance(space, Mapping) else read_toml(Path(space))
    by_name = flat(entries, leaf=lambda each: bool({"low", "high", "choices"} & set(each)))
    read = {name: _distribution(name, entry) for name, entry in by_name.items()}
    if not read:
        raise ConfigError(f"the space is empty: name settings, each as {EXAMPLE}")
    return read


def _distribution(name: str, entry: Any) -> BaseDistribution:
    if name not in SETTINGS:
        group = name.partition(".")[0]
        near = [each for each in SETTINGS if each.startswith(f"{group}.")]
        near = near or sorted({each.partition(".")[0] for each in SETTINGS})
        raise ConfigError(f"the space names an unknown setting {name!r}; there are {', '.join(near)}")
    if name in METRIC_SETTINGS:
        raise ConfigError(f"{name} cannot be searched: trials are compared by it")
    if not isinstance(entry, Mapping):
        raise ConfigError(f"space: {name} = {entry!r}: expected {EXAMPLE}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _make(name, **entry)
    except (ValueError, TypeError, UserWarning) as error:
        raise ConfigError(f"space: {name}: {error}; expected {EXAMPLE}") from None


def _make(name: str, /, **entry: Any) -> BaseDistribution:
    """Optuna's distribution for a setting: of integers where its type has them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "choices" in entry:
        return CategoricalDistribution(**entry)
    setting: Any = ConCFSettings
    for part in name.split("."):
        setting = setting.model_fields[part].annotation
    types = {setting, *get_args(setting)}
    if not types & {int, float}:
        raise ValueError("it is not a number, so list its choices")
    if int not in types:
        return FloatDistribution(**entry)
    if any(value != int(value) for value in entry.values()):
        raise ValueError("it takes whole numbers")
    whole: dict[str, Any] = {name: value if name == "log" else int(value) for name, value in entry.items()}
    return IntDistribution(**whole)


def contains(distribution: BaseDistribution, value: Any) -> bool:
    """Whether the value can be drawn."""
    from optuna.trial import create_trial

    try:
        create_trial(value=0.0, params={"": value}, distributions={"": distribution})
    except ValueError:
        return False
    return True


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"consensus.weight": 0} -> {"consensus": {"weight": 0}}."""
    groups: dict[str, Any] = {}
    for name, value in settings.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
        else:
            groups[name] = value
    return groups


def differences(settings: ConCFSettings, other: ConCFSettings) -> dict[str, Any]:
    """Full name -> value, of the settings that differ from the other's, or that the other does not have."""
    mine, theirs = flat(settings.model_dump()), flat(other.model_dump())
    return {name: value for name, value in mine.items() if name not in theirs or value != theirs[name]}


def as_toml(settings: Mapping[str, Any]) -> str:
    """Settings by their full names as the file that `choose_settings` reads; None as "none"."""
    import tomli_w

    return tomli_w.dumps(nested({name: "none" if value is None else value for name, value in settings.items()}))
