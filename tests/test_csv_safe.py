"""A CSV file of lists has no cell that a spreadsheet would execute, unless one asks for the ids as they are."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest
from small_run import CLI
from small_service import run_folder

from concf.cli.recommend import _write

IDS = ["=1+1", "+1", "-", "@SUM(A1)", "\tx", "\rx", "a=b", "5", "", "ü", "'=1", '="a,b"\n2']


def table() -> pa.Table:
    return pa.table({
        "user_id": pa.array(IDS), "item_id": pa.array(range(len(IDS))),
        "score": pa.array([-1.0] * len(IDS), pa.float32()), "rank": pa.array([1] * len(IDS)),
    })  # fmt: skip


def cells(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row["user_id"] for row in csv.DictReader(file)]


def test_text_that_would_be_executed_is_guarded_and_said(tmp_path: Path) -> None:
    out = tmp_path / "lists.csv"
    with pytest.warns(UserWarning, match="7 ids that a spreadsheet would execute"):
        assert _write(iter([table()]), out, True, lambda: None) == len(IDS)
    assert cells(out) == [f"'{each}" if each[:1] in tuple("=+-@\t\r") else each for each in IDS]
    with out.open(newline="", encoding="utf-8") as file:
        assert {row["score"] for row in csv.DictReader(file)} == {"-1"}  # numbers stay numbers

    for name, safe in (("plain.csv", False), ("lists.parquet", True), ("lists.jsonl", True)):
        _write(iter([table()]), tmp_path / name, safe, lambda: None)
        assert b"'=1+1" not in (tmp_path / name).read_bytes()
    assert cells(tmp_path / "plain.csv") == IDS


def test_the_command_guards_by_default(concf: CLI, tmp_path: Path) -> None:
    out = tmp_path / "recs.csv"
    for words, guarded in (((), True), (("--no-csv-safe",), False)):
        code, _, err = concf("recommend", run_folder("text"), "-k", 3, "--out", out, *words)
        assert (code, "spreadsheet" in err, "'+1" in out.read_text(encoding="utf-8")) == (0, guarded, guarded)
