"""Bulk work: the lists of the plain path by several workers, and nothing lost or doubled when one of them is killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray_work import BAD, FATAL, Counting, Interrupted
from skipping import absent, posix
from small_run import CLI
from small_service import run_folder

from concf.errors import DataError
from concf.inference import bulk
from concf.inference.bulk import MARKER, PARTS, ROWS, Part, parts_of, write_lists
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.runtime.executors import execute, one_after_the_other, ray_cluster

USERS, SIZE, CORES, LIMIT = 40, 7, 2, 180.0
SEVENS = [Part(begin, min(begin + SIZE, USERS)) for begin in range(0, USERS, SIZE)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the engine, this process does the work: for what no engine changes."""
    monkeypatch.setattr(bulk, "execute", lambda work, jobs, *_: one_after_the_other(work, jobs))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray that concf has started, that this process is connected to, and whose workers import `ray_work`."""
    if find_spec("ray") is None:
        absent("Ray", "pip install 'concf[ray]'")
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder,  # short: sockets
        pytest.MonkeyPatch.context() as patch,
    ):
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # older versions of Ray warn of what will change
        patch.delenv("RAY_ADDRESS", raising=False)
        with ray_cluster(CORES) as started:
            yield started


def plain(users: Any = None, k: int = 5, **options: Any) -> pl.DataFrame:
    return Recommender.load(run_folder()).recommend(users, k, **options)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(st.integers(0, 10**7), st.integers(1, 10**4), st.integers(1, 500))
def test_parts_hold_everyone_once_in_whole_blocks(users: int, block: int, k: int) -> None:
    parts = parts_of(users, block, k)
    assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == users
    assert all(part.begin % block == 0 for part in parts)
    assert all((part.end - part.begin - block) * k <= ROWS for part in parts)
    assert len(parts) >= min(PARTS, -(-users // block)) / 2
    assert sorted(part.name for part in parts) == [part.name for part in parts]
    assert parts[0].name == MARKER


@pytest.mark.parametrize("options", [{}, {"by": "multinomial", "rules": Rules(filter_viewed=False), "exclude": [3, 4]}])
def test_parts_hold_the_lists_of_the_plain_path(tmp_path: Path, here: None, options: dict[str, Any]) -> None:
    rows = write_lists(run_folder(), tmp_path / "recs", k=5, engine="ray", parts=SEVENS, **options)
    lists, expected = pl.read_parquet(tmp_path / "recs"), plain(**options)
    assert lists.drop("score").equals(expected.drop("score"))
    assert lists["score"].to_list() == pytest.approx(expected["score"].to_list(), rel=1e-6)
    assert lists.schema == expected.schema
    assert rows == len(expected)
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]


@posix
def test_a_worker_killed_in_the_middle_of_a_part_loses_and_doubles_nothing(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, killed = tmp_path / "victim", []

    def kill() -> None:
        limit = time.monotonic() + LIMIT
        while not victim.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        killed.append(int(victim.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(bulk, "Lists", Interrupted)
    killer = threading.Thread(target=kill)
    killer.start()
    rows = write_lists(run_folder(), tmp_path / "recs", k=5, engine="ray", workers=2, parts=SEVENS)
    killer.join()
    assert killed
    assert killed[0] != os.getpid()
    assert FATAL in [part.begin for part in SEVENS[1:-1]]
    lists = pl.read_parquet(tmp_path / "recs")
    assert lists.equals(plain())
    assert rows == len(lists) == len(lists.unique(["user_id", "item_id"]))
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]
    assert names_in(tmp_path) == ["recs", "victim"]


def test_a_failure_leaves_nothing_behind_but_what_was_there(tmp_path: Path, here: None) -> None:
    with pytest.raises(DataError, match="no user is called 77777"):
        write_lists(run_folder(), tmp_path / "recs", [1, 77777], engine="ray", parts=[Part(0, 1), Part(1, 2)])
    assert names_in(tmp_path) == []
    write_lists(run_folder(), tmp_path / "recs", [1], engine="ray")
    with pytest.raises(DataError, match="no user is called 77777"):
        write_lists(run_folder(), tmp_path / "recs", [1, 77777], engine="ray", parts=[Part(0, 1), Part(1, 2)])
    assert pl.read_parquet(tmp_path / "recs").equals(plain([1], 10))
    write_lists(run_folder(), tmp_path / "recs", [], engine="ray")  # a folder of ours is replaced
    assert pl.read_parquet(tmp_path / "recs").equals(plain([]))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="not a folder that concf made"):
        write_lists(run_folder(), tmp_path / "other", [1], engine="ray")
    assert names_in(tmp_path / "other") == ["letter.txt"]


def test_a_part_that_is_not_what_its_worker_wrote_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(work: bulk.Lists, jobs: Any, *_: Any) -> Any:
        for job, done in one_after_the_other(work, jobs):
            if job[0].begin == SIZE:
                (work.out / job[0].name).unlink()
            yield job, done

    monkeypatch.setattr(bulk, "execute", elsewhere)
    with pytest.raises(DataError, match="on storage that all workers share"):
        write_lists(run_folder(), tmp_path / "recs", engine="ray", parts=SEVENS)
    assert names_in(tmp_path) == []


def test_without_ray_the_extra_is_named(tmp_path: Path, concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = concf("recommend", run_folder(), "--engine", "ray", "--out", tmp_path / "recs")
    assert code == 2
    assert "pip install 'concf[ray]'" in err
    assert names_in(tmp_path) == []


def test_a_job_that_fails_leaves_the_others(ray: Any) -> None:
    done = dict(execute(Counting(), [BAD, 5], "ray", workers=1))
    assert isinstance(done.pop(BAD).exception(), DataError)
    assert [future.exception() for future in done.values()] == [None]


def test_a_process_keeps_its_function_and_reports_a_bad_job() -> None:
    done = dict(execute(Counting(), [BAD, *range(4)], "processes", workers=1))
    assert isinstance(done.pop(BAD).exception(), DataError)
    assert sorted(future.result() for future in done.values()) == [1, 2, 3, 4]
