"""An estimator's parameters as scikit-learn has them: `get_params`, `set_params`, `clone`, `repr`, and no pickle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from concf.errors import ConfigError
from concf.runtime.arguments import check_seed
from concf.training.config.presets import DEFAULT, PRESETS, choose_settings, nearest_preset
from concf.training.config.settings import ConCFSettings

DEFAULTS = {"preset": DEFAULT, "seed": 0, "device": None}
NO_PICKLE = (
    "a fitted model is not pickled, since whoever opens a pickle runs the code that is in it, and it may not be "
    "read by another version. Use model.save(folder) and ConCF.load(folder)"
)


class Parameters(ABC):
    """What the constructor was given, and the settings that follow from it.

    settings, seed, device: what `fit` trains with
    """

    settings: ConCFSettings
    seed: int
    device: str | None

    def _take(self, params: Mapping[str, Any]) -> None:
        """Take the parameters of a constructor, if they are right; the objects themselves are kept, as `clone` asks."""
        changes = {name: value for name, value in params.items() if name not in DEFAULTS}
        settings, seed = choose_settings(params["preset"], changes), check_seed(params["seed"])
        self._params = dict(params)
        self.settings, self.seed, self.device = settings, seed, params["device"]

    def _take_settings(self, settings: ConCFSettings, seed: int) -> None:
        """Take the settings of a run: the nearest preset, and what differs from it."""
        preset, _ = nearest_preset(settings)
        changes = _differences(settings.model_dump(), PRESETS[preset].model_dump())
        self._params = {"preset": preset, "seed": seed, "device": self.device, **changes}
        self.settings, self.seed = settings, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor, by name: preset, seed, device, and the changes that were given.

        deep: also each setting as it is, as `consensus__weight`, which `set_params` takes
        """
        params = dict(self._params)
        if deep:
            for group, value in self.settings.model_dump().items():
                if isinstance(value, Mapping):
                    params |= {f"{group}__{name}": each for name, each in value.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters for the next `fit`: set_params(seed=1, consensus__weight=0.1). Returns the model itself.

        A group of settings (consensus={...}) replaces the changes of that group; a single one is added to them.
        """
        known = {*DEFAULTS, *ConCFSettings.model_fields, *self.get_params()}
        changed = dict(self._params)
        for name, value in params.items():
            if name not in known:
                raise ConfigError(f"unknown parameter {name!r}; there are {', '.join(sorted(known))}")
            group, _, setting = name.partition("__")
            changed[group] = {**(changed.get(group) or {}), setting: value} if setting else value
        self._take(changed)
        return self

    def __copy__(self) -> Self:
        """The same model once more; fitting or updating one leaves the other as it is."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> Any:
        if self._fitted_to():
            raise ConfigError(NO_PICKLE)
        return _made, (type(self), self._params)

    def __repr__(self) -> str:
        told = [f"{name}={value!r}" for name, value in self._params.items() if DEFAULTS.get(name, ...) != value]
        return f"{type(self).__name__}({', '.join(told)})  # {self._fitted_to() or 'not fitted'}"

    @abstractmethod
    def _fitted_to(self) -> str:
        """What it was fitted to; empty if to nothing."""


def _made(kind: type[Any], params: dict[str, Any]) -> Any:
    return kind(**params)


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What of a nested mapping differs from another."""
    found = {}
    for name, value in mine.items():
        other = theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            value = _differences(value, other) or other
        if value != other:
            found[name] = value
    return found
