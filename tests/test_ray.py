"""Bulk work: the lists of the plain path by several workers, and nothing lost or doubled when one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray_cluster import CORES, local_ray, one_more_machine, wait_for
from ray_lists import FATAL, Interrupted
from ray_work import BAD, DEADLY, Counting, Doomed, sleep
from skipping import absent, posix
from small_run import QUIET, SMALL, small_data

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.experiments import measure
from concf.experiments.compare import compare
from concf.inference import bulk
from concf.inference.bulk import MARKER, PARTS, ROWS, Part, parts_of, write_lists
from concf.inference.recommender import Recommender
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.table import Candidate
from concf.runtime import executors
from concf.runtime.executors import DeadWorkersError, execute, one_after_the_other
from concf.training.checkpoint import RunFolder
from concf.training.config.presets import choose_settings
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
Commands = tuple[Path, dict[str, subprocess.Popen[str]]]
USERS, SIZE = 40, 7
# A busy machine is slow to start a worker, and the command would say so.
PATIENT = "from concf.runtime import executors; executors.WAIT_SECONDS = 600; from concf.cli.app import main; main()"
NO_RAY = "from concf.runtime.executors import *; next(execute(abs, [1], RAY))"
SEVENS = [Part(begin, min(begin + SIZE, USERS)) for begin in range(0, USERS, SIZE)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    data = Split.load(small_data(folder / "data"))
    train(data, choose_settings("reference", words=SMALL), out=folder / "run")
    RunFolder(folder / "run").keep(data)
    return folder / "run"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the engine, this process does the work: for what no engine changes."""
    monkeypatch.setattr(bulk, "execute", lambda work, jobs, *_: one_after_the_other(work, jobs))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray that concf has started, and that this process is connected to."""
    if find_spec("ray") is None:
        absent("Ray", "pip install 'concf[ray]'")
    with local_ray() as started:
        yield started


@pytest.fixture(scope="module")
def commands(run: Path, ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Processes that join a Ray at RAY_ADDRESS; they mostly wait, and other tests go on."""
    folder = tmp_path_factory.mktemp("commands")
    environment = QUIET | {name: value for name, value in os.environ.items() if name.startswith("RAY_")}

    def start(program: str, address: str, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)], cwd=folder, env=environment | {"RAY_ADDRESS": address},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    words = ["recommend", run, "-k", "5", "--by", "bpr", "--engine", "ray", "--workers", "1", "--json", "--out", "recs"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        started = {
            "joined": start(PATIENT, ray.get_runtime_context().gcs_address, *words),
            "no ray": start(NO_RAY, f"127.0.0.1:{other.getsockname()[1]}"),
        }
        yield folder, started
        for command in started.values():  # done long ago, unless its test was not asked for
            command.terminate()
            command.communicate()


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
    lists, expected = pl.read_parquet(tmp_path / "recs"), plain(run, **options)
    assert lists.drop("score").equals(expected.drop("score"))
    assert lists["score"].to_list() == pytest.approx(expected["score"].to_list(), rel=1e-6)
    assert lists.schema == expected.schema
    assert rows == len(expected)
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]


def test_some_users_and_strangers_in_the_order_asked_for(run: Path, tmp_path: Path, here: None) -> None:
    users = [9, 10**9, 3, 9, 0]
    parts = [Part(0, 2), Part(2, 4), Part(4, 5)]
    write_lists(run, tmp_path / "recs", users, 5, engine="ray", parts=parts, unknown="popular")
    assert pl.read_parquet(tmp_path / "recs").equals(plain(run, users, unknown="popular"))


@pytest.mark.usefixtures("commands")
@posix
def test_a_worker_killed_in_the_middle_of_a_part_loses_and_doubles_nothing(
    run: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, killed = tmp_path / "victim", []

    def kill() -> None:
        wait_for(victim.exists, "a worker in the middle of a part")
        killed.append(int(victim.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(bulk, "Lists", Interrupted)
    killer = threading.Thread(target=kill)
    killer.start()
    rows = write_lists(run, tmp_path / "recs", k=5, engine="ray", workers=2, parts=SEVENS)
    killer.join()
    assert killed
    assert killed[0] != os.getpid()
    assert FATAL in [part.begin for part in SEVENS[1:-1]]
    lists = pl.read_parquet(tmp_path / "recs")
    assert lists.equals(plain(run))
    assert rows == len(lists) == len(lists.unique(["user_id", "item_id"]))
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]
    assert names_in(tmp_path) == ["recs", "victim"]


def test_a_failure_leaves_nothing_behind_but_what_was_there(run: Path, tmp_path: Path, here: None) -> None:
    with pytest.raises(DataError, match="no user is called 77777"):
        write_lists(run, tmp_path / "recs", [1, 77777], engine="ray", parts=[Part(0, 1), Part(1, 2)])
    assert names_in(tmp_path) == []
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

    monkeypatch.setattr(bulk, "execute", elsewhere)
    with pytest.raises(DataError, match="on storage that all workers share"):
        write_lists(run, tmp_path / "recs", engine="ray", parts=SEVENS)
    assert names_in(tmp_path) == []


def test_a_comparison_is_that_of_one_process(tmp_path: Path, ray: Any) -> None:
    data, models = Split.load(small_data(tmp_path / "data")), {"popular": Candidate(Popularity)}
    alone = compare(data, models, seeds=2).entrants[0]
    entrant = compare(data, models, seeds=2, engine="ray", workers=1).entrants[0]
    assert (entrant.settings, entrant.validation, entrant.tests) == (alone.settings, alone.validation, alone.tests)


@pytest.mark.parametrize(("words", "message"), [
    (["--engine", "ray"], "say where with --out"),
    (["--engine", "spark", "--out", "recs"], "'spark' is not one of"),
    (["--workers", "2", "--out", "recs"], "--workers needs an --engine"),
    (["--engine", "ray", "--out", "recs.parquet"], "an engine writes a folder"),
])  # fmt: skip
def test_words_that_make_no_sense_are_refused(run: Path, concf: CLI, words: list[str], message: str) -> None:
    code, out, err = concf("recommend", run, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_without_ray_the_extra_is_named(run: Path, tmp_path: Path, concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = concf("recommend", run, "--engine", "ray", "--out", tmp_path / "recs")
    assert code == 2
    assert "pip install 'concf[ray]'" in err
    assert names_in(tmp_path) == []


def test_a_function_the_workers_have_not_is_named(tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def double(job):\n    return 2 * job\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"could not start\. Has every machine of it this version of concf"):
        next(execute(import_module("only_here").double, [1], "ray", workers=1))


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_worker_keeps_its_function_and_reports_a_bad_job(tmp_path: Path, ray: Any, engine: str) -> None:
    done = dict(execute(Counting(tmp_path), [BAD, *range(8)], engine, workers=1))
    assert isinstance(done[BAD].exception(), DataError)
    assert str(done.pop(BAD).exception()) == "a bad job"
    assert done.keys() == set(range(8))
    assert max(future.result() for future in done.values()) > (7 if engine == "processes" else 1)


def test_a_job_that_kills_every_worker_ends_and_leaves_the_others(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "RETRIES", 1)
    done = dict(execute(Counting(tmp_path), [DEADLY, 5, 6], "ray", workers=1))
    assert isinstance(done.pop(DEADLY).exception(), DeadWorkersError)
    assert (tmp_path / "deaths").read_text() == "xx"
    assert [future.exception() for future in done.values()] == [None, None]


def test_a_ray_that_is_started_is_for_this_machine_alone_and_reports_to_nobody(ray: Any) -> None:
    from ray._common.usage.usage_lib import usage_stats_enabled

    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    assert not usage_stats_enabled()
    assert ray.cluster_resources()["CPU"] == CORES


def test_a_command_joins_a_cluster_and_a_port_of_others_is_refused(run: Path, commands: Commands, ray: Any) -> None:
    folder, started = commands
    out, err = started["joined"].communicate()
    assert (started["joined"].returncode, err) == (0, "")
    expected = plain(run, by="bpr")
    assert json.loads(out) == {"out": "recs", "users": USERS, "rows": len(expected), "by": "bpr"}
    assert pl.read_parquet(folder / "recs").equals(expected)
    assert names_in(folder) == ["recs"]
    assert ray.nodes()[0]["Alive"]
    assert "there is no Ray cluster to join (" in started["no ray"].communicate()[1]


@pytest.mark.parametrize(("address", "reason"), [
    ("127.0.0.1:9", "refused"),
    ("ray://127.0.0.1:9", "refused"),
    ("ray://head", "expected HOST:PORT"),
    ("head", "expected HOST:PORT"),
])  # fmt: skip
def test_an_address_without_a_cluster_is_refused_at_once(
    run: Path, tmp_path: Path, ray: Any, concf: CLI, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    code, out, err = concf("recommend", run, "--engine", "ray", "--out", tmp_path / "recs")
    assert (code, out) == (2, "")
    assert f"RAY_ADDRESS = {address}: there is no Ray cluster to join" in err
    assert reason in err
    assert names_in(tmp_path) == []


def test_another_version_of_ray_or_of_concf_is_refused(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Version mismatch: the cluster was started with Ray: 0.9")

    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(ray, "init", refuse)
        patch.setenv("RAY_ADDRESS", "auto")
        with pytest.raises(ConfigError, match=r"there is no Ray cluster to join \(Version mismatch"):
            next(execute(abs, [1], "ray"))
    monkeypatch.setattr(executors, "VERSION", "99")
    with pytest.raises(ConfigError, match=r"a worker of the Ray cluster has concf .*, and this is 99"):
        next(execute(abs, [1], "ray", workers=1))


def test_a_full_cluster_is_waited_for_and_that_is_said(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    class Log:
        def warning(self, line: str, *values: object) -> None:
            lines.append(line % values)
            ray.cancel(others, force=True)

    others = ray.remote(num_cpus=CORES, max_retries=0)(sleep).remote(tmp_path / "started")
    wait_for((tmp_path / "started").exists, "a job on all cores")
    monkeypatch.setattr(executors, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(executors, "_log", Log())
    assert [done.result() for _, done in execute(abs, [-4], "ray", workers=1)] == [4]
    assert len(lines) == 1
    assert lines[0].startswith("no worker of the Ray cluster is free yet (")


def test_what_ray_prints_while_it_is_waited_for_is_no_result(
    ray: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wait = ray.wait

    def news(*jobs: Any, **options: Any) -> Any:
        print("a machine was lost")
        return wait(*jobs, **options)

    monkeypatch.setattr(ray, "wait", news)
    assert [done.result() for _, done in execute(abs, [-4], "ray", workers=1)] == [4]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("a machine was lost") == 2  # before the first job, and for it


def test_a_machine_lost_in_the_middle_of_each_kind_of_work_changes_nothing(
    run: Path, tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists and a comparison, on four machines, one of which is lost each time."""
    data, models = Split.load(run / "data"), {"popular": Candidate(Popularity)}

    def doomed(function: Callable[[Any], Any], jobs: Any, *more: Any) -> Any:
        several = len(jobs) > CORES
        return execute(Doomed(tmp_path / machine, machine, function) if several else function, jobs, *more)

    def alive() -> set[str]:
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def lose(machine: str) -> None:
        wait_for((tmp_path / machine).exists, f"a worker on the machine {machine}")
        kill[machine]()

    alone = compare(data, models, seeds=5).entrants[0]
    for module in (bulk, measure):
        monkeypatch.setattr(module, "execute", doomed)
    before, address, found, kill = alive(), ray.get_runtime_context().gcs_address, {}, {}
    work = {
        "lists": lambda: write_lists(run, tmp_path / "recs", k=5, engine="ray", parts=SEVENS),
        "comparison": lambda: compare(data, models, seeds=5, engine="ray").entrants[0],
    }
    with ExitStack() as machines:
        for name in (*work, "lasting"):
            kill[name] = machines.enter_context(one_more_machine(address, name))
            wait_for(lambda: len(alive() - before) == len(kill), f"the machine {name}")
        for machine, each in work.items():
            killer = threading.Thread(target=lose, args=(machine,))
            killer.start()
            found[machine] = each()
            killer.join()
            assert (tmp_path / machine).exists()
    assert pl.read_parquet(tmp_path / "recs").drop("score").equals(plain(run).drop("score"))
    assert names_in(tmp_path / "recs") == [part.name for part in SEVENS]
    assert (found["comparison"].validation, found["comparison"].tests) == (alone.validation, alone.tests)
