"""A prepared folder: whole or not at all, readable with numpy alone, and honest about its state."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from skipping import posix

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import DataError

LOG = Simulation(users=80, items=40, events=2000).draw(5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(LOG, protocol="random", seed=4, out=tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("kind", [pl.Int64, pl.String])
def test_what_was_saved_is_what_is_loaded(tmp_path: Path, kind: type[pl.DataType]) -> None:
    of_one_item = LOG[:1].with_columns(user_id=pl.lit(1000))
    log = pl.concat([LOG, of_one_item], how="vertical_relaxed").with_columns(pl.col("user_id", "item_id").cast(kind))
    saved = prepare(log, protocol="leave-last", last=2, seed=4, min_user=2, out=tmp_path / "data")
    assert saved.notes
    loaded = Split.load(tmp_path / "data")
    assert (loaded.hash, loaded.recipe, loaded.notes) == (saved.hash, saved.recipe, saved.notes)
    assert loaded.interactions.count.tolist() == saved.interactions.count.tolist()
    assert np.array_equal(loaded.interactions.timestamp, saved.interactions.timestamp)
    assert loaded.with_seed(9).hash == saved.with_seed(9).hash
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert (manifest["split_hash"], manifest["recipe"]["seed"], manifest["users"]) == (saved.hash, 4, 80)
    assert sum(manifest[part] for part in ("train", "valid", "test", "unevaluated")) == manifest["interactions"]


@pytest.mark.parametrize("name", ["part.npy", "user_ids.npy"])
def test_a_missing_shortened_or_changed_file_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    np.save(path, np.load(path)[::-1])
    for _ in range(2):
        with pytest.raises(DataError, match=f"{name} was changed"):
            Split.load(folder)
        path.write_bytes(whole[:-3])
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        Split.load(folder)


def test_a_failing_rename_puts_the_old_data_set_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, rename = Split.load(folder).hash, Path.rename

    def broken(self: Path, target: Path) -> Path:
        if "partial" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(DataError, match="Input/output error"):
        prepare(LOG, protocol="random", seed=5, out=folder, overwrite=True)
    assert Split.load(folder).hash == before
    assert [path.name for path in folder.parent.iterdir()] == ["data"]


@posix
def test_a_kill_between_the_two_renames_loses_nothing(folder: Path) -> None:
    before = Split.load(folder).hash
    script = """
import os, signal, sys
from pathlib import Path
from concf.data.prepare import prepare
rename = Path.rename
def killed(self, target):
    if "partial" in self.name: os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
Path.rename = killed
prepare("demo", protocol="random", out=sys.argv[1], overwrite=True)
"""
    assert run_python(script, folder).returncode == -signal.SIGKILL
    assert not folder.exists()
    with pytest.raises(DataError, match="overwrite=True"):
        prepare(LOG, protocol="random", out=folder)
    assert Split.load(folder).hash == before
    assert [path.name for path in folder.parent.iterdir()] == ["data"]


def test_another_format_and_a_damaged_manifest_are_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    without = {key: value for key, value in whole.items() if key != "notes"}
    for damaged in (whole | {"format": 99}, whole | {"format": 1}, whole | {"files": {}}, without, []):
        path.write_text(json.dumps(damaged))
        with pytest.raises(DataError):
            Split.load(folder)
    path.write_text(json.dumps(whole)[:200])
    with pytest.raises(DataError, match="damaged"):
        Split.load(folder)
    path.unlink()
    with pytest.raises(DataError, match="not a prepared data set"):
        Split.load(folder)


def test_nothing_is_replaced_unless_told_and_only_our_own(folder: Path, tmp_path: Path) -> None:
    before = Split.load(folder).hash
    with pytest.raises(DataError, match="overwrite=True"):
        prepare(LOG, protocol="random", seed=5, out=folder)
    assert Split.load(folder).hash == before
    prepare(LOG, protocol="random", seed=5, out=folder, overwrite=True)
    assert Split.load(folder).hash != before
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "wedding.jpg").write_bytes(b"dear")
    with pytest.raises(DataError, match="left alone"):
        prepare(LOG, protocol="random", out=foreign, overwrite=True)
    assert (foreign / "wedding.jpg").read_bytes() == b"dear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "photos"]


def run_python(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@posix
def test_a_full_disk_ends_in_a_message_and_leaves_nothing(tmp_path: Path) -> None:
    LOG.write_parquet(log := tmp_path / "log.parquet")
    script = """
import resource, sys
from concf.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # every larger write fails, as on a full disk
sys.argv = ["concf", "prepare", sys.argv[1], "--protocol", "random", "--out", sys.argv[2]]
main()
"""
    answer = run_python(script, log, tmp_path / "data")
    assert answer.returncode == 2
    assert "could not be written" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]
