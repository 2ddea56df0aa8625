"""Settings by name: the paper to the letter, what its released code does, our reading of both, and what ranks best."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import ValidationError

from concf.consensus.settings import ConsensusSettings  # fmt: skip
from concf.errors import ConfigError, note
from concf.reference.objectives import LossSettings
from concf.runs.settings import (
    READ_BY_RECIPE,
    BalanceSettings,
    ConCFSettings,
    ModelSettings,
    RecipeSettings,
    TrainingSettings,
)
from concf.runtime.settings import flat, named, read_toml

REFERENCE = ConCFSettings()

PAPER = ConCFSettings(
    losses=LossSettings(distance="plain", distance_scale=1.0, error_scale=0.5),
    model=ModelSettings(initial_std=None, dropout=0.0),
    consensus=ConsensusSettings(
        weight=0.01,
        window=5,
        consistency_temperature=10.0,
        begins="warm-up",
        non_voting=("multinomial-users",),
        weight_range=None,
    ),
    balance=BalanceSettings(
        ratio_of="whole",
        exponent=1.0,
        settle=0,
        total=1.0,
        floor=1e-4,
        optimiser="descent",
        learning_rate=1e-4,  # the paper leaves it open
        norm="joint",
    ),
    training=TrainingSettings(weight_decay=0.0),
)

RELEASED = ConCFSettings(
    consensus=ConsensusSettings(
        every=10, window=5, begins="after-warm-up", window_moves=False, newest_votes=False, clip=40.0
    ),
    training=TrainingSettings(epochs=200, patience=None),
)

RECIPE = RecipeSettings()

STRONG = ConCFSettings(
    objectives=RECIPE.objectives,
    model=ModelSettings(encoder="mf", dimensions=256, sharing="none"),
    consensus=ConsensusSettings(
        temperature=20.0, consistency_temperature=None, top_k=200, non_voting=("student",), undistilled=()
    ),
    balance=BalanceSettings(on=False),
    recipe=RECIPE,
)

PRESETS = {"paper": PAPER, "released": RELEASED, "reference": REFERENCE, "strong": STRONG}
_READ = tuple(f"{name}." for name in READ_BY_RECIPE)
DEFAULT, DEFAULT_OF_ONE = "strong", "reference"  # where none is named, and where one objective is trained alone


def preset(name: str) -> ConCFSettings:
    """The settings of that name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def choose_settings(
    base: str | ConCFSettings | None = None,
    changes: Mapping[str, Any] | None = None,
    *,
    file: str | Path | None = None,
    words: Iterable[str] = (),
    single: str | None = None,
) -> ConCFSettings:
    """A preset or settings, over it a TOML file, nested `changes`, words as `consensus.weight=0`, one head alone.

    A file may say which preset it is over: `preset = "reference"`. Where nothing does, it is strong; of one head alone
    reference.
    """
    layer = read_toml(Path(file)) if file else {}
    over = layer.pop("preset", None)
    if over is not None:
        preset(over)
    if isinstance(base, str) and over not in (None, base):
        raise ConfigError(f"{file}: its settings are over the preset {over!r}, but {base!r} was asked for. Name none")
    if base is None:
        base = (DEFAULT if single is None else DEFAULT_OF_ONE) if over is None else over
    chosen = (base if isinstance(base, ConCFSettings) else preset(base)).model_dump()
    recipe, layers = chosen["recipe"], [layer, changes or {}, *map(_setting, words)]
    derived = STRONG.objectives if recipe is None else chosen["objectives"]
    for each in layers:
        chosen = _merged(chosen, _with_nones(each, ConCFSettings))
    if single is not None and chosen["recipe"] not in (recipe, None):
        raise ConfigError("recipe (--budget, --final): is of several heads, and one alone was asked for")
    if single is not None:
        chosen = _merged(chosen, {"objectives": (single,), "training": {"watch": named(single)[0]}, "recipe": None})
    try:
        if chosen["recipe"] is not None and chosen["model"]["encoder"] != "mf":
            raise ConfigError(
                "recipe (--budget, --final): is of the preset strong, with the encoder mf, and this is "
                f"{chosen['model']['encoder']!r}. Choose the preset strong, or leave it out"
            )
        if chosen["recipe"] is not None and chosen["objectives"] == derived:
            with suppress(ValidationError):  # which the settings as a whole report, by the whole name
                chosen["objectives"] = RecipeSettings.model_validate(chosen["recipe"]).objectives
        settings = ConCFSettings.model_validate(chosen)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(dict(problem)) for problem in error.errors())) from None
    unread = {name for each in layers for name in flat(each) if not f"{name}.".startswith(_READ)}
    if settings.recipe is not None and unread:
        note(
            f"{', '.join(sorted(unread))}: without effect, since only Algorithm 1 reads it, and strong has a recipe of "
            "its own. Choose the preset reference to train by Algorithm 1"
        )
    return settings


def nearest_preset(chosen: ConCFSettings) -> tuple[str, dict[str, tuple[Any, Any]]]:
    """The preset with the fewest differences, which a run does not record, and name -> (value, the preset's value)."""
    mine, changes = flat(chosen.model_dump(mode="json")), dict[str, dict[str, tuple[Any, Any]]]()
    for name, each in PRESETS.items():
        theirs = flat(each.model_dump(mode="json"))
        changes[name] = {key: (mine[key], theirs.get(key)) for key in mine if mine[key] != theirs.get(key)}
    nearest = min(changes, key=lambda name: (len(changes[name]), name != "reference"))
    return nearest, changes[nearest]


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if nested else value
    return merged


def _with_nones(layer: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The text `none` as None where a setting may be None: TOML has no word for it."""
    read: dict[str, Any] = {}
    for name, value in layer.items():
        field = getattr(kind, "model_fields", {}).get(name)
        inner = None if field is None else field.annotation
        if isinstance(value, Mapping):
            read[name] = _with_nones(value, _settings_of(inner))
        else:
            nothing = isinstance(value, str) and value.lower() == "none" and NoneType in get_args(inner)
            read[name] = None if nothing else value
    return read


def _settings_of(annotation: Any) -> Any:
    """The class of a section that may be None."""
    return next((each for each in get_args(annotation) if each is not NoneType), annotation)


def _in_words(problem: dict[str, Any]) -> str:
    """One of pydantic's complaints: which setting, what is wrong, what was found."""
    where, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        kind: Any = ConCFSettings
        for part in problem["loc"][:-1]:
            kind = _settings_of(kind.model_fields[part].annotation)
        return f"unknown setting {where!r}; there are {', '.join(kind.model_fields)}"
    found = "" if isinstance(problem["input"], Mapping) else f" = {problem['input']!r}"
    return f"{where}{found}: {message}" if where else message


def _setting(word: str) -> dict[str, Any]:
    """`consensus.weight=0` -> {"consensus": {"weight": 0}}; the value as in TOML, or else plain text."""
    name, equals, text = word.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {word!r}: expected name=value, such as consensus.weight=0")
    value: Any = text.strip()
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {value}")["value"]
    for part in reversed(name.strip().split(".")):
        value = {part: value}
    return dict(value)
