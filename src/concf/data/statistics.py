"""Statistics of a log beyond its size: columns, time range, events per week, new users and items."""

from __future__ import annotations

from typing import Any

import numpy as np

from concf.data.interactions import Interactions
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import Reading, files_of, scan_files
from concf.data.reading.times import moment, ticks_of

WEEK = 7 * 86_400  # seconds
NEWEST = 0.1  # share of the pairs in which new users and items are counted


def columns_of(source: Any, reading: Reading | None = None) -> dict[str, str]:
    """{role: column} of a file, the first of many, or an object."""
    files, reading = files_of(source), reading or Reading()
    return (scan_object(source, reading) if files is None else scan_files(files, reading)[0]).columns


def describe(log: Interactions) -> dict[str, Any]:
    """Return statistics of a log; those of times only if it has some, those of weeks only if they are since 1970.

    time_range:      the oldest and the newest time, as dates where they are
    events_per_week: mean over the range, which is at least a week
    new_users, new_items: share of those who first occur in the newest tenth of the pairs
    """
    found: dict[str, Any] = {}
    if log.timestamp is not None and log.last is not None:
        oldest, newest = float(log.timestamp.min()), float(log.last.max())
        found["time_range"] = [moment(oldest), moment(newest)]
        ticks = ticks_of(newest)
        if ticks is not None:
            found["events_per_week"] = log.n_events / max(1.0, (newest - oldest) / (WEEK * ticks))
        since = np.quantile(log.timestamp, 1 - NEWEST, method="higher")
        known = log.timestamp < since
        for name, per in (("new_users", log.per_user), ("new_items", log.per_item)):
            found[name] = float((per(rows=known) == 0).mean())
    return found
