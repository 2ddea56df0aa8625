"""Settings of a run that both models share; merging of presets, files and --set words."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from types import NoneType
from typing import Any, ClassVar, Self, get_args

from pydantic import Field, ValidationError

from concf.data.weights import Weighting
from concf.errors import ConfigError
from concf.runtime.settings import Settings, flat, nested

CONSENSUS, R_CONSENSUS = "consensus", "R-consensus"  # names of results: by R + C, and by R alone


class VotingSettings(Settings):
    """Settings of the consensus of rankings (Eq. 10-12)."""

    top_k: int | None = Field(100, ge=1, description="K: a voter votes for its first K items; none: for all")
    temperature: float = Field(10.0, gt=0, description="T: the smaller, the more the top ranks count")
    shown: int = Field(200, ge=1, description="items of the consensus that are kept to recommend from")


class ValidationSettings(Settings):
    """Validation of a run."""

    metric: str = Field("auto", description="validation metric; auto: recall@50, or with few items NDCG at a tenth")
    validated_users: int | None = Field(None, ge=1, description="users to validate on, drawn by the seed; none: all")


class RunSettings(Settings):
    """Everything that a run of one model depends on, except for the data and the seed.

    kind: name of the model, as in `run.json`; presets: name -> settings of this model
    """

    kind: ClassVar[str]
    presets: ClassVar[dict[str, RunSettings]] = {}
    consensus: VotingSettings = VotingSettings()
    training: ValidationSettings = ValidationSettings()
    weights: Weighting = Weighting()

    @property
    def heads(self) -> list[str]:
        """Names of the heads, in the order of tables."""
        raise NotImplementedError

    @property
    def non_voting(self) -> tuple[str, ...]:
        """Heads that do not vote."""
        return ()

    @property
    def consistency_temperature(self) -> float | None:
        """T_c (Eq. 11); None: consistency does not count."""
        return None

    @property
    def several(self) -> bool:
        """Whether there are voters to agree; one head alone is SingleCF."""
        return len(self.heads) > 1

    def changed(self, *layers: Mapping[str, Any]) -> Self:
        """Return a copy with nested changes, such as {"consensus": {"weight": 0}}, the later over the earlier."""
        chosen = self.model_dump()
        for layer in layers:
            chosen = merged(chosen, _with_nones(layer, type(self)))
        try:
            return type(self).model_validate(chosen)
        except ValidationError as error:
            raise ConfigError("; ".join(self._explain(dict(problem)) for problem in error.errors())) from None

    def nearest_preset(self) -> tuple[str, dict[str, tuple[Any, Any]]]:
        """Find the preset with the fewest differences, as a run does not record its own; name -> (value, preset's)."""
        own, changes = flat(self.model_dump(mode="json")), dict[str, dict[str, tuple[Any, Any]]]()
        for name, preset in self.presets.items():
            theirs = flat(preset.model_dump(mode="json"))
            changes[name] = {key: (own[key], theirs[key]) for key in own if own[key] != theirs[key]}
        nearest = min(changes, key=lambda name: (len(changes[name]), name != "reference"))
        return nearest, changes[nearest]

    def _explain(self, problem: dict[str, Any]) -> str:
        """Word one of pydantic's errors: which setting, what is wrong, what was found."""
        where, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            kind: Any = type(self)
            for part in problem["loc"][:-1]:
                kind = kind.model_fields[part].annotation
            return f"unknown setting {where!r} of {self.kind}; there are {', '.join(kind.model_fields)}"
        value = "" if isinstance(problem["input"], Mapping) else f" = {problem['input']!r}"
        return f"{where}{value}: {message}" if where else message


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; those of `above` take precedence."""
    both = dict(below)
    for name, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = merged(both[name], value) if nested else value
    return both


def from_word(word: str) -> dict[str, Any]:
    """Parse `consensus.weight=0` to {"consensus": {"weight": 0}}; the value is TOML, or else plain text."""
    name, equals, text = word.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {word!r}: expected name=value, such as consensus.top_k=100")
    value: Any = text.strip()
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {value}")["value"]
    return nested({name.strip(): value})


def _with_nones(layer: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Read the text `none` as None where a setting may be None: TOML has no word for it."""
    read: dict[str, Any] = {}
    for name, value in layer.items():
        field = getattr(kind, "model_fields", {}).get(name)
        inner = None if field is None else field.annotation
        if isinstance(value, Mapping):
            read[name] = _with_nones(value, inner)
        else:
            nothing = isinstance(value, str) and value.lower() == "none" and NoneType in get_args(inner)
            read[name] = None if nothing else value
    return read
