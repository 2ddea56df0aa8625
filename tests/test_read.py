"""Every format gives the same interactions, ids come back unchanged, and the order of rows means nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concf.data.interactions import Interactions
from concf.data.reading.read import read
from concf.data.reading.scan import Reading

PAIRS = [(3, 10), (1, 20), (1, 10), (22, 20), (3, 5)]


def triples(found: Interactions) -> list[tuple[object, object, float]]:
    """(user id, item id, count) of every pair, in order."""
    users = found.user_ids.values[found.user].tolist()
    items = found.item_ids.values[found.item].tolist()
    return list(zip(users, items, found.count.tolist(), strict=True))


def pairs(found: Interactions) -> list[tuple[object, object]]:
    return [(user, item) for user, item, _ in triples(found)]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(separator: str) -> str:
    return "".join(f"{user}{separator}{item}\n" for user, item in PAIRS)


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", rows(",")),
    ("a.csv", "\ufeffuser_id,item_id\n" + rows(",")),
    ("a.csv", "user_id,item_id\r\n" + rows(",").replace("\n", "\r\n")),
    ("a.csv", "item_id,note,user_id\n" + "".join(f'{i},"x,y",{u}\n' for u, i in PAIRS)),
    ("a.tsv", "user\titem\n" + rows("\t")),
    ("a.txt", rows("|")),
    ("a.dat", rows("::")),
    ("a.txt", rows(" ")),
    ("packed-without-suffix", gzip.compress(rows("\t").encode(), mtime=0)),
    ("a.inter", "user_id:token\titem_id:token\trating:float\n" + "".join(f"{u}\t{i}\t3\n" for u, i in PAIRS)),
    ("a.jsonl", "".join(json.dumps({"user_id": u, "item_id": i}) + "\n" for u, i in PAIRS)),
    (
        "a.jsonl.gz",
        gzip.compress("".join(json.dumps({"item": i, "user": u}) + "\n" for u, i in PAIRS).encode(), mtime=0),
    ),
    ("train.txt", "1 20 10\n3 10 5\n22 20\n"),
])  # fmt: skip
def test_every_file_format_gives_the_same_pairs(tmp_path: Path, name: str, content: str | bytes) -> None:
    assert pairs(read(write(tmp_path / name, content))) == sorted(PAIRS)


def test_parquet_gives_the_same_pairs_and_keeps_strings_that_look_like_numbers(tmp_path: Path) -> None:
    frame = pl.DataFrame(PAIRS, schema=["user_id", "item_id"], orient="row")
    frame.write_parquet(tmp_path / "a.parquet")
    assert pairs(read(tmp_path / "a.parquet")) == sorted(PAIRS)
    frame.cast(pl.String).write_parquet(tmp_path / "b.parquet")
    assert pairs(read(tmp_path / "b.parquet")) == sorted((str(u), str(i)) for u, i in PAIRS)


def test_counted_lines_name_the_user_by_the_line(tmp_path: Path) -> None:
    found = read(write(tmp_path / "users.dat", "2 7 8\n0\n1 7\n3 9 7 1\n"))
    assert pairs(found) == [(0, 7), (0, 8), (2, 7), (3, 1), (3, 7), (3, 9)]


def test_ids_come_back_unchanged(tmp_path: Path) -> None:
    strange = ["007", "7", "-0", "1e3", "Ünï", " pad ", "9" * 30, "True"]
    path = write(tmp_path / "a.csv", "user_id,item_id\n" + "".join(f'"{one}",{k}\n' for k, one in enumerate(strange)))
    found = read(path)
    assert sorted(found.user_ids.values.tolist()) == sorted(strange)
    assert found.item_ids.values.tolist() == list(range(len(strange)))


def test_integers_are_ordered_by_value_and_strings_by_code_point(tmp_path: Path) -> None:
    numbers = read(write(tmp_path / "a.csv", "user_id,item_id\n10,-3\n9,2\n100,0\n"))
    assert numbers.user_ids.values.tolist() == [9, 10, 100]
    assert numbers.item_ids.values.tolist() == [-3, 0, 2]
    words = read(write(tmp_path / "b.csv", "user_id,item_id\n10,z\n9,Z\nx,é\n"))
    assert words.user_ids.values.tolist() == ["10", "9", "x"]
    assert words.item_ids.values.tolist() == ["Z", "z", "é"]


def test_repeats_are_counted_a_count_column_is_summed_and_the_first_time_is_kept(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.csv", "user_id,item_id,timestamp\n1,2,50\n1,2,20\n1,3,1\n1,2,90\n"))
    assert triples(found) == [(1, 2, 3.0), (1, 3, 1.0)]
    assert (found.n_events, found.timestamp.tolist()) == (4, [20, 1])
    counted = read(write(tmp_path / "b.csv", "user_id,item_id,count\n1,2,5\n1,2,2.5\n1,3,0\n4,3,1\n"))
    assert triples(counted) == [(1, 2, 7.5), (4, 3, 1.0)]  # a count of zero is no interaction


def test_a_rating_threshold_makes_explicit_feedback_implicit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "user_id,item_id,rating\n1,2,5\n1,3,3.5\n2,3,4\n3,3,1\n")
    assert len(read(path)) == 4
    liked = read(path, Reading(min_rating=4))
    assert pairs(liked) == [(1, 2), (2, 3)]
    assert liked.user_ids.values.tolist() == [1, 2]


@pytest.mark.parametrize(("texts", "order"), [
    (["30", "10", "20"], [2, 0, 1]), (["3.5", "1.25", "2"], [2, 0, 1]),
    (["2020-03-01", "2020-01-01", "2020-02-01"], [2, 0, 1]),
    (["2020-01-01T10:00:00", "2020-01-01T08:00:00", "2020-01-01T09:30:00"], [2, 0, 1]),
])  # fmt: skip
def test_times_may_be_numbers_or_dates(tmp_path: Path, texts: list[str], order: list[int]) -> None:
    lines = "".join(f"1,{item},{text}\n" for item, text in enumerate(texts))
    found = read(write(tmp_path / "a.csv", "user_id,item_id,timestamp\n" + lines))
    assert found.timestamp is not None
    assert np.argsort(np.argsort(found.timestamp)).tolist() == order


def test_columns_can_be_named_by_name_or_place_or_left_out(tmp_path: Path) -> None:
    named = write(tmp_path / "a.csv", "member,film,date\n1,2,Jan 5\n3,4,soon\n")
    assert pairs(read(named, Reading(user="member", item="film", timestamp="none"))) == [(1, 2), (3, 4)]
    bare = write(tmp_path / "b.csv", "5,1,2\n5,3,4\n")
    assert pairs(read(bare, Reading(user="1", item="2", rating="0", min_rating=5))) == [(1, 2), (3, 4)]
    found = read(bare, Reading(timestamp="2"))
    assert (pairs(found), found.timestamp.tolist()) == ([(5, 1), (5, 3)], [2, 4])


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("decimal commas.csv", "1;10;3,5\n2;11;4,5\n", [(1, 10), (2, 11)]),
    ("names with spaces.csv", "u 1,a b c\nu 2,d e f\n", [("u 1", "a b c"), ("u 2", "d e f")]),
    ("counted, all alike.dat", "3 1 2 3\n3 4 5 6\n", [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]),
    ("a column called row.csv", "row,user_id,item_id\n9,1,2\n9,3,4\n", [(1, 2), (3, 4)]),
    ("long lines.txt", "".join(f"{u} {' '.join(map(str, range(20000 + u)))}\n" for u in (1, 2, 3)), None),
    ("quotes.inter", 'user_id:token\titem_id:token\n1\t"a\n2\tb"\n', [(1, '"a'), (2, 'b"')]),
])  # fmt: skip
def test_text_that_is_easily_misread(tmp_path: Path, name: str, content: str, expected: list | None) -> None:
    found = read(write(tmp_path / name, content))
    assert len(found) == 60006 if expected is None else pairs(found) == expected


def test_what_may_be_either_is_read_as_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "1 2 3\n4 5 6\n")
    assert pairs(read(path, Reading(format="table"))) == [(1, 2), (4, 5)]
    assert pairs(read(path, Reading(format="user-lines"))) == [(1, 2), (1, 3), (4, 5), (4, 6)]
    assert pairs(read(path, Reading(user="0", item="2"))) == [(1, 3), (4, 6)]


def test_integers_of_64_bits_stay_integers(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.csv", f"user_id,item_id\n1234567890123456789,1\n{-(2**63)},2\n"))
    assert found.user_ids.values.tolist() == [-(2**63), 1234567890123456789]
    words = read(write(tmp_path / "b.csv", f"user_id,item_id\n{2**63},1\n5,2\n"))
    assert words.user_ids.values.tolist() == ["5", str(2**63)]
    unsigned = pl.DataFrame({"user_id": pl.Series([3, 7], dtype=pl.UInt64), "item_id": [1, 2]})
    assert read(unsigned).user_ids.values.tolist() == [3, 7]


@given(
    log=st.lists(st.tuples(st.integers(-5, 30), st.sampled_from(["a", "b", "ß", "10", "9"])), min_size=1),
    data=st.data(),
)
def test_the_order_of_rows_means_nothing(log: list[tuple[int, str]], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(log))
    first, second = (read(pl.DataFrame(rows, schema=["user", "item"], orient="row")) for rows in (log, shuffled))
    assert triples(first) == triples(second)
    assert pairs(first) == sorted(set(log))
    assert {(u, i): n for u, i, n in triples(first)} == {pair: log.count(pair) for pair in log}
