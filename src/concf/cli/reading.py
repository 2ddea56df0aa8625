"""The options of all commands that read a log: one set, defined here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from concf.errors import ConfigError, option

READING = "How to read a log"
FILTER = "What to leave out of it first"
PROTOCOL = "How to divide it"


@dataclass(frozen=True)
class Option:
    """One option: its type, its help, the panel it stands in, and its flags where they are not its name."""

    kind: Any
    help: str
    panel: str
    flags: tuple[str, ...] = ()

    def parameter(self, name: str, default: str | None) -> inspect.Parameter:
        """As typer reads it from a signature. default: what help says of it; what is not said is None."""
        shown = typer.Option(*self.flags, help=self.help, rich_help_panel=self.panel, show_default=default or False)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=None, annotation=Annotated[self.kind | None, shown])


OPTIONS = {
    "user": Option(str, "Column of the user (its place from 0 if no header).", READING),
    "item": Option(str, "Column of the item.", READING),
    "rating": Option(str, "Column of an explicit rating (`none`: leave it out).", READING),
    "min_rating": Option(float, "Rows rated below are no interactions.", READING),
    "count": Option(str, "Column of how often (`none`: leave it out).", READING),
    "timestamp": Option(str, "Column of the time (`none`: leave it out).", READING),
    "time_format": Option(str, "Of times as text that are not ISO 8601, such as %d/%m/%Y.", READING),
    "format": Option(
        str, "auto, table, parquet, jsonl, user-lines (id first), counted-lines (count first).", READING
    ),
    "separator": Option(str, "Of a text table, such as ';' or '::'.", READING),
    "header": Option(bool, "Whether line 1 names the columns.", READING, ("--header/--no-header",)),
    "min_user": Option(int, "Interactions a user must have.", FILTER),
    "min_item": Option(int, "Interactions an item must have.", FILTER),
    "counts": Option(str, "Count `raw` events or `distinct` pairs.", FILTER),
    "core": Option(bool, "Repeat until nothing changes (k-core).", FILTER, ("--core",)),
    "protocol": Option(str, "paper, released, random, leave-last, time or given.", PROTOCOL),
    "valid": Option(str, "Share held out for validation; with `given`, the file.", PROTOCOL),
    "test": Option(str, "Share held out for test; with `given`, the file.", PROTOCOL),
    "at_least": Option(int, "With `random`: items held out of every user who has enough, in each part.", PROTOCOL),
    "last": Option(int, "With `leave-last`: how many.", PROTOCOL),
    "valid_from": Option(float, "With `time`: the first time of validation.", PROTOCOL),
    "test_from": Option(float, "With `time`: the first time of test.", PROTOCOL),
}  # fmt: skip
DIVIDING = frozenset(name for name, each in OPTIONS.items() if each.panel == PROTOCOL)
USUAL = {"format": "auto", "counts": "distinct"}  # whatever the command


def reads_a_log(**defaults: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all the options; it takes those that were said as a dictionary, its argument `log`.

    defaults: what help says of an option where the command has a default of its own
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [each for name, each in own.parameters.items() if name != "log"]
        added = [each.parameter(name, (USUAL | defaults).get(name)) for name, each in OPTIONS.items()]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            said = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
            command(**given, log=_understood(said))

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept] + added
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return with_options


def refuse_options(log: dict[str, Any], reason: str) -> None:
    """Refuse options that would change nothing."""
    if log:
        raise ConfigError(f"{', '.join(map(option, log))}: {reason}")


def _understood(said: dict[str, Any]) -> dict[str, Any]:
    """The options with a tab and shares as they are meant."""
    if "separator" in said:
        said["separator"] = said["separator"].replace("\\t", "\t")
    if said.get("protocol") != "given":
        for name in ("valid", "test"):
            if name in said:
                said[name] = _share(name, said[name])
    return said


def _share(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(
            f"--{name} {value!r}: expected a share such as 0.2 (a file only with --protocol given)"
        ) from None
