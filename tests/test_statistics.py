"""What `concf data stats` says of a log, held against a count by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_run import CLI
from test_times import written

from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.statistics import columns_of, describe

DAY, NOW = 86_400, 1_700_000_000
Events = list[tuple[int, int, int]]
events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=50)


def frame(rows: Events) -> pl.DataFrame:
    """A row per event: user, item and age in days."""
    columns = ["user_id", "item_id", "timestamp"]
    return pl.DataFrame([(u, i, NOW - age * DAY) for u, i, age in rows], schema=columns, orient="row")


@given(events)
def test_the_statistics_are_those_counted_by_hand(rows: Events) -> None:
    found, pairs, ages = describe(read(frame(rows))), {}, [age for *_, age in rows]
    for user, item, age in rows:
        pairs.setdefault((user, item), []).append(age)
    assert found["events_per_week"] == pytest.approx(len(rows) / max(1, (max(ages) - min(ages)) / 7))
    first = sorted((max(each) for each in pairs.values()), reverse=True)  # the oldest pair comes first
    cut = first[math.ceil(0.9 * (len(first) - 1) - 1e-9)]
    for name, side in (("new_users", 0), ("new_items", 1)):
        oldest = {pair[side]: 0 for pair in pairs}
        for pair, each in pairs.items():
            oldest[pair[side]] = max(oldest[pair[side]], *each)
        assert found[name] == pytest.approx(sum(age <= cut for age in oldest.values()) / len(oldest))


def test_without_times_nothing_is_said_of_them_and_without_dates_nothing_of_weeks() -> None:
    rows = frame([(1, 1, 3), (1, 2, 2), (2, 1, 0)])
    assert describe(read(rows.drop("timestamp"))) == {}
    found = describe(read(rows.with_columns(timestamp=pl.Series([1, 2, 5]))))
    assert found["time_range"] == ["1", "5"]
    assert "events_per_week" not in found


def test_columns_are_those_of_the_source(tmp_path: Path) -> None:
    log = frame([(1, 1, 3), (2, 1, 0)]).with_columns(rating=3, colour=pl.lit("red"))
    used = {"user": "user_id", "item": "item_id", "timestamp": "timestamp"}
    files = [written(log, tmp_path / f"log.{kind}") for kind in ("csv", "jsonl", "parquet")]
    for source in (log, *files, str(tmp_path / "log.*")):
        assert columns_of(source) == used
    rated = columns_of(log, Reading(min_rating=2, timestamp="none"))
    assert rated == {"user": "user_id", "item": "item_id", "rating": "rating"}


def test_the_command_prints_the_same(concf: CLI, tmp_path: Path) -> None:
    log = frame([(1, 1, 30), (1, 1, 2), (1, 2, 2), (2, 1, 0)]).with_columns(colour=pl.lit("red"))
    log.write_csv(tmp_path / "log.csv")
    code, out, _ = concf("data", "stats", tmp_path / "log.csv", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["log"] == describe(read(log))
    assert report["columns"] == columns_of(log)
    code, out, _ = concf("data", "stats", tmp_path / "log.csv")
    for line in ("user = user_id, item = item_id", "2023-10-15 to 2023-11-14"):
        assert line in out
