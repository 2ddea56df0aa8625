"""One set of options for whoever reads and divides a log: `prepare`, `ConCF.fit` and the commands."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from concf.data.filters import Filter
from concf.data.protocols import PROTOCOLS, Protocol
from concf.data.reading.scan import Format, Reading
from concf.errors import ConfigError, option

HELD_OUT = 0.1  # of each user's items, to stop training by; as much again to test on
ENOUGH_USERS = 5  # of an item, for something to be learned of it
AS_PUBLISHED = ("paper", "released", "given")  # protocols that say themselves what is left out


class LogOptions(TypedDict, total=False):
    """How a log is read, filtered and divided; what is None or absent is as if it were not said."""

    user: str | None  # column of the user; its place, from 0, in a file without header
    item: str | None  # column of the item
    rating: str | None  # column of an explicit rating, looked at only with `min_rating`; "none": there is none
    min_rating: float | None  # a row rated below is not an interaction
    count: str | None  # column that says how many events a row stands for; "none": there is none
    timestamp: str | None  # column of the time; "none": there is none
    time_format: str | None  # of times as text, such as %d/%m/%Y; None: ISO 8601
    format: Format | None  # of a file: table, parquet, jsonl, user-lines (id first), counted-lines (count first)
    separator: str | None  # of a text table; one or more characters
    header: bool | None  # whether the first line of a text table names the columns
    min_user: int | None  # a user with fewer interactions is left out
    min_item: int | None  # an item with fewer interactions is left out
    counts: Literal["raw", "distinct"] | None  # of interactions: all events, or each pair once
    core: bool | None  # repeat the filter until nothing changes
    protocol: str | None  # paper, released, random, leave-last, time or given
    valid: Any  # share that is held out for validation; with `given`, a log
    test: Any  # share that is held out for test; with `given`, a log
    at_least: int | None  # `random`: held out of every user to whom that leaves something, in each part
    last: int | None  # `leave-last`: how many of a user's newest, in each part
    valid_from: float | None  # `time`: the first time of validation
    test_from: float | None  # `time`: the first time of test


READING, FILTER = frozenset(Reading.model_fields), frozenset(Filter.model_fields)


def reading_of(options: dict[str, Any], known: Reading | None) -> Reading | None:
    """The reading that options say, or the one that is known; None: neither."""
    said = _said(options, READING)
    if said and known is not None:
        raise ConfigError(f"{', '.join(map(option, said))}: say it in {option('reading')}, which was given too")
    return Reading(**said) if said else known


def filter_of(options: dict[str, Any], known: Filter | None) -> Filter | None:
    """The filter that options say, or the one that is known; None: neither."""
    said = _said(options, FILTER)
    if said and known is not None:
        raise ConfigError(f"{', '.join(map(option, said))}: say it in {option('filter')}, which was given too")
    if said and not {"min_user", "min_item"} & said.keys():
        raise ConfigError(
            f"{' and '.join(map(option, said))}: this is how to filter; "
            f"say {option('min_user')} or {option('min_item')} too"
        )
    return Filter(**said) if said else known


def protocol_of(name: str, options: dict[str, Any]) -> Protocol:
    """The protocol of that name, with the settings among the options; what no record knows is refused."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}; choose from {', '.join(PROTOCOLS)}, given")
    said = settings_of(options)
    for setting in said:
        homes = [each for each, kind in PROTOCOLS.items() if setting in kind.model_fields]
        if not homes:
            raise ConfigError(f"nothing is called {option(setting)} here; there are {', '.join(_names())}")
        if name not in homes:
            raise ConfigError(f"protocol {name!r} has no {option(setting)}, which is for {', '.join(homes)}")
    return PROTOCOLS[name](**said)


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Of the options those of a protocol, or of nothing."""
    return {name: value for name, value in options.items() if name not in READING | FILTER and value is not None}


def for_training(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with what is best for training where they are non-voting.

    `random`: a tenth of each user's items to stop by and another to test on, one item at least; and rare items left
    out, unless the protocol itself says what is.
    """
    said = {name: value for name, value in options.items() if value is not None}
    said.setdefault("protocol", "random")
    if said["protocol"] == "random":
        said = {"valid": HELD_OUT, "test": HELD_OUT, "at_least": 1} | said
    return said if said["protocol"] in AS_PUBLISHED else {"min_item": ENOUGH_USERS} | said


def _said(options: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in names and value is not None}


def _names() -> list[str]:
    return [option(name) for name in LogOptions.__annotations__]
