"""Bad input gets a message with place, value and fix, exit code 2, no traceback, and writes nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
GOOD = "".join(f"{user},{item}\n" for user in range(20) for item in range(20) if (user + item) % 2)
HEAD = "user_id,item_id\n"
TIMED = "user_id,item_id,timestamp\n"
PACKED = gzip.compress((HEAD + GOOD * 99).encode())

CASES = {
    "an empty file": ("a.csv", "", [], ["a.csv", "empty"]),
    "only blank lines": ("a.csv", "\n\n", [], ["a.csv", "empty"]),
    "a header and no row": ("a.csv", HEAD, [], ["a.csv", "no interaction"]),
    "a missing file": (None, "", [], ["nowhere.csv", "no such file"]),
    "a missing column": ("a.csv", "user_id,what\n1,2\n", [], ["a.csv:1", "item", "['user_id', 'what']", "--item"]),
    "unknown columns": ("a.csv", "member,film\n1,2\n", [], ["a.csv:1", "'member'", "--user", "--no-header"]),
    "a named column that is not there": ("a.csv", HEAD + GOOD, ["--user", "who"], ["a.csv:1", "'who'", "user_id"]),
    "a doubled column": ("a.csv", "user_id,item_id,user_id\n1,2,3\n", [], ["a.csv:1", "'user_id'", "twice"]),
    "one field in a row": ("a.csv", HEAD + GOOD + "7\n", [], ["a.csv:202", "item", "'user': '7'", "--separator"]),
    "one field in the first row": ("a.csv", HEAD + "7\n" + GOOD, [], ["a.csv:2", "'7'"]),
    "one field in every row": ("a.csv", "1\n2\n3\n", [], ["a.csv:1", "'1'", "--separator"]),
    "too many fields in a row": ("a.csv", HEAD + GOOD + "1,2,3\n", [], ["a.csv:202", "expected 2 fields, found 3"]),
    "an empty id": ("a.csv", HEAD + GOOD + ",4\n", [], ["a.csv:202", "no user id", "'item': '4'"]),
    "an open quotation mark": ("a.csv", HEAD + '"1,2\n' + GOOD, [], ["a.csv:2", "quot"]),
    "undecodable bytes": ("a.csv", (HEAD + GOOD).encode() + b"1,\xff\xfe\n", [], ["a.csv:202", "byte 3", "UTF-8"]),
    "a truncated gzip": ("a.csv.gz", PACKED[:-40], [], ["a.csv.gz", "gzip", "damaged"]),
    "a damaged gzip": ("a.csv.gz", b"\x1f\x8b" + b"nonsense" * 9, [], ["a.csv.gz", "gzip"]),
    "a NaN count": ("a.csv", "user_id,item_id,count\n1,2,1\n1,3,nan\n", [], ["a.csv:3", "'count'", "nan"]),
    "a negative count": ("a.csv", "user_id,item_id,count\n1,2,-4\n", [], ["a.csv:2", "'count'", "-4"]),
    "a count in words": ("a.csv", "user_id,item_id,count\n1,2,1\n2,2,many\n", [], ["a.csv:3", "'count'", "many"]),
    "a rating in words": (
        "a.csv", "user_id,item_id,rating\n1,2,1\n2,2,good\n", ["--min-rating", 1], ["a.csv:3", "'rating'", "good"],
    ),
    "no rating to compare": ("a.csv", HEAD + GOOD, ["--min-rating", 3], ["a.csv", "--rating"]),
    "no rating high enough": (
        "a.csv", "user_id,item_id,rating\n1,2,1\n", ["--min-rating", 4], ["a.csv", "no interactions rated 4"],
    ),
    "a time in words": ("a.csv", TIMED + "1,2,5\n1,3,soon\n", [], ["a.csv:3", "'timestamp'", "soon"]),
    "an id that is too long": ("a.csv", HEAD + GOOD + "x" * 2000 + ",1\n", [], ["a.csv:202", "1024 bytes"]),
    "a wrong count in a line": (
        "users.dat", "2 5 6\n3 5 6\n1 9\n", ["--format", "counted-lines"], ["users.dat:2", "'3 5 6'", "user-lines"],
    ),
    "columns in a file of lines": ("users.dat", "2 5 6\n1 9\n", ["--user", "0"], ["users.dat", "--format table"]),
    "bad JSON in the first line": ("a.jsonl", '{"user_id": 1,\n', [], ["a.jsonl:1", "JSON"]),
    "bad JSON in a later line": ("a.jsonl", '{"user_id": 1, "item_id": 2}\n{"user_id"\n', [], ["a.jsonl:2", "JSON"]),
    "a list as JSON": ("a.jsonl", "[1, 2]\n", [], ["a.jsonl:1", "object"]),
    "a broken Parquet file": ("a.parquet", b"PAR1 and then nothing", [], ["a.parquet", "cannot be read"]),
    "an unknown name": (None, "", [], ["moviepens", "citeulike"]),
    "an unknown format": ("a.csv", HEAD + GOOD, ["--format", "xls"], ["format", "'xls'"]),
    "an unknown protocol": ("a.csv", HEAD + GOOD, ["--protocol", "magic"], ["'magic'", "released"]),
    "fractions that leave nothing": (
        "a.csv", HEAD + GOOD, ["--protocol", "random", "--valid", 0.5, "--test", 0.5], ["0.5", "train"],
    ),
    "a fraction that is none": ("a.csv", HEAD + GOOD, ["--protocol", "random", "--test", "lots"], ["--test", "'lots'"]),
    "a fraction that holds nothing out": (
        "a.csv", HEAD + GOOD, ["--protocol", "random", "--test", 0.001], ["no user", "larger share"],
    ),
    "a filter that leaves nothing": ("a.csv", HEAD + GOOD, ["--min-user", 99], ["user >= 99", "10"]),
    "a setting of another protocol": (
        "a.csv", HEAD + GOOD, ["--protocol", "random", "--last", 2], ["--last", "leave-last"],
    ),
    "no times to cut at": ("a.csv", HEAD + GOOD, ["--protocol", "time"], ["'time'", "--timestamp"]),
    "users with one item, strictly": (
        "a.csv", HEAD + GOOD + "77,1\n", ["--protocol", "random", "--strict"], ["1 users have one", "77", "--strict"],
    ),
    "a filter without a minimum": ("a.csv", HEAD + GOOD, ["--core"], ["--core", "--min-user"]),
    "given parts without files": ("a.csv", HEAD + GOOD, ["--protocol", "given"], ["--valid", "--test"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_clear_message_and_nothing_written(case: str, tmp_path: Path, concf: Run) -> None:
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


def test_the_same_users_with_one_item_are_noted_otherwise(tmp_path: Path, concf: Run) -> None:
    source = tmp_path / "a.csv"
    source.write_text(HEAD + GOOD + "77,1\n")
    code, _, err = concf("prepare", source, "--protocol", "random", "--out", tmp_path / "prepared")
    assert code == 0
    assert "note: 1 users have one item and only train (for example 77)" in err


def test_an_item_only_in_test_is_noted_and_refused_if_strict(tmp_path: Path, concf: Run) -> None:
    (tmp_path / "train.csv").write_text(HEAD + "1,1\n1,2\n1,3\n2,1\n")
    (tmp_path / "valid.csv").write_text(HEAD + "2,2\n")
    (tmp_path / "test.csv").write_text(HEAD + "2,3\n2,4\n")
    words = ["prepare", tmp_path / "train.csv", "--protocol", "given", "--valid", tmp_path / "valid.csv"]
    words += ["--test", tmp_path / "test.csv", "--out", tmp_path / "prepared"]
    code, _, err = concf(*words, "--strict")
    assert code == 2
    assert "1 items occur in no training pair" in err
    assert "for example 4" in err
    assert not (tmp_path / "prepared").exists()
    code, out, err = concf(*words, "--json")
    assert code == 0
    assert json.loads(out)["unevaluated"] == 1
    assert "note: 1 items occur in no training pair" in err
