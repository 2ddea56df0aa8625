"""Options of all commands that read a log."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, NamedTuple

import typer

from concf.data.reading.times import DURATION
from concf.errors import FLAGS, ConfigError, option

DATA, SPLIT = "Data", "Split"  # panels of the help page


class Option(NamedTuple):
    """Option: its type, help, panel of the help page, and its flag if that is not its name."""

    kind: Any
    help: str
    panel: str
    flags: tuple[str, ...] = ()


OPTIONS = {
    "user": Option(str, "Column of the user (its index from 0 if no header).", DATA),
    "item": Option(str, "Column of the item.", DATA),
    "rating": Option(str, "Column of an explicit rating (`none`: leave it out).", DATA),
    "min_rating": Option(float, "Rows rated lower are not interactions.", DATA),
    "dislike_below": Option(float, "Rows rated lower are dislikes, which are never recommended.", DATA),
    "count": Option(str, "Column of the number of events, or of weights (`none`: leave it out).", DATA),
    "timestamp": Option(str, "Column of the time (`none`: leave it out).", DATA),
    "time_format": Option(str, "Format of times in text that are not ISO 8601, such as %d/%m/%Y.", DATA),
    "bad_times": Option(bool, "Drop rows whose time is 0, negative, in the future or in another unit than most. Else they are refused.", DATA, (f"--{FLAGS['bad_times']}",)),
    "format": Option(str, "auto, table, parquet, jsonl, user-lines (id first), counted-lines (count first).", DATA),
    "ordered": Option(bool, "With a line per user: its items are in order of time.", DATA, ("--ordered",)),
    "separator": Option(str, "Separator of a text table, such as ';' or '::'.", DATA),
    "header": Option(bool, "Whether line 1 names the columns.", DATA, ("--header/--no-header",)),
    "min_user": Option(int, "Interactions a user must have.", DATA),
    "min_item": Option(int, "Interactions an item must have.", DATA),
    "counts": Option(str, "Count `raw` events or `distinct` pairs.", DATA),
    "core": Option(bool, "Repeat until nothing changes (k-core).", DATA, ("--core",)),
    "protocol": Option(str, "paper, released, random, leave-last, time, new-users, new-items or given.", SPLIT),
    "valid": Option(str, "Share held out for validation, or with `time` a duration such as 28d; with `new-users`, of the users; with `given`, of the training file, or a file.", SPLIT),
    "test": Option(str, "Share held out for test, or with `time` a duration such as 28d (with `new-users`, of the users; with `new-items`, of the items); with `given`, a file.", SPLIT),
    "newest": Option(bool, "With `given`: the share for validation is of each user's newest training items.", SPLIT, ("--newest",)),
    "at_least": Option(int, "With `random`: items held out of every user who has enough, in each part.", SPLIT),
    "last": Option(int, "With `leave-last`: how many.", SPLIT),
    "valid_from": Option(str, "With `time`: start of the validation part, a date or in the log's own unit.", SPLIT),
    "test_from": Option(str, "With `time`: start of the test part, such as 2026-11-01.", SPLIT),
    "target_share": Option(float, "With `new-users`: share of a held-out user's items that are to be found.", SPLIT),
}  # fmt: skip
SPLITTING = frozenset(name for name, each in OPTIONS.items() if each.panel == SPLIT)
READING = list(OPTIONS)[: list(OPTIONS).index("min_user")]
MOVED = "an option of `concf prepare`. Use: concf prepare LOG --out DIR, then concf train DIR"


def reads_a_log(
    names: Collection[str] = OPTIONS, moved: bool = False, **defaults: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command, which gets those that the user set as its argument `log`, a dictionary.

    names: the options; moved: whether other options are refused with a hint at `concf prepare`
    defaults: shown on the help page as the default of an option
    """
    defaults = {"format": "auto", "counts": "distinct"} | defaults
    options = OPTIONS if moved else {name: OPTIONS[name] for name in names}

    def parameter(name: str, each: Option) -> inspect.Parameter:
        shown, hidden = defaults.get(name, False), name not in names
        info = typer.Option(*each.flags, help=each.help, rich_help_panel=each.panel, show_default=shown, hidden=hidden)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=None, annotation=Annotated[each.kind | None, info])

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            log = {name: value for name in options if (value := given.pop(name)) is not None}
            refuse_options({name: value for name, value in log.items() if name not in names}, MOVED)
            command(**given, log=_converted(log))

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, each in signature.parameters.items():  # the options take the place of `log`
            own = [parameter(*item) for item in options.items()] if name == "log" else [each]
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
