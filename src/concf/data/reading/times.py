"""Units of time, and dates in the unit of a log."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, date, datetime, time
from math import isfinite

from concf.errors import ConfigError, DataError

When = str | float | date  # a date, or a time in a log's own unit
EARLIEST, LATEST = 3e8, 4.5e9  # seconds since 1970 (1979 to 2112): within these bounds the unit is unambiguous
SECONDS = {"s": 1, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365.25 * 86_400}
DURATION = re.compile(rf"([0-9]*\.?[0-9]+)\s*([{''.join(SECONDS)}]?)")  # 90d, or a number in the log's own unit
TICKS = (1, 10**3, 10**6, 10**9)  # per second: of seconds, milli-, micro- and nanoseconds


def ticks_of(when: float) -> int | None:
    """Return the ticks per second of a time since 1970; None if it is not such a time."""
    return next((ticks for ticks in TICKS if EARLIEST <= when / ticks <= LATEST), None)


def in_unit_of(newest: float, when: When, label: str) -> float:
    """Convert a date or a number to the unit of a log's times. newest: newest of these; label: option, for errors"""
    unit, number = ticks_of(newest), None
    if not isinstance(when, bool | date):
        with suppress(TypeError, ValueError):
            number = float(when)
    if isinstance(when, str) and (len(when) == 8 or number is None):  # digits alone are YYYYMMDD
        with suppress(ValueError):
            when = datetime.fromisoformat(when)
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime.combine(when, time())
    if isinstance(when, datetime) and unit is not None:
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * unit
    if isinstance(when, datetime) and number is None:
        raise ConfigError(f"{label}: the log's times ({newest:.15g}) are not since 1970. Give one in their own unit")
    if number is None or not isfinite(number) or ticks_of(number) != unit:
        raise ConfigError(f"{label}: expected a date such as 2024-01-31, or a time like the newest, {newest:.15g}")
    return number


def ticks_in(duration: str, near: float, label: str) -> float:
    """Convert a duration such as 28d to the unit of a log's times. near: one of these times; label: for errors"""
    match, unit = DURATION.fullmatch(duration.strip()), ticks_of(near)
    if match is None:
        raise ConfigError(f"{label}: expected a duration such as 90d, 12h, 8w or 1.5y")
    if match[2] and unit is None:
        raise DataError(f"{label}: times like {near:g} are not since 1970. Give a number in their own unit")
    return float(match[1]) * (SECONDS[match[2]] * (unit or 1) if match[2] else 1)


def moment(when: float) -> str:
    """Format a time of a log, as a date if it is one."""
    unit = ticks_of(float(when))
    return f"{when:.15g}" if unit is None else datetime.fromtimestamp(float(when) / unit, UTC).date().isoformat()
