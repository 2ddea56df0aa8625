"""Bulk work: the lists of the plain path by several workers, and nothing lost or doubled when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from conftest import absent
from hypothesis import given
from hypothesis import strategies as st
from ray_lists import FATAL, Interrupted
from ray_work import Sums
from small_run import QUIET, SMALL, small_data

from concf import bulk
from concf.baselines.popularity import Popularity
from concf.baselines.table import Candidate
from concf.book import Book
from concf.bulk import MARKER, PARTS, ROWS, Part, parts_of, write_lists
from concf.comparison import compare
from concf.data.split import Split
from concf.deploy.recommender import Recommender
from concf.errors import ConfigError, DataError
from concf.experiments.plan import Cell
from concf.experiments.running import run_cells
from concf.learning.checkpoint import RunFolder
from concf.learning.presets import choose_settings
from concf.learning.train import train
from concf.spread import DeadWorkersError, _cluster, one_after_the_other, spread

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
USERS, SIZE = 40, 7
SEVENS = [Part(begin, min(begin + SIZE, USERS)) for begin in range(0, USERS, SIZE)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    data = Split.load(small_data(folder / "data"))
    train(data, choose_settings(words=SMALL), out=folder / "run")
    RunFolder(folder / "run").keep(data)
    return folder / "run"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the engine, this process does the work: for what no engine changes."""
    monkeypatch.setattr(bulk, "spread", lambda work, jobs, *_: one_after_the_other(work, jobs))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A local Ray with two workers, in whose processes `ray_work` can be imported."""
    if find_spec("ray") is None:
        absent("ray is not installed: pip install 'concf[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        with _cluster(2) as started:
            yield started


def plain(run: Path, users: Any = None, k: int = 5, **options: Any) -> pl.DataFrame:
    return Recommender.load(run).recommend(users, k, **options)


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


@pytest.mark.parametrize("options", [
    {}, {"by": "bpr"}, {"by": "multinomial", "filter_viewed": False}, {"exclude": [3, 4]}, {"items": list(range(12))},
])  # fmt: skip
def test_parts_hold_the_lists_of_the_plain_path(run: Path, tmp_path: Path, here: None, options: dict[str, Any]) -> None:
    rows = write_lists(run, tmp_path / "recs", k=5, engine="ray", parts=SEVENS, **options)
    found, expected = pl.read_parquet(tmp_path / "recs"), plain(run, **options)
    assert found.drop("score").equals(expected.drop("score"))
    assert found["score"].to_list() == pytest.approx(expected["score"].to_list(), rel=1e-6)
    assert found.schema == expected.schema
    assert rows == len(expected)
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]


def test_some_users_and_strangers_in_the_order_asked_for(run: Path, tmp_path: Path, here: None) -> None:
    asked = [9, 10**9, 3, 9, 0]
    parts = [Part(0, 2), Part(2, 4), Part(4, 5)]
    write_lists(run, tmp_path / "recs", asked, 5, engine="ray", parts=parts, unknown="popular")
    assert pl.read_parquet(tmp_path / "recs").equals(plain(run, asked, unknown="popular"))


def test_a_worker_killed_in_the_middle_of_a_part_loses_and_doubles_nothing(
    run: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, killed = tmp_path / "victim", []

    def kill() -> None:
        limit = time.monotonic() + 50
        while not told.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        killed.append(int(told.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(bulk, "Lists", Interrupted)
    murder = threading.Thread(target=kill)
    murder.start()
    rows = write_lists(run, tmp_path / "recs", k=5, engine="ray", workers=2, parts=SEVENS)
    murder.join()
    assert killed
    assert killed[0] != os.getpid()
    assert FATAL in [part.begin for part in SEVENS[1:-1]]
    found = pl.read_parquet(tmp_path / "recs")
    assert found.equals(plain(run))
    assert rows == len(found) == len(found.unique(["user_id", "item_id"]))
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]
    assert names_in(tmp_path) == ["recs", "victim"]


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_worker_keeps_its_function_and_tells_of_a_bad_job(tmp_path: Path, ray: Any, engine: str) -> None:
    done = dict(spread(Sums(tmp_path), [1, -1, 2, 3], engine, workers=1))
    assert isinstance(done[-1].exception(), DataError)
    assert str(done.pop(-1).exception()) == "a bad job"
    assert [done[job].result() for job in (1, 2, 3)] == [1, 3, 6]


def test_a_job_that_kills_every_worker_ends_and_leaves_the_others(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.spread.RETRIES", 1)
    done = dict(spread(Sums(tmp_path), [-2, 5, 6], "ray", workers=1))
    assert isinstance(done.pop(-2).exception(), DeadWorkersError)
    assert (tmp_path / "deaths").read_text() == "xx"
    assert [future.result() for future in done.values()] == [5, 11]


def test_a_failing_worker_leaves_nothing_behind(run: Path, tmp_path: Path, ray: Any) -> None:
    with pytest.raises(DataError, match="no user is called 77777"):
        write_lists(run, tmp_path / "recs", [1, 77777], engine="ray", workers=1, parts=[Part(0, 1), Part(1, 2)])
    assert names_in(tmp_path) == []


def test_a_failure_leaves_what_was_there(run: Path, tmp_path: Path, here: None) -> None:
    write_lists(run, tmp_path / "recs", [1], engine="ray")
    with pytest.raises(DataError, match="no user is called 77777"):
        write_lists(run, tmp_path / "recs", [1, 77777], engine="ray", parts=[Part(0, 1), Part(1, 2)])
    assert pl.read_parquet(tmp_path / "recs").equals(plain(run, [1], 10))
    write_lists(run, tmp_path / "recs", [], engine="ray")  # a folder of ours is replaced
    assert pl.read_parquet(tmp_path / "recs").equals(plain(run, []))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="not a folder that concf made"):
        write_lists(run, tmp_path / "other", [1], engine="ray")
    assert names_in(tmp_path / "other") == ["letter.txt"]


def test_a_part_that_is_not_what_its_worker_wrote_is_noticed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(work: bulk.Lists, jobs: Any, *_: Any) -> Any:
        for job, done in one_after_the_other(work, jobs):
            if job[0].begin == SIZE:
                (work.out / job[0].name).unlink()
            yield job, done

    monkeypatch.setattr(bulk, "spread", elsewhere)
    with pytest.raises(DataError, match="on storage that all workers share"):
        write_lists(run, tmp_path / "recs", engine="ray", parts=SEVENS)
    assert names_in(tmp_path) == []


def test_no_other_machine_can_reach_a_local_ray(ray: Any) -> None:
    from ray._common.usage.usage_lib import usage_stats_enabled

    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
    assert not usage_stats_enabled()


def test_cells_of_an_experiment_are_those_of_one_process(tmp_path: Path, ray: Any) -> None:
    cells = [Cell("PCL", "demo", "released", 0), Cell("statistics", "demo", "released", 0)]
    small_data(tmp_path / cells[0].folder)
    books = {engine: Book(tmp_path / engine) for engine in ("processes", "ray")}
    for engine, book in books.items():
        assert run_cells(cells, book, tmp_path, engine=engine, workers=1, device="cpu", changes=SMALL) == []
    for cell in cells:
        key = cell.key(SMALL)
        one, other = (book.find(key) or {} for book in books.values())
        assert one.get("rows") == other.get("rows")
        assert len(one) == len(other) > 1


def test_a_comparison_is_that_of_one_process(tmp_path: Path, ray: Any) -> None:
    data, models = Split.load(small_data(tmp_path / "data")), {"popular": Candidate(Popularity)}
    alone = compare(data, models, seeds=2).entrants[0]
    found = compare(data, models, seeds=2, engine="ray", workers=1).entrants[0]
    assert (found.settings, found.validation, found.tests) == (alone.settings, alone.validation, alone.tests)


def test_the_command_starts_a_ray_of_its_own_and_says_one_line(run: Path, tmp_path: Path) -> None:
    if find_spec("ray") is None:
        absent("ray is not installed: pip install 'concf[ray]'")
    words = [sys.executable, "-m", "concf", "recommend", run, "-k", "5", "--by", "bpr", "--out"]
    quiet = {name: value for name, value in QUIET.items() if name != "RAY_ADDRESS"}
    more = ["--engine", "ray", "--workers", "1", "--json"]
    done = subprocess.run([*words, "recs/", *more], cwd=tmp_path, env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = pl.read_parquet(tmp_path / "recs")
    assert json.loads(done.stdout) == {"out": "recs", "users": USERS, "rows": len(found), "by": "bpr"}
    assert found.equals(plain(run, by="bpr"))
    assert names_in(tmp_path) == ["recs"]


@pytest.mark.parametrize(("words", "said"), [
    (["--engine", "ray"], "say where with --out"),
    (["--engine", "spark", "--out", "recs"], "choose from processes, ray"),
    (["--workers", "2", "--out", "recs"], "--workers needs an --engine"),
    (["--engine", "ray", "--out", "recs.parquet"], "an engine writes a folder"),
])  # fmt: skip
def test_words_that_make_no_sense_are_refused(run: Path, concf: CLI, words: list[str], said: str) -> None:
    code, out, err = concf("recommend", run, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_without_ray_the_extra_is_named(run: Path, tmp_path: Path, concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = concf("recommend", run, "--engine", "ray", "--out", tmp_path / "recs")
    assert code == 2
    assert "pip install 'concf[ray]'" in err
    assert names_in(tmp_path) == []


def test_a_cluster_that_does_not_answer_is_named_at_once(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"RAY_ADDRESS = 127\.0\.0\.1:9: no Ray cluster answers there"):
        list(spread(Sums(tmp_path), [1], "ray"))
