"""`concf recommend`: files hold what Python gives, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from small_run import CLI
from small_service import run_folder

from concf.errors import DataError
from concf.inference import ranker as ranking
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules

Patch = pytest.MonkeyPatch


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return pl.read_csv(path, schema_overrides={"score": pl.Float32}).to_dicts()


def assert_same_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    without = [{name: row[name] for name in ("user_id", "item_id", "rank")} for row in rows]
    assert without == [{name: row[name] for name in ("user_id", "item_id", "rank")} for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected], rel=1e-6)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_kind_of_file_holds_what_python_gives(concf: CLI, kind: str, tmp_path: Path, monkeypatch: Patch) -> None:
    folder, out = run_folder("text"), tmp_path / "new" / f"recs.{kind}"
    model = Recommender.load(folder, frame="arrow")
    for cells, words, options in (
        (ranking.CELLS, [], {}),
        (7 * 31, ["--by", "bpr", "-k", 5], {"by": "bpr", "k": 5}),  # a block of 7 users at a time
        (1, ["--viewed", "-k", 12], {"rules": Rules(filter_viewed=False), "k": 12}),
    ):
        monkeypatch.setattr(ranking, "CELLS", cells)
        code, out_text, err = concf("recommend", folder, "--users", "all", "--no-csv-safe", "--out", out, *words)
        assert (code, err) == (0, "")
        expected = model.recommend(**options).to_pylist()
        assert_same_rows(rows_of(out), expected)
        assert out_text.startswith(f"{len(expected)} rows for {len(model.user_ids)} users")
        assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_users_between_commas_and_from_files(concf: CLI, tmp_path: Path) -> None:
    model = Recommender.load(run_folder(), frame="arrow")
    expected = model.recommend([8, 3, 12], 4).to_pylist()
    texts = {
        "plain.txt": "8\n3\n\n12\n", "bare": "8\n3\n12", "table.csv": 'user_id,age\n8,1\n"3",2\n12,3\n',
        "mark.csv": "\ufeffuser_id\n8\n3\n12\n", "other.csv": "UserID,x\r\n8,1\r\n3,1\r\n12,1\r\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    pl.DataFrame({"who": [8, 3, 12], "age": [1, 2, 3]}).write_parquet(tmp_path / "table.parquet")
    pl.DataFrame({"who": ["8", "3", "12"]}).write_parquet(tmp_path / "text.parquet")
    for users in ("8,3,12", " 8, 3 ,12 ", "8,3,8,12,3", *(path for path in tmp_path.iterdir())):
        code, out, err = concf("recommend", run_folder(), "--users", users, "-k", 4, "--json")
        assert (code, err) == (0, ""), users
        assert_same_rows(json.loads(out), expected)
    (tmp_path / "named.csv").write_text('user_id\n"a:b;c,d"\n"ü"\n', encoding="utf-8")
    rows = json.loads(concf("recommend", run_folder("text"), "--users", tmp_path / "named.csv", "-k", 4, "--json")[1])
    expected = Recommender.load(run_folder("text"), frame="arrow").recommend(["a:b;c,d", "ü"], 4).to_pylist()
    assert_same_rows(rows, expected)


def test_items_exclude_and_strangers(concf: CLI, tmp_path: Path) -> None:
    model = Recommender.load(run_folder(), frame="arrow")
    some = model.item_ids.values.tolist()[::2]
    (tmp_path / "some.txt").write_text("\n".join(map(str, some)))
    few = ",".join(map(str, some[:3]))
    for users, words, options in (
        ([3, 8], ["--items", tmp_path / "some.txt", "--exclude", few], {"items": some, "exclude": some[:3]}),
        ([3, 777, 8], ["--popular", "--items", few, "--by", "bpr"],
         {"rules": Rules(unknown="popular"), "items": some[:3], "by": "bpr"}),
    ):  # fmt: skip
        printed = concf("recommend", run_folder(), "--users", ",".join(map(str, users)), "-k", 6, "--json", *words)[1]
        assert_same_rows(json.loads(printed), model.recommend(users, 6, **options).to_pylist())  # type: ignore[arg-type]
    (tmp_path / "none.txt").write_text("")
    assert concf("recommend", run_folder(), "--users", tmp_path / "none.txt", "--out", tmp_path / "no.parquet")[0] == 0
    assert pl.read_parquet(tmp_path / "no.parquet").is_empty()


def test_a_mistake_is_answered_and_leaves_no_file(concf: CLI, tmp_path: Path) -> None:
    for name in ("bytes.txt", "bytes.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    pl.DataFrame({"user": [3, None]}).write_parquet(tmp_path / "nulls.parquet")
    for words, message in (
        (["--users", "3,777"], "no user is called 777"), (["--users", "3,1_0"], "'1_0' is no user of the log"),
        (["--users", "9" * 30], "no user is called 9999"), (["--users", "gone.csv"], "gone.csv: no such file"),
        (["--users", "{}/bytes.txt"], "not a text file of ids"), (["-k", "13"], "k = 13"), (["-k", "0"], ""),
        (["--users", "{}/bytes.parquet"], "cannot be read as a Parquet file"),
        (["--users", "{}/nulls.parquet"], "None is no user of the log"),
        (["--by", "oracle"], "unknown recommender 'oracle'"),
    ):  # fmt: skip
        out = tmp_path / "out" / "recs.parquet"
        code, printed, err = concf("recommend", run_folder(), "--out", out, *(word.format(tmp_path) for word in words))
        assert (code, printed, message in err, "Traceback" in err) == (2, "", True, False), err
        assert not list(tmp_path.glob("out/*"))
    assert concf("recommend", run_folder(), "--out", tmp_path / "recs.xlsx")[0] == concf("recommend", tmp_path)[0] == 2


def test_what_fails_in_the_middle_leaves_what_was_there(concf: CLI, tmp_path: Path, monkeypatch: Patch) -> None:
    stream = Recommender.stream

    def breaking(model: Recommender, *words: Any, **options: Any) -> Iterator[pa.Table]:
        yield next(stream(model, *words, **options))
        raise DataError("the disk burned")

    out = tmp_path / "recs.parquet"
    assert concf("recommend", run_folder(), "-k", 2, "--out", out)[0] == 0
    older = out.read_bytes()
    out.unlink()
    monkeypatch.setattr(Recommender, "stream", breaking)
    for before in ([], [out]):
        assert concf("recommend", run_folder(), "--out", out)[::2] == (2, "concf: the disk burned\n")
        assert list(tmp_path.iterdir()) == before
        out.write_bytes(older)
    assert out.read_bytes() == older
