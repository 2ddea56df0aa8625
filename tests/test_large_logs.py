"""A log in many files, and one larger than memory: the same data set as from one small file."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skipping import posix

from concf.data import interactions, protocols
from concf.data.prepare import prepare
from concf.data.reading import pairs
from concf.data.reading.pairs import PairBuckets
from concf.data.reading.read import IdCounts, read
from concf.data.reading.scan import Reading
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError

Run = Callable[..., tuple[int, str, str]]
LOG = Simulation(users=90, items=50, events=3000).draw(7)
WEIGHTS = pl.Series("count", np.random.default_rng(3).integers(0, 9, len(LOG)) / 10)  # tenths: sums depend on the order
KINDS = {
    "integers": LOG,
    "names": LOG.with_columns(user_id=pl.format("u{}", "user_id"), item_id=pl.format("ï{}", "item_id")),
    "integers and a name": LOG.with_columns(
        user_id=pl.when(pl.int_range(pl.len()) == 7).then(pl.lit("x")).otherwise(pl.col("user_id").cast(pl.String))
    ),
    "weights": LOG.with_columns(WEIGHTS),
    "no times": LOG.drop("timestamp"),
}  # fmt: skip
FORMS = ("csv", "parquet", "jsonl")


def write(log: pl.DataFrame, path: Path) -> None:
    {"csv": log.write_csv, "parquet": log.write_parquet, "jsonl": log.write_ndjson}[path.suffix[1:]](path)


def divide(log: pl.DataFrame, folder: Path, n: int, seed: int, forms: tuple[str, ...] = FORMS) -> str:
    """Write the shuffled rows into n files of mixed formats and unequal lengths; the glob that names them."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    log = log.sample(fraction=1, shuffle=True, seed=seed)
    borders = [0, *np.sort(rng.choice(np.arange(1, len(log)), n - 1, replace=False)).tolist(), len(log)]
    for k, (begin, end) in enumerate(pairwise(borders)):
        write(log[begin:end], folder / f"part-{k}.{forms[k % len(forms)]}")
    return str(folder / "part-*")


def arrays(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.npy")}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that a small log takes every way that a large one does."""
    monkeypatch.setattr(pairs, "BUCKET_ROWS", 200)
    monkeypatch.setattr(pairs, "MEMORY_BYTES", 5000)
    monkeypatch.setattr("concf.data.reading.read.FIRST_PASS_ROWS", 100)
    monkeypatch.setattr("concf.data.reading.read.SECOND_PASS_ROWS", 100)
    monkeypatch.setattr("concf.data.reading.read.PENDING_IDS", 150)
    monkeypatch.setattr(interactions, "BLOCK_ROWS", 70)
    monkeypatch.setattr(protocols, "BLOCK_ROWS", 70)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3, 7])
def test_any_division_into_files_gives_the_same_folder(tmp_path: Path, kind: str, n: int) -> None:
    forms = ("csv",) if kind == "integers and a name" else FORMS  # elsewhere such a column is one of strings
    one = tmp_path / "one.csv"
    write(KINDS[kind], one)
    whole = prepare(str(one), protocol="random", seed=2, out=tmp_path / "whole")
    parts = prepare(
        divide(KINDS[kind], tmp_path / "logs", n, n, forms), protocol="random", seed=2, out=tmp_path / "parts"
    )
    assert parts.hash == whole.hash
    assert arrays(tmp_path / "parts") == arrays(tmp_path / "whole")
    assert len(parts.recipe.source["sha256"]) == n
    assert set(parts.recipe.source["sha256"]) == {path.name for path in (tmp_path / "logs").iterdir()}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("protocol", "kind"), [
    (protocol, kind) for protocol in ("released", "paper", "leave-last") for kind in KINDS
    if (protocol, kind) != ("leave-last", "no times")
])  # fmt: skip
def test_a_log_larger_than_memory_gives_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, protocol: str
) -> None:
    source, written = divide(KINDS[kind], tmp_path / "logs", 3, 5, ("csv",)), []
    spill = PairBuckets._spill
    monkeypatch.setattr(PairBuckets, "_spill", lambda self: (written.append(len(self.held)), spill(self)))
    in_blocks = prepare(source, protocol=protocol, out=tmp_path / "blocks")
    assert len(written) > 2
    assert written[0] > 10
    monkeypatch.undo()
    at_once = prepare(source, protocol=protocol, out=tmp_path / "once")
    assert in_blocks.hash == at_once.hash
    assert arrays(tmp_path / "blocks") == arrays(tmp_path / "once")


@settings(deadline=None, max_examples=40)
@given(
    log=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=60),
    size=st.integers(1, 30),
    batch=st.integers(1, 20),
)
def test_buckets_merge_as_a_dictionary_does(log: list[tuple[int, int, int]], size: int, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BUCKET_ROWS", size)
        patch.setattr(pairs, "MEMORY_BYTES", 64)
        users, items, times = (np.array(column) for column in zip(*log, strict=True))
        kind = np.dtype([("cell", np.int64), ("timestamp", np.int64)])
        with PairBuckets(np.bincount(users, minlength=13), 6, kind) as buckets:
            for k in range(0, len(log), batch):
                rows = slice(k, k + batch)
                buckets.add(pl.DataFrame({"cell": users[rows] * 6 + items[rows], "timestamp": times[rows]}))
            pieces = list(buckets.merged())
    merged = {name: np.concatenate([piece[name] for piece in pieces]).tolist() for name in pieces[0]}
    wanted: dict[int, tuple[int, int]] = {}
    for user, item, time in log:
        count, first = wanted.get(user * 6 + item, (0, time))
        wanted[user * 6 + item] = (count + 1, min(first, time))
    assert merged["cell"] == sorted(wanted)
    assert list(zip(merged["count"], merged["timestamp"], strict=True)) == [wanted[cell] for cell in sorted(wanted)]


def test_a_log_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, total = tmp_path / "a.csv", IdCounts.total

    def meanwhile(self: IdCounts, role: str) -> pl.DataFrame:
        path.write_text("user_id,item_id\n1,2\n9,2\n")
        return total(self, role)

    path.write_text("user_id,item_id\n1,2\n3,2\n")
    monkeypatch.setattr(IdCounts, "total", meanwhile)
    with pytest.raises(DataError, match="changed while it was read"):
        read(path)


def test_a_pair_that_stands_in_several_files_is_counted_once_with_all_its_events(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,count,timestamp\n1,2,3,50\n1,3,1,10\n")
    (tmp_path / "b.csv").write_text("timestamp,user_id,item_id,count\n40,1,2,0.5\n60,1,2,2\n")
    found = read(tmp_path / "*.csv")
    assert found.item_ids.values.tolist() == [2, 3]
    assert found.count.tolist() == [5.5, 1.0]
    assert found.timestamp is not None
    assert found.timestamp.tolist() == [40, 10]


def test_a_list_of_files_and_files_at_any_depth(tmp_path: Path) -> None:
    for k, place in enumerate(["one/log.csv", "one/deeper/log.csv", "two/log.csv"]):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"user_id,item_id\n{k},{k}\n")
    assert read(str(tmp_path / "**" / "log.csv")).user_ids.values.tolist() == [0, 1, 2]
    assert read([tmp_path / "one" / "log.csv", str(tmp_path / "t*" / "*")]).user_ids.values.tolist() == [0, 2]


def test_a_file_whose_own_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    for form in FORMS:
        write(pl.DataFrame({"user_id": [5], "item_id": [5]}), tmp_path / f"log[1].{form}")
        write(pl.DataFrame({"user_id": [7], "item_id": [7]}), tmp_path / f"log1.{form}")
        assert read(str(tmp_path / f"log[1].{form}")).user_ids.values.tolist() == [5]


def test_empty_files_among_others_are_nothing(tmp_path: Path) -> None:
    whole = read(divide(LOG, tmp_path / "logs", 3, 1)).fingerprint().hexdigest()
    (tmp_path / "logs" / "part-90.csv").touch()
    (tmp_path / "logs" / "part-91.parquet").touch()
    (tmp_path / "logs" / "part-92.csv").write_text("user_id,item_id,timestamp\n")
    (tmp_path / "logs" / "part-93.csv").write_text("\n\n")
    pl.DataFrame({"user_id": [None], "item_id": [None]}).clear().write_parquet(tmp_path / "logs" / "part-94.parquet")
    assert read(str(tmp_path / "logs" / "part-*")).fingerprint().hexdigest() == whole
    for path in (tmp_path / "logs").glob("part-?.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"part-90\.csv and 4 more: no file contains an interaction"):
        read(str(tmp_path / "logs" / "part-*"))


GOOD = "user_id,item_id\n" + "".join(f"{user},{item}\n" for user in range(20) for item in range(9))
BROKEN: dict[str, tuple[str, str | bytes, list[str]]] = {
    "other columns": ("c.csv", "user_id,price\n1,2\n", ["c.csv:1", "item", "'price'"]),
    "a column more": ("c.csv", "user_id,item_id,timestamp\n1,2,3\n", ["c.csv", "other columns", "timestamp none"]),
    "no id in a row": ("c.csv", "user_id,item_id\n1,2\n3,\n", ["c.csv:3", "no item id"]),
    "too many fields": ("c.csv", "user_id,item_id\n1,2\n3,4,5\n", ["c.csv:3", "expected 2 fields, found 3"]),
    "bytes that are no text": ("c.csv", b"user_id,item_id\n1,2\n\xff,4\n", ["c.csv:3", "not UTF-8"]),
    "a broken Parquet file": ("c.parquet", b"PAR1 and then nothing", ["c.parquet", "cannot be read"]),
    "no JSON": ("c.jsonl", '{"user_id": 1, "item_id": 2}\n{"user\n', ["c.jsonl:2", "JSON"]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_mistake_in_one_of_many_files_names_the_file(tmp_path: Path, concf: Run, what: str) -> None:
    for name in ("a.csv", "b.csv", "d.csv"):
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "ab.csv").touch()
    name, content, expected = BROKEN[what]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = concf("prepare", tmp_path / "*.*", "--out", tmp_path / "prepared")
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for piece in expected:
        assert piece in err
    assert not (tmp_path / "prepared").exists()


def test_a_glob_that_matches_nothing_names_itself(tmp_path: Path, concf: Run) -> None:
    code, _, err = concf("prepare", tmp_path / "logs" / "*.parquet", "--out", tmp_path / "prepared")
    assert code == 2
    assert f"no file matches '{tmp_path}/logs/*.parquet'" in err
    assert list(tmp_path.iterdir()) == []


def test_training_takes_a_glob_as_it_takes_a_file(tmp_path: Path, concf: Run) -> None:
    write(LOG, tmp_path / "log.csv")
    sources = [tmp_path / "log.csv", divide(LOG, tmp_path / "logs", 3, 3)]
    found = []
    for k, source in enumerate(sources):
        words = ["--single", "bpr", "--set", "training.epochs=2", "--json", "--out", tmp_path / f"run-{k}"]
        code, out, err = concf("train", source, *words)
        assert (code, err.count("pairs after the filter")) == (0, 1)
        found.append({name: value for name, value in json.loads(out).items() if name not in ("folder", "seconds")})
    assert found[0] == found[1]
    assert concf("train", sources[1], "--resume", "--out", tmp_path / "run-1")[0] == 0
    code, _, err = concf("train", tmp_path / "none" / "*.csv", "--out", tmp_path / "run-2")
    assert (code, "no file matches" in err) == (2, True)
    assert not (tmp_path / "run-2").exists()


def test_times_of_several_kinds_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\n1,2,5\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,timestamp\n1,3,7.5\n")
    found = read(str(tmp_path / "*.csv"))
    assert found.timestamp is not None
    assert found.timestamp.tolist() == [5.0, 7.5]
    (tmp_path / "c.csv").write_text("user_id,item_id,timestamp\n1,4,2020-01-01\n")
    with pytest.raises(DataError, match=r"c\.csv: the times are dates here and numbers in .*a\.csv"):
        read(str(tmp_path / "*.csv"))


def test_users_counted_by_lines_cannot_stand_in_several_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.dat").write_text("2 7 8\n1 7\n3 9 7 1\n")
    with pytest.raises(ConfigError, match=r"b\.dat: .*number of a line"):
        read(str(tmp_path / "*.dat"), Reading(format="counted-lines"))


@pytest.mark.usefixtures("small_blocks")
def test_no_room_for_temporary_rows_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def tell(self) -> int:
            return 0

        def write(self, _: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(pairs, "TemporaryFile", lambda **_: Full())
    with pytest.raises(DataError, match=r"No space left on device.*TMPDIR"):
        prepare(LOG, protocol="random", out=tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


@posix
def test_temporary_rows_have_no_name_that_could_be_left_behind(tmp_path: Path) -> None:
    script = """
import os, signal, sys, tempfile
from concf.data.reading import pairs
from concf.data.reading.read import read
pairs.BUCKET_ROWS, pairs.MEMORY_BYTES = 100, 1000
def killed(self):
    assert self.file is not None
    os.kill(os.getpid(), signal.SIGKILL)
pairs.PairBuckets.merged = killed
read(sys.argv[1])
"""
    log, scratch = tmp_path / "log.parquet", tmp_path / "scratch"
    LOG.write_parquet(log)
    scratch.mkdir()
    answer = subprocess.run(
        [sys.executable, "-c", script, log],
        env=os.environ | {"TMPDIR": str(scratch)}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.returncode == -9, answer.stderr
    assert list(scratch.iterdir()) == []


def test_what_the_manifest_says_of_many_files(tmp_path: Path) -> None:
    prepare(divide(LOG, tmp_path / "logs", 3, 3), protocol="random", out=tmp_path / "data")
    source = json.loads((tmp_path / "data" / "manifest.json").read_text())["recipe"]["source"]
    assert source["name"] == "part-*"
    assert sorted(source["sha256"]) == ["part-0.csv", "part-1.parquet", "part-2.jsonl"]


def test_the_parts_of_protocol_given_may_be_globs(tmp_path: Path) -> None:
    for part, rows in (("train", LOG[:2000]), ("valid", LOG[2000:2500]), ("test", LOG[2500:])):
        write(rows, tmp_path / f"{part}.csv")
        divide(rows, tmp_path / part, 2, 0)
    one, many = (
        prepare(
            f"{tmp_path}/train{end}", protocol="given", valid=f"{tmp_path}/valid{end}", test=f"{tmp_path}/test{end}"
        )
        for end in (".csv", "/*")
    )
    assert one.hash == many.hash


@pytest.mark.parametrize("kind", ["integers", "names"])
def test_a_folder_is_mapped_and_processes_share_its_pages(tmp_path: Path, kind: str) -> None:
    saved = prepare(KINDS[kind], protocol="random", out=tmp_path / "data")
    loaded = Split.load(tmp_path / "data")
    columns = [loaded.parts, loaded.interactions.user, loaded.interactions.item, loaded.interactions.count]
    for column in columns:
        assert type(column) is np.ndarray
        assert not column.flags.writeable
        assert isinstance(column.base, np.memmap)
    assert (loaded.train != saved.train).nnz == 0
    assert loaded.interactions.user_ids == saved.interactions.user_ids
    kept = loaded.interactions.user % 3 == 0
    assert loaded.interactions.keep(kept).user_ids == saved.interactions.keep(kept).user_ids


@pytest.mark.parametrize("verify", [True, False, None])
def test_large_folders_are_held_against_their_checksums_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool | None
) -> None:
    folder = tmp_path / "data"
    prepare(LOG, protocol="random", out=folder)
    monkeypatch.setattr("concf.data.split.VERIFIED_BYTES", 1000)
    np.save(folder / "part.npy", np.load(folder / "part.npy")[::-1])
    if verify:
        with pytest.raises(DataError, match=r"part\.npy was changed"):
            Split.load(folder, verify=verify)
        return
    Split.load(folder, verify=verify)
    np.save(folder / "part.npy", np.load(folder / "part.npy")[:-1])
    with pytest.raises(DataError, match=r"part\.npy was changed"):
        Split.load(folder, verify=verify)
    (folder / "part.npy").write_bytes((folder / "user.npy").read_bytes()[:-1])
    with pytest.raises(DataError, match=r"part\.npy was changed or cut short"):
        Split.load(folder, verify=verify)
    (folder / "part.npy").unlink()
    with pytest.raises(DataError, match=r"part\.npy is missing"):
        Split.load(folder, verify=verify)
