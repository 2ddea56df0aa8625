"""The unit of a log's times, dates in it, and times that cannot be right."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Any

import polars as pl

from concf.data.reading.scan import Table
from concf.errors import ConfigError, DataError, note, option

When = str | float | date  # a date, or a time in a log's own unit
EARLIEST, LATEST = 3e8, 4.5e9  # seconds since 1970, 1979 to 2112: what times must be if their unit is to be told
TICKS = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}  # of a second
DAY = 86_400  # seconds that a clock may be ahead of ours


def ticks_of(when: float) -> int | None:
    """How many units of a time since 1970 make a second; None if it is no such time."""
    return next((ticks for ticks in TICKS if EARLIEST <= when / ticks <= LATEST), None)


def in_unit_of(newest: float, when: When, asked: str) -> float:
    """A date, or a number, in the unit of a log's times, which the newest of them tells.

    asked: the option that it is the value of, for messages
    """
    unit, day, number = ticks_of(newest), _date(when), _number(when)
    if day is not None and unit is not None:
        return day.timestamp() * unit
    if day is not None and number is None:
        raise ConfigError(
            f"{asked}: the log's times (newest: {newest:.15g}) are not seconds since 1970. Give one in their own unit"
        )
    if number is None or ticks_of(number) != unit:
        raise ConfigError(
            f"{asked}: expected a date such as 2024-01-31, or a time in the log's own unit (its newest: {newest:.15g})"
        )
    return number


def _date(when: When) -> datetime | None:
    """A date, or a time of a day, in UTC if it says nothing else; None if it is neither. Of digits alone: YYYYMMDD."""
    if isinstance(when, str) and (len(when) == 8 or _number(when) is None):
        with suppress(ValueError):
            when = datetime.fromisoformat(when)
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime.combine(when, time())
    if not isinstance(when, datetime):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _number(when: When) -> float | None:
    """A number, or text that is one, else None."""
    try:
        return None if isinstance(when, bool | date) else float(when)
    except (TypeError, ValueError):
        return None


def moment(when: float) -> str:
    """A time of a log in words: a date, if it is one."""
    unit = ticks_of(float(when))
    return f"{when:.15g}" if unit is None else datetime.fromtimestamp(float(when) / unit, UTC).date().isoformat()


def check_times(
    frames: list[pl.LazyFrame], tables: Sequence[Table], oldest: float, newest: float, drop: bool
) -> list[pl.LazyFrame]:
    """Refuse rows with bad times, or return the frames without them; both lists have an entry for each file.

    Where at least half of the times above 0 are since 1970 in a unit of `TICKS`, a row is bad if its time is 0 or
    below, is in the future, or is not in the commonest of these units. Other logs have times of their own, such as
    positions, and stay as they are.

    oldest, newest: of all rows; where these two are good, so are the others, and nothing is read
    drop:           whether to leave bad rows out, with a note
    """
    latest = clock.time() + DAY
    if newest < EARLIEST or any(EARLIEST * each <= oldest <= newest <= latest * each for each in TICKS):
        return frames
    ticks = _commonest_unit(frames)
    if ticks is None:
        return frames
    when = pl.col("timestamp")
    usual = when.is_between(EARLIEST * ticks, LATEST * ticks)
    causes = {
        "0 or negative": when <= 0,
        "far from most others (another unit, before 1979 or after 2112)": ~usual,
        "in the future": when > latest * ticks,
    }
    cause = pl.coalesce(pl.when(bad).then(pl.lit(name)) for name, bad in causes.items())
    counts, examples = dict.fromkeys(causes, 0), dict[str, str]()
    for frame, table in zip(frames, tables, strict=True):
        rows = frame.select("row", cause=cause).filter(pl.col("cause").is_not_null())
        for name, n_rows, row in rows.group_by("cause").agg(pl.len(), pl.min("row")).collect(engine="streaming").rows():
            counts[name] += n_rows
            examples.setdefault(name, f"{table.where(row)} = {_written(table, row)}")
    if not examples:
        return frames
    listed = "; ".join(f"{name}: {counts[name]:,}, the first {examples[name]}" for name in causes if name in examples)
    found = f"{tables[0].name}: column {tables[0].columns['timestamp']!r}: {sum(counts.values()):,} bad times"
    if not drop:
        raise DataError(
            f"{found} ({listed}). Correct them, drop the rows with {option('bad_times', 'drop')}, or leave the column "
            f"out with {option('timestamp', 'none')}"
        )
    note(f"{found}: these rows are dropped ({listed})")
    return [frame.filter(cause.is_null()) for frame in frames]


def _commonest_unit(frames: list[pl.LazyFrame]) -> int | None:
    """How many units of most times make a second; None if fewer than half of those above 0 are since 1970."""
    when = pl.col("timestamp")
    counts = [(when > 0).sum(), *(when.is_between(EARLIEST * each, LATEST * each).sum() for each in TICKS)]
    named = [each.cast(pl.Int64).alias(str(k)) for k, each in enumerate(counts)]
    rows = [frame.select(named).collect(engine="streaming").row(0) for frame in frames]
    n_positive, *per_unit = map(sum, zip(*rows, strict=True))
    return list(TICKS)[per_unit.index(max(per_unit))] if 2 * sum(per_unit) >= n_positive else None


def _written(table: Table, row: int) -> Any:
    """The time of a row as its source has it."""
    return table.frame.filter(pl.col("row") == row).select("timestamp").head(1).collect(engine="streaming").item()
