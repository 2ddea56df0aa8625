"""Id maps in the folder of a run: whose each row of its vectors and lists is, without the data set."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_run import CLI, SMALL, contents

from concf.data.ids import Ids
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import DataError
from concf.models import choose_settings, load_run, train
from concf.runs.checkpoint import ITEMS, USERS, RunFolder

MAPS = (USERS, ITEMS)
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1).select("user_id", "item_id")
LOGS = {
    "integers": LOG.with_columns(user_id=pl.col("user_id") * 2**40 - 7),
    "text": LOG.select(user_id=pl.format('Zoë, "{}"\n\'', "user_id"), item_id=pl.format("長🎈\\\x01‮/{} ", "item_id")),
}
FEW = choose_settings("reference", words=[*SMALL, "training.epochs=2"])


@given(st.sets(st.integers(-(2**63), 2**63 - 1)) | st.sets(st.text(st.characters(exclude_categories=["Cs"]))))
def test_arrow_has_the_ids(values: set[Any]) -> None:
    some = np.array(sorted(values), np.int64 if all(isinstance(each, int) for each in values) else object)
    ids = Ids(some)
    kind = pa.int64() if ids.are_integers else pa.string()
    assert ids.to_arrow().equals(pa.array(some.tolist(), kind))
    assert ids.take(np.arange(len(ids))[::2]).to_arrow().equals(pa.array(some[::2].tolist(), kind))


def trained(log: pl.DataFrame, folder: Path) -> tuple[Split, Path]:
    data = prepare(log, protocol="random", out=folder / "data")
    train(data, FEW, out=folder / "run")
    return data, folder / "run"


@pytest.fixture(scope="module", params=LOGS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, Path]:
    return trained(LOGS[request.param], tmp_path_factory.mktemp(request.param))


def assert_names(data: Split, folder: Path) -> None:
    for name, ids in zip(MAPS, (data.interactions.user_ids, data.interactions.item_ids), strict=True):
        table = pl.read_parquet(folder / name)
        assert table.schema == {"position": pl.Int32, "id": pl.Int64 if ids.are_integers else pl.String}
        assert table["position"].to_list() == list(range(len(ids)))
        assert table["id"].to_list() == ids.values.tolist()


def test_every_position_has_its_id(run: tuple[Split, Path]) -> None:
    assert_names(*run)


def test_resuming_leaves_them_and_writes_those_that_are_missing(
    concf: CLI, run: tuple[Split, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(run[1], tmp_path / "copy")
    before = contents(folder)
    stamps = [(folder / name).stat().st_mtime_ns for name in MAPS]
    assert concf("train", "--resume", "--out", folder)[0] == 0
    assert [(folder / name).stat().st_mtime_ns for name in MAPS] == stamps
    (folder / USERS).unlink()
    assert load_run(folder).finished  # a run of an older version
    assert not (folder / USERS).exists()  # who only looks writes nothing
    assert concf("train", "--resume", "--out", folder)[0] == 0
    assert contents(folder) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def shorten(path: Path) -> None:
    pl.read_parquet(path)[1:].write_parquet(path)


@pytest.mark.parametrize(("name", "damage"), [(USERS, cut), (ITEMS, shorten)])
def test_maps_that_do_not_fit_are_refused(
    concf: CLI, run: tuple[Split, Path], tmp_path: Path, name: str, damage: Callable[[Path], Any]
) -> None:
    folder = shutil.copytree(run[1], tmp_path / "copy")
    damage(folder / name)
    before = contents(folder)
    with pytest.raises(DataError, match=name):
        load_run(folder)
    assert concf("train", "--resume", "--out", folder)[0] == 2
    assert contents(folder) == before
    (folder / name).unlink()
    assert concf("train", "--resume", "--out", folder)[0] == 0
    assert_names(run[0], folder)


def test_a_table_of_someone_else_is_left_alone(run: tuple[Split, Path], tmp_path: Path) -> None:
    (tmp_path / USERS).write_bytes(b"mine")
    with pytest.raises(Exception, match="neither empty nor a run"):
        RunFolder(tmp_path).begin(load_run(run[1]))
    assert contents(tmp_path) == {USERS: b"mine"}
