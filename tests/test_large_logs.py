"""A log in many files, and one that is read in blocks: the same data set as from one small file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_times import written

from concf.data import interactions, parts
from concf.data.prepare import prepare
from concf.data.reading import read as reading
from concf.data.reading.read import read
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import DataError

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


def divide(log: pl.DataFrame, folder: Path, n: int, seed: int, forms: tuple[str, ...] = FORMS) -> str:
    """Write the shuffled rows into n files of mixed formats and unequal lengths; the glob that names them."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    log = log.sample(fraction=1, shuffle=True, seed=seed)
    borders = [0, *np.sort(rng.choice(np.arange(1, len(log)), n - 1, replace=False)).tolist(), len(log)]
    for k, (begin, end) in enumerate(pairwise(borders)):
        written(log[begin:end], folder / f"part-{k}.{forms[k % len(forms)]}")
    return str(folder / "part-*")


def arrays(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.npy")}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that a small log takes every way that a large one does."""
    monkeypatch.setattr(reading, "BUCKET_ROWS", 200)
    monkeypatch.setattr(reading, "FIRST_PASS_ROWS", 100)
    monkeypatch.setattr(reading, "SECOND_PASS_ROWS", 100)
    monkeypatch.setattr(reading, "PENDING_IDS", 150)
    monkeypatch.setattr(interactions, "BLOCK_ROWS", 70)
    monkeypatch.setattr(parts, "BLOCK_ROWS", 70)


@pytest.mark.parametrize("kind", KINDS)
def test_any_division_into_files_gives_the_same_folder(tmp_path: Path, kind: str) -> None:
    forms = ("csv",) if kind == "integers and a name" else FORMS  # elsewhere such a column is one of strings
    one = tmp_path / "one.csv"
    written(KINDS[kind], one)
    whole = prepare(str(one), protocol="random", seed=2, out=tmp_path / "whole")
    files = divide(KINDS[kind], tmp_path / "logs", 3, 3, forms)
    divided = prepare(files, protocol="random", seed=2, out=tmp_path / "parts")
    assert divided.hash == whole.hash
    assert arrays(tmp_path / "parts") == arrays(tmp_path / "whole")
    assert set(divided.recipe.source["sha256"]) == {path.name for path in (tmp_path / "logs").iterdir()}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("protocol", "kind"), [("released", "weights"), ("paper", "names"), ("leave-last", "integers and a name")]
)
def test_a_large_log_gives_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, protocol: str
) -> None:
    source = divide(KINDS[kind], tmp_path / "logs", 3, 5, ("csv",))
    in_blocks = prepare(source, protocol=protocol, out=tmp_path / "blocks")
    monkeypatch.undo()
    at_once = prepare(source, protocol=protocol, out=tmp_path / "once")
    assert in_blocks.hash == at_once.hash
    assert arrays(tmp_path / "blocks") == arrays(tmp_path / "once")


def test_a_mistake_in_one_of_many_files_names_the_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(GOOD)
    broken = {"user_id,price\n1,2\n": "c.csv:1", "user_id,item_id,timestamp\n1,2,3\n": "c.csv",
              "user_id,item_id\n1,2\n3,\n": "c.csv:3", "user_id,item_id\n1,2\n3,4,5\n": "c.csv:3"}  # fmt: skip
    for text, place in broken.items():
        (tmp_path / "c.csv").write_text(text)
        with pytest.raises(DataError, match=place):
            read(str(tmp_path / "*.csv"))
    with pytest.raises(DataError, match="no file matches"):
        read(str(tmp_path / "*.tsv"))


def test_empty_files_among_others_are_nothing(tmp_path: Path) -> None:
    whole = read(divide(LOG, tmp_path / "logs", 3, 1)).fingerprint().hexdigest()
    (tmp_path / "logs" / "part-90.csv").touch()
    (tmp_path / "logs" / "part-92.csv").write_text("user_id,item_id,timestamp\n")
    (tmp_path / "logs" / "part-93.csv").write_text("\n\n")
    pl.DataFrame({"user_id": [None], "item_id": [None]}).clear().write_parquet(tmp_path / "logs" / "part-94.parquet")
    assert read(str(tmp_path / "logs" / "part-*")).fingerprint().hexdigest() == whole
    for path in (tmp_path / "logs").glob("part-?.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"part-90\.csv and 3 more: no file contains an interaction"):
        read(str(tmp_path / "logs" / "part-*"))


GOOD = "user_id,item_id\n" + "".join(f"{user},{item}\n" for user in range(20) for item in range(9))


def test_times_of_several_kinds_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,timestamp\n1,2,5\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,timestamp\n1,3,7.5\n")
    found = read(str(tmp_path / "*.csv"))
    assert found.timestamp is not None
    assert found.timestamp.tolist() == [5.0, 7.5]
    (tmp_path / "c.csv").write_text("user_id,item_id,timestamp\n1,4,2020-01-01\n")
    with pytest.raises(DataError, match=r"c\.csv: times are dates here and numbers in .*a\.csv"):
        read(str(tmp_path / "*.csv"))


def test_large_folders_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    prepare(LOG, protocol="random", out=folder)
    monkeypatch.setattr("concf.data.recipe.VERIFIED_BYTES", 1000)
    np.save(folder / "part.npy", np.load(folder / "part.npy")[::-1])
    column = Split.load(folder).interactions.user
    assert isinstance(column.base, np.memmap)  # processes share its pages
    assert not column.flags.writeable
    np.save(folder / "part.npy", np.load(folder / "part.npy")[:-1])
    with pytest.raises(DataError, match=r"part\.npy was changed"):  # its length is always looked at
        Split.load(folder)
