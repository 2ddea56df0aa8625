"""What `concf data stats` says of a log."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from small_run import CLI
from test_times import written

from concf.data.reading.read import columns_of
from concf.data.reading.scan import Reading

DAY, NOW = 86_400, 1_700_000_000
Events = list[tuple[int, int, int]]


def frame(rows: Events) -> pl.DataFrame:
    """A row per event: user, item and age in days."""
    columns = ["user_id", "item_id", "timestamp"]
    return pl.DataFrame([(u, i, NOW - age * DAY) for u, i, age in rows], schema=columns, orient="row")


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
    assert report["time_range"] == ["2023-10-15", "2023-11-14"]
    assert report["columns"] == columns_of(log)
    code, out, _ = concf("data", "stats", tmp_path / "log.csv")
    for line in ("user = user_id, item = item_id", "2023-10-15 to 2023-11-14"):
        assert line in out
