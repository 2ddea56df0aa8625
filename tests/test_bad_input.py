"""Bad input gets a message with place, value and fix, exit code 2, no traceback, and writes nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from small_run import CLI

GOOD = "".join(f"{user},{item}\n" for user in range(20) for item in range(20) if (user + item) % 2)
HEAD = "user_id,item_id\n"
TIMED = "user_id,item_id,timestamp\n"
PACKED = gzip.compress((HEAD + GOOD * 99).encode())

CASES = {
    "an empty file": ("a.csv", "", [], ["a.csv", "empty"]),
    "a missing file": (None, "", [], ["nowhere.csv", "no such file"]),
    "a missing column": ("a.csv", "user_id,what\n1,2\n", [], ["a.csv:1", "--item"]),
    "a named column that is not there": ("a.csv", HEAD + GOOD, ["--user", "who"], ["a.csv:1", "'who'", "user_id"]),
    "a doubled column": ("a.csv", "user_id,item_id,user_id\n1,2,3\n", [], ["a.csv:1", "'user_id'", "twice"]),
    "one field in a row": ("a.csv", HEAD + GOOD + "7\n", [], ["a.csv:202", "item", "'user': '7'", "--separator"]),
    "too many fields in a row": ("a.csv", HEAD + GOOD + "1,2,3\n", [], ["a.csv:202", "expected 2 fields, found 3"]),
    "an empty id": ("a.csv", HEAD + GOOD + ",4\n", [], ["a.csv:202", "no user id", "'item': '4'"]),
    "an open quotation mark": ("a.csv", HEAD + '"1,2\n' + GOOD, [], ["a.csv:2", "quot"]),
    "undecodable bytes": ("a.csv", (HEAD + GOOD).encode() + b"1,\xff\xfe\n", [], ["a.csv:202", "byte 3", "UTF-8"]),
    "a truncated gzip": ("a.csv.gz", PACKED[:-40], [], ["a.csv.gz", "gzip", "damaged"]),
    "a negative count": ("a.csv", "user_id,item_id,count\n1,2,-4\n", [], ["a.csv:2", "'count'", "-4"]),
    "a time in words": ("a.csv", TIMED + "1,2,5\n1,3,soon\n", [], ["a.csv:3", "'timestamp'", "soon"]),
    "a wrong count in a line": (
        "users.dat", "2 5 6\n3 5 6\n1 9\n", ["--format", "counted-lines"], ["users.dat:2", "'3 5 6'", "user-lines"],
    ),
    "columns in a file of lines": ("users.dat", "2 5 6\n1 9\n", ["--user", "0"], ["users.dat", "--format table"]),
    "bad JSON in a later line": ("a.jsonl", '{"user_id": 1, "item_id": 2}\n{"user_id"\n', [], ["a.jsonl:2", "JSON"]),
    "a list as JSON": ("a.jsonl", "[1, 2]\n", [], ["a.jsonl:1", "object"]),
    "a comment first": ("a.csv", "# exported 2020\n1,2\n", [], ["a.csv:1", "comment"]),
    "a table or lines of users": ("a.csv", "1 2 3\n4 5 6\n", [], ["a.csv:1", "--format"]),
    "carriage returns alone": ("a.csv", "1,2\r3,4\r", [], ["a.csv:1", "carriage return"]),
    "one column in two roles": ("a.csv", HEAD + GOOD, ["--item", "user_id"], ["'user_id'"]),
    "a broken Parquet file": ("a.parquet", b"PAR1 and then nothing", [], ["a.parquet", "cannot be read"]),
    "an unknown name": (None, "", [], ["moviepens", "citeulike"]),
    "fractions that leave nothing": (
        "a.csv", HEAD + GOOD, ["--protocol", "random", "--valid", 0.5, "--test", 0.5], ["0.5", "train"],
    ),
    "a fraction that holds nothing out": (
        "a.csv", HEAD + GOOD, ["--protocol", "random", "--test", 0.001], ["no user", "--test"],
    ),
    "a filter that leaves nothing": ("a.csv", HEAD + GOOD, ["--min-user", 99], ["user >= 99", "10"]),
    "no times to cut at": ("a.csv", HEAD + GOOD, ["--protocol", "time"], ["'time'", "--timestamp"]),
    "given parts without files": ("a.csv", HEAD + GOOD, ["--protocol", "given"], ["--valid", "--test"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_clear_message_and_nothing_written(case: str, tmp_path: Path, concf: CLI) -> None:
    name, content, options, expected = CASES[case]
    source: object = "moviepens" if case == "an unknown name" else "nowhere.csv"
    if name is not None:
        source = tmp_path / name
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = concf("prepare", source, "--out", tmp_path / "prepared", *options)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for piece in expected:
        assert str(piece) in err
    assert [path.name for path in tmp_path.iterdir()] == ([name] if name else [])


def test_an_item_only_in_test_is_noted(tmp_path: Path, concf: CLI) -> None:
    (tmp_path / "train.csv").write_text(HEAD + "1,1\n1,2\n1,3\n2,1\n")
    (tmp_path / "valid.csv").write_text(HEAD + "2,2\n")
    (tmp_path / "test.csv").write_text(HEAD + "2,3\n2,4\n")
    words = ["prepare", tmp_path / "train.csv", "--protocol", "given", "--valid", tmp_path / "valid.csv"]
    words += ["--test", tmp_path / "test.csv", "--out", tmp_path / "prepared"]
    code, out, err = concf(*words, "--json")
    assert code == 0
    assert json.loads(out)["unevaluated"] == 1
    assert "note: 1 items occur in no training pair (for example 4)" in err
