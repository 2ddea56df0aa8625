"""Times of a log that cannot be right: refused, or dropped with a count."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from typing import Any

import polars as pl

from concf.data.reading.scan import Table
from concf.data.reading.times import EARLIEST, LATEST, TICKS
from concf.errors import DataError, note, option

DAY = 86_400  # seconds that a clock may be ahead of ours


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
