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
BAD = {"0": 0, "negative": -1, "milliseconds": NOW * 1000, "1970": NOW // 1000, "future": NOW + 3 * 86_400}
DIVIDED: dict[str, Any] = {"protocol": "random", "valid": 0.1, "test": 0.1}


def spoilt(value: int, log: pl.DataFrame = LOG) -> pl.DataFrame:
    """The log with two more rows, of a pair that it has already and of one that it has not."""
    rows = log[[7, 7]].with_columns(
        pl.Series("user_id", [log["user_id"][7], 999]), pl.lit(value, pl.Int64).alias("timestamp")
    )
    return pl.concat([log[:9], rows[:1], log[9:], rows[1:]])


def equal(one: Split, other: Split) -> bool:
    same = one.interactions.fingerprint().digest() == other.interactions.fingerprint().digest()
    return same and np.array_equal(one.parts, other.parts)


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_bad_times_are_refused_or_dropped(tmp_path: Path, kind: str, value: int) -> None:
    bad: Any = spoilt(value)
    if kind == "csv":
        bad.write_csv(tmp_path / "log.csv")
        bad = tmp_path / "log.csv"
    where = "log.csv:11" if kind == "csv" else "row 9"
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


def test_naive_beside_zoned_times_are_named(tmp_path: Path) -> None:
    days = ["2024-05-03T10:00:00", "2024-05-03T10:00:00Z", "2024-05-03T10:00:00+02:00"]
    for times in ([days[1], days[0]], [days[2], days[0]]):
        frame = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "time": times})
        frame.write_csv(tmp_path / "log.csv")
        for log, where in ((frame, "row 1"), (tmp_path / "log.csv", "log.csv:3")):
            with pytest.raises(DataError, match=f"{where}: .*all with a zone or all without"):
                read(log)
    read(frame.with_columns(time=pl.Series(days[1:])), Reading())
