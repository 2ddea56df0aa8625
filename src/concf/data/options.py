"""Options for reading, filtering and splitting a log: the same in `prepare`, `ConCF.fit` and the commands."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from concf.data.filters import Filter
from concf.data.protocols import PROTOCOLS, Protocol
from concf.data.reading.scan import Format, Reading
from concf.errors import ConfigError, option


class ReadingOptions(TypedDict, total=False):
    """How to read a log; None is the same as leaving an option out."""

    user: str | None  # column of the user; its index, from 0, in a file without header
    item: str | None  # column of the item
    rating: str | None  # column of an explicit rating, used only with one of the bounds; "none": there is none
    min_rating: float | None  # rows rated lower are not interactions
    dislike_below: float | None  # rows rated lower are dislikes: never recommended, and observed zeros of ALS
    dislikes: Any  # a log of dislikes, such as a file; they are no interactions, whatever the log itself says
    count: str | None  # column with the number of events, or the weight, of a row; "none": there is none
    timestamp: str | None  # column of the time; "none": there is none
    time_format: str | None  # of times in text, such as %d/%m/%Y; None: ISO 8601
    bad_times: Literal["refuse", "drop"] | None  # rows whose time is 0, below it, in the future or of another unit
    format: Format | None  # of a file: table, parquet, jsonl, user-lines (id first), counted-lines (count first)
    ordered: bool | None  # whether a line with a user's items is in order of time: places in it are the times
    separator: str | None  # of a text table; one or more characters
    header: bool | None  # whether the first line of a text table names the columns


class LogOptions(ReadingOptions, total=False):
    """How to read, filter and split a log."""

    min_user: int | None  # users with fewer interactions are left out
    min_item: int | None  # items with fewer interactions are left out
    counts: Literal["raw", "distinct"] | None  # of interactions: all events, or each pair once
    core: bool | None  # repeat the filter until nothing changes
    protocol: str | None  # paper, released, random, leave-last, time, new-users, new-items or given
    valid: Any  # share held out for validation (`new-users`: of the users); `given`: of the training log, or a log
    test: Any  # share held out for test (`new-users`: of the users; `new-items`: of the items); `given`: a log
    newest: bool | None  # `given`: whether the share for validation is of each user's newest training items
    at_least: int | None  # `random`: held out of each user in each part, if that leaves something to train on
    last: int | None  # `leave-last`: number of a user's newest interactions in each part
    valid_from: float | None  # `time`: start of the validation part
    test_from: float | None  # `time`: start of the test part
    wanted: float | None  # `new-users`: share of a held-out user's items that are to be found


def chosen(options: ReadingOptions) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def reading_of(options: dict[str, Any]) -> Reading:
    """Return the settings for reading the log."""
    return Reading(**{name: value for name, value in options.items() if name in Reading.model_fields})


def filter_of(options: dict[str, Any]) -> Filter | None:
    """Return the filter, or None if no option sets one."""
    settings = {name: value for name, value in options.items() if name in Filter.model_fields}
    if settings and not {"min_user", "min_item"} & settings.keys():
        raise ConfigError(
            f"{' and '.join(map(option, settings))}: nothing to filter by. "
            f"Set {option('min_user')} or {option('min_item')} too"
        )
    return Filter(**settings) if settings else None


def protocol_of(name: str, options: dict[str, Any]) -> Protocol:
    """Return the protocol of that name with its settings; unknown options are refused."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}; choose from {', '.join(PROTOCOLS)}")
    others = {*Reading.model_fields, *Filter.model_fields, "protocol", "dislikes"}
    settings = {setting: value for setting, value in options.items() if setting not in others and value is not None}
    for setting in settings:
        owners = [owner for owner, protocol in PROTOCOLS.items() if setting in protocol.model_fields]
        if not owners:
            names = ", ".join(map(option, LogOptions.__annotations__))
            raise ConfigError(f"unknown option {option(setting)}; the options are {names}")
        if name not in owners:
            raise ConfigError(f"protocol {name!r} has no {option(setting)}, which is for {', '.join(owners)}")
    return PROTOCOLS[name](**settings)


def training_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with defaults for training.

    `random` holds out a tenth of each user's items for validation and for test, at least one of each. Items with fewer
    than 5 users are left out, unless the protocol filters itself.
    """
    options = {"protocol": "random"} | options
    if options["protocol"] == "random":
        options = {"valid": 0.1, "test": 0.1, "at_least": 1} | options
    own_filter = options["protocol"] in ("paper", "released", "given")
    return options if own_filter else {"min_item": 5} | options
