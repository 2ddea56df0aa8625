"""Options of all commands that read a log."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args, get_type_hints

import typer

from concf.data.options import LogOptions
from concf.data.reading.times import DURATION
from concf.errors import FLAGS, ConfigError, option

DATA, SPLIT = "Data", "Split"  # panels of the help page
OPTIONS = get_type_hints(LogOptions, include_extras=True)
KINDS: dict[Any, Any] = {each | None: each for each in (bool, int, float)}  # anything else is text
READING = list(OPTIONS)[: list(OPTIONS).index("min_user")]
SPLITTING = list(OPTIONS)[list(OPTIONS).index("protocol") :]
MOVED = "an option of `concf prepare`. Use: concf prepare LOG --out DIR, then concf train DIR"


def reads_a_log(
    names: Collection[str] = OPTIONS, moved: bool = False, **defaults: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command, which gets those that the user set as its argument `log`, a dictionary.

    names: the options; moved: whether other options are refused with a hint at `concf prepare`
    defaults: shown on the help page as the default of an option
    """
    defaults = {"format": "auto", "counts": "distinct"} | defaults
    options = [name for name in OPTIONS if moved or name in names]

    def parameter(name: str) -> inspect.Parameter:
        wanted, about = get_args(OPTIONS[name])
        kind = bool if name in FLAGS else KINDS.get(wanted, str)
        both = kind is not bool or name == "header"  # --header/--no-header; other flags cannot be negated
        info = typer.Option(
            *() if both else (f"--{FLAGS.get(name, name)}",),
            help=about,
            rich_help_panel=SPLIT if name in SPLITTING else DATA,
            show_default=defaults.get(name, False),
            hidden=name not in names,
        )
        only = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, only, default=None, annotation=Annotated[kind | None, info])

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            log = {name: value for name in options if (value := given.pop(name)) is not None}
            refuse_options({name: value for name, value in log.items() if name not in names}, MOVED)
            command(**given, log=_converted(log))

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, each in signature.parameters.items():  # the options take the place of `log`
            own = list(map(parameter, options)) if name == "log" else [each]
            parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return with_options


def weighting(weights: str | None, half_life: str | None, age: str | None) -> list[str]:
    """Return the settings of --weights, --half-life and --age, as NAME=VALUE."""
    chosen = {"function": weights, "half_life": half_life, "age": age}
    return [f"weights.{name}={value}" for name, value in chosen.items() if value is not None]


def refuse_options(log: dict[str, Any], reason: str) -> None:
    """Refuse options that would have no effect."""
    if log:
        raise ConfigError(f"{', '.join(map(option, log))}: {reason}")


def _converted(log: dict[str, Any]) -> dict[str, Any]:
    """Convert `\\t` to a tab, shares to numbers and the flag of bad times to their treatment."""
    if log.pop("bad_times", False):
        log["bad_times"] = "drop"
    if "separator" in log:
        log["separator"] = log["separator"].replace("\\t", "\t")
    given = log.get("protocol") == "given"
    for name in ({"valid"} if given else {"valid", "test"}) & log.keys():
        try:
            share = float(log[name])
            log[name] = log[name] if share >= 1 else share  # a duration in the log's own unit
        except ValueError:
            if given or DURATION.fullmatch(log[name]):
                continue  # a file, or a duration
            words = "a share such as 0.2, a duration such as 28d, or with --protocol given a file"
            raise ConfigError(f"--{name} {log[name]!r}: expected {words}") from None
    return log
