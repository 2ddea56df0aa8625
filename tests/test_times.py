"""Times that cannot be right are refused or dropped; logs with times of their own stay as they are."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConcfWarning, DataError

NOW = int(time.time())
LOG = Simulation(users=40, items=30, events=600, tastes=4).draw(3)
BAD = {"csv": 0, "jsonl": -1, "parquet": NOW * 1000, "two files": NOW // 1000, "frame": NOW + 3 * 86_400}
DIVIDED: dict[str, Any] = {"protocol": "random", "valid": 0.1, "test": 0.1}


def spoilt(value: int, log: pl.DataFrame = LOG) -> pl.DataFrame:
    """The log with two more rows, of a pair that it has already and of one that it has not."""
    rows = log[[7, 7]].with_columns(
        pl.Series("user_id", [log["user_id"][7], 999]), pl.lit(value, pl.Int64).alias("timestamp")
    )
    return pl.concat([log[:9], rows[:1], log[9:], rows[1:]])


def written(log: pl.DataFrame, path: Path) -> Path:
    {".csv": log.write_csv, ".parquet": log.write_parquet, ".jsonl": log.write_ndjson}[path.suffix](path)
    return path


def equal(one: Split, other: Split) -> bool:
    same = one.interactions.fingerprint().digest() == other.interactions.fingerprint().digest()
    return same and np.array_equal(one.parts, other.parts)


@pytest.mark.parametrize("kind", BAD)
def test_bad_times_are_refused_or_dropped(tmp_path: Path, kind: str) -> None:
    """0, -1, milliseconds among seconds, a day of 1970 and one in the future, each in another kind of source."""
    value = BAD[kind]
    bad: Any = spoilt(value)
    where = {"csv": "log.csv:11", "jsonl": "log.jsonl:10", "two files": "b.csv:5"}.get(kind, "row 9")
    if kind == "two files":
        bad[:6].write_csv(tmp_path / "a.csv")
        bad[6:].write_csv(tmp_path / "b.csv")
        bad = str(tmp_path / "*.csv")
    elif kind != "frame":
        bad = written(bad, tmp_path / f"log.{kind}")
    with pytest.raises(DataError, match=rf"2 bad times .*{where} = {value}.*bad_times='drop'"):
        prepare(bad, **DIVIDED)
    with pytest.warns(ConcfWarning, match="2 bad times: these rows are dropped"):
        found = prepare(bad, bad_times="drop", **DIVIDED)
    assert equal(found, prepare(LOG, **DIVIDED))


def test_dates_are_checked_and_times_of_other_units_are_not() -> None:
    dates = LOG.with_columns(pl.from_epoch("timestamp"))
    for year in (1969, 1970, 2090):
        day = pl.lit(datetime(year, 1, 20), pl.Datetime("us"))
        odd = pl.concat([dates, dates[:1].with_columns(timestamp=day)], how="vertical_relaxed")
        with pytest.raises(DataError, match=f"1 bad times .*{year}-01-20"):
            read(odd)
    for scale, start in ((1, -5), (60, 20_240_101_0000)):  # positions, minutes by digits
        times = start + pl.int_range(pl.len()) * scale
        assert read(LOG.with_columns(timestamp=times)).timestamp.min() == start  # type: ignore[union-attr]


@pytest.mark.parametrize("day", ["2090-01-01", "9999-12-31", "0001-01-01", "1970-01-01"])
def test_dates_in_text_are_checked(tmp_path: Path, day: str) -> None:
    frame = LOG.with_columns(pl.from_epoch("timestamp").dt.strftime("%Y-%m-%d"))
    pl.concat([frame, frame[:1].with_columns(timestamp=pl.lit(day))]).write_csv(tmp_path / "log.csv")
    with pytest.raises(DataError, match=f"1 bad times .*log.csv:{len(LOG) + 2} = {day}"):
        read(tmp_path / "log.csv")


def test_a_log_that_begins_before_1979_is_read_whole() -> None:
    log = LOG.with_columns(timestamp=pl.Series([datetime(1972 + k % 40, 5, 1) for k in range(len(LOG))]))
    seconds = log.with_columns(pl.col("timestamp").dt.epoch("s"))
    assert read(log).n_events == read(seconds).n_events == len(LOG)
    for marker in (-1, 0):  # a missing time
        with pytest.raises(DataError, match="60 bad times"):
            read(
                seconds.with_columns(timestamp=pl.when(pl.int_range(pl.len()) < 60).then(marker).otherwise("timestamp"))
            )


@pytest.mark.parametrize("name", ["event_time", "created_at", "TS", "Date", "createdAt", "occurred_at", "timestamp_ms"])
def test_columns_of_times_are_known_by_their_names(name: str) -> None:
    assert np.array_equal(read(LOG.rename({"timestamp": name})).timestamp, read(LOG).timestamp)  # type: ignore[arg-type]


def test_naive_beside_zoned_times_are_named(tmp_path: Path) -> None:
    days = ["2024-05-03T10:00:00", "2024-05-03T10:00:00Z", "2024-05-03T10:00:00+02:00"]
    for times in ([days[1], days[0]], [days[2], days[0]]):
        frame = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "time": times})
        frame.write_csv(tmp_path / "log.csv")
        for log, where in ((frame, "row 1"), (tmp_path / "log.csv", "log.csv:3")):
            with pytest.raises(DataError, match=f"{where}: .*all with a zone or all without"):
                read(log)
    read(frame.with_columns(time=pl.Series(days[1:])), Reading())
