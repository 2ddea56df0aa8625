"""Statistics of a log beyond its size: columns, time range, events per week, new users and items, repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.data.interactions import Interactions
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import Reading, files_of, scan_files
from concf.data.reading.times import moment, ticks_of

WEEK = 7 * 86_400  # seconds
NEWEST = 0.1  # share of the pairs in which new users and items are counted
LARGEST = 3


def columns_of(source: Any, reading: Reading | None = None) -> dict[str, str]:
    """{role: column} of a file, the first of many, or an object."""
    files, reading = files_of(source), reading or Reading()
    return (scan_object(source, reading) if files is None else scan_files(files, reading)[0]).columns


def describe(log: Interactions) -> dict[str, Any]:
    """Return statistics of a log; those of times only if it has some, those of weeks only if they are since 1970.

    time_range:      the oldest and the newest time, as dates where they are
    events_per_week: mean over the range, which is at least a week
    newest_week:     events of the last seven days; a pair with earlier events counts once
    new_users, new_items: share of those who first occur in the newest tenth of the pairs
    largest_users:   the three with the most events
    repeated_pairs, repeated_events: share of the pairs with several events, of the events that repeat a pair
    """
    found: dict[str, Any] = {}
    if log.timestamp is not None and log.last is not None:
        oldest, newest = float(log.timestamp.min()), float(log.last.max())
        found["time_range"] = [moment(oldest), moment(newest)]
        ticks = ticks_of(newest)
        if ticks is not None:
            week = WEEK * ticks
            recent = np.where(log.timestamp > newest - week, log.count, log.last > newest - week)
            found["events_per_week"] = log.n_events / max(1.0, (newest - oldest) / week)
            found["newest_week"] = float(recent.sum())
        since = np.quantile(log.timestamp, 1 - NEWEST, method="higher")
        known = log.timestamp < since
        for name, per in (("new_users", log.per_user), ("new_items", log.per_item)):
            found[name] = float((per(rows=known) == 0).mean())
    events: NDArray[np.float64] = log.per_user(raw=True)
    largest = np.argsort(-events, kind="stable")[:LARGEST]
    ids = log.user_ids.named(largest)
    found["largest_users"] = [{"user": user, "events": float(events[k])} for user, k in zip(ids, largest, strict=True)]
    found["repeated_pairs"] = float((log.count > 1).mean())
    found["repeated_events"] = float(np.maximum(log.count - 1, 0).sum() / log.n_events)
    return found
