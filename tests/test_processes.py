"""Several processes, really started, train as one does; a killed or a hung one loses nothing but time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import process_group
import process_worker
import pytest
import torch
from gpu_processes import assert_close
from once import once_for_all
from process_job import TORCHRUN, WAIT, Job, double_precision, linux, until
from process_worker import RESUMED, cases, settings, stopped, tensors, trained
from safetensors.torch import load_file
from small_run import LONG, QUIET, checkpoint, history, small_data

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.runtime.process_group import ProcessGroup, fingerprint
from concf.training.batches import Sampler, distinct
from concf.training.checkpoint import load_run
from concf.training.run import Run
from concf.training.train import train
from reproduction.ablations import ABLATIONS

pytestmark = pytest.mark.usefixtures("on_one_thread")

once = cache(trained)  # in one process, in double precision; said with `out`, its checkpoint is there too


def test_a_fingerprint_knows_the_order_of_rows_and_tables() -> None:
    table = torch.arange(12.0).view(4, 3)
    others = [table.flip(0), table.flip(1), table.roll(1), table.nextafter(table + 1)]
    found = [fingerprint(each) for each in ([table, others[0]], [others[0], table], *([each] for each in others))]
    assert len({*found, fingerprint([table])}) == 7
    assert fingerprint([table.T.contiguous().T]) == fingerprint([table])


@pytest.fixture
def in_double() -> Iterator[None]:
    with double_precision():
        yield


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What three processes have left behind, and then two of them, in one job; and what they said."""

    def make(folder: Path) -> None:
        with double_precision():
            leave_unfinished(folder, 3, 2)
        words = [*TORCHRUN, process_group.__file__, folder, "3", "process_worker"]
        done = subprocess.run(words, env=QUIET, timeout=WAIT, stdout=subprocess.PIPE, text=True, check=True)
        (folder / "said").write_text(done.stdout)

    folder = once_for_all(tmp_path_factory, "processes", make)
    return folder, (folder / "said").read_text()


def assert_trained_alike(folder: Path, name: str, processes: int, case: str) -> None:
    assert_alike(folder, name, processes, once(case, out=folder.parent / "alone" / case))


def assert_alike(folder: Path, name: str, processes: int, expected: Run) -> None:
    records = json.loads((folder / f"{name}.json").read_text())
    assert len(records) == len(expected.history)
    for mine, theirs in zip(records, expected.history, strict=True):
        assert_close(mine, theirs, (name,))
    wanted = tensors(expected)
    for rank in range(processes):
        parts = load_file(folder / f"{name}.{rank}.safetensors")
        assert parts.keys() == wanted.keys()
        for part, tensor in parts.items():
            assert torch.allclose(tensor, wanted[part], rtol=0, atol=1e-9), (name, rank, part)


def test_processes_train_as_one(in_double, group: tuple[Path, str]) -> None:
    folder, spoken = group
    for processes in (3, 2):
        here = folder / str(processes)
        for case in cases(processes):
            assert_trained_alike(here, case, processes, case)
            last = json.loads((here / f"{case}.json").read_text())[-1]
            assert any(last["consensus_loss"].values()) == settings(case).teaches, case
            assert_same_checkpoint(here / f"run of {case}", folder / "alone" / case, case)
        assert_trained_alike(here, "resumed", processes, RESUMED)  # from a checkpoint of one process
        assert_same_checkpoint(here / "stopped alone", folder / "alone" / RESUMED, RESUMED)
        for rank in range(processes):
            message = (here / f"refused.{rank}").read_text()
            assert f"process 1 of {processes} has another seed than process 0" in message
    assert_same_checkpoint(folder / "3" / "stopped here", folder / "alone" / RESUMED, RESUMED)  # two have gone on
    assert_goes_on_alone(folder / "2" / "stopped here", folder)
    assert spoken.count("best head") == 1  # one process speaks
    by_command = load_run(folder / "2" / "undisturbed")
    assert by_command.finished
    assert len(by_command.evaluate(at=[3])[by_command.best_head()].lists) == len(by_command.data.evaluated)
    message, other = ((folder / "2" / f"full.{rank}").read_text() for rank in (0, 1))
    assert "checkpoint.safetensors: could not be written" in message
    assert "process 1 of 2: another process has ended, or has not answered for 60 s" in other
    assert [path.name for path in (folder / "2" / "full disk").iterdir() if "checkpoint" in path.name] == []


def leave_unfinished(folder: Path, *processes: int) -> None:
    """Runs of one process for so many to go on with."""
    stopped(RESUMED, 2, folder / "stopped")
    for number in processes:
        shutil.copytree(folder / "stopped", folder / str(number) / "stopped alone")


def validations(state: dict[str, Any]) -> dict[tuple[str, str], float]:
    parts = ("validation", "epoch", "rose")
    return {(name, part): each[part] for name, each in state["state"]["best"].items() for part in parts}


def assert_same_checkpoint(folder: Path, expected: Path, name: str) -> None:
    """As one process writes it."""
    once(name, out=expected)
    assert_same_files(folder, expected)


def assert_same_files(folder: Path, expected: Path) -> None:
    """The same checkpoint and history, but for rounding."""
    (state, parts), (wanted_state, wanted) = checkpoint(folder), checkpoint(expected)
    assert parts.keys() == wanted.keys()
    for part, tensor in parts.items():
        assert tensor.shape == wanted[part].shape
        assert torch.allclose(tensor, wanted[part], rtol=0, atol=1e-9), part
    assert validations(state) == pytest.approx(validations(wanted_state), rel=1e-9)
    for mine, theirs in zip(history(folder), history(expected), strict=True):
        assert_close(mine, theirs)


def assert_goes_on_alone(left: Path, folder: Path) -> None:
    """One process, from a checkpoint of several."""
    assert len(history(left)) == checkpoint(left)[0]["state"]["epoch"] == 2
    trained(RESUMED, out=left, resume=True)
    assert_same_checkpoint(left, folder / "alone" / RESUMED, RESUMED)


def test_one_process_of_torchrun_trains_as_without_it(in_double, monkeypatch, tmp_path: Path) -> None:
    leave_unfinished(tmp_path, 1)
    alone = {"TORCHELASTIC_RUN_ID": "alone", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    process_worker.work(tmp_path)
    assert_trained_alike(tmp_path / "1", "mlp", 1, "mlp")


def test_what_cannot_be_divided_is_refused() -> None:
    data, chosen = process_worker.data(), settings("mlp")
    with pytest.raises(ConfigError, match="12 processes for 11 users"):
        train(data, chosen, group=ProcessGroup(0, 12), device="cpu")
    with pytest.raises(ConfigError, match="in one process and in memory"):
        train(data, chosen, parts=ABLATIONS["PCL"], group=ProcessGroup(0, 2))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_each_distinct_user_and_item_is_counted_once_by_one_process(size: int) -> None:
    data = prepare(Simulation(users=20, items=15, events=200).draw(0), protocol="random")
    whole = next(Sampler(data.train).epoch(0, 0).split(32))
    parts = [whole.part(ProcessGroup(rank, size).share(len(whole))) for rank in range(size)]
    for n, of, among in ((20, "user", "among_users"), (15, "items", "among_items")):
        counted = np.zeros(n)
        for part in parts:
            if len(part):
                rows, weight = distinct(getattr(part, of), n, torch.float64, among=getattr(part, among)())
                np.add.at(counted, getattr(part, of)[rows].numpy(), weight.numpy())
        there = np.isin(np.arange(n), getattr(whole, of).numpy())
        assert counted.tolist() == there.astype(float).tolist()
    assert torch.equal(torch.cat([part.user for part in parts]), whole.user)


@linux
def test_a_run_whose_processes_are_killed_and_hang_loses_nothing(group: tuple[Path, str], tmp_path: Path) -> None:
    """With dropout, bit for bit: as many processes add up in the same order."""
    job = Job(tmp_path / "run", small_data(tmp_path / "small"), *LONG, "--restarts", "1", "--timeout", "10")
    job.until_epoch(3)
    os.kill(job.pid(0), signal.SIGKILL)
    until(lambda: "a process failed, all are started again" in job.said.read_text())
    job.until_epoch(6)
    hung = job.pid(1)
    os.kill(hung, signal.SIGSTOP)
    begin = time.monotonic()
    until(lambda: "process 0 of 2: another process has ended, or has not answered for 10 s" in job.said.read_text())
    assert time.monotonic() - begin < 60
    os.kill(hung, signal.SIGKILL)  # the launcher would, but is patient
    assert job.end() == 2
    assert "process 1 was killed (SIGKILL)" in job.said.read_text()
    assert "Traceback" not in job.said.read_text()
    state, _ = checkpoint(job.out)
    assert state["state"]["epoch"] >= 5  # of the last epoch there may be no checkpoint yet
    assert not state["state"]["finished"]
    done = history(job.out)
    assert done == history(group[0] / "2" / "undisturbed")[: len(done)]


def test_a_mistake_is_said_once_before_anything_is_started(concf, tmp_path: Path) -> None:
    small = small_data(tmp_path / "small")
    code, _, err = concf("train", small, "--out", tmp_path / "run", "--processes", "2", "--set", "model.size=1")
    assert code == 2
    assert err.count("unknown setting") == err.count("\n") == 1
    assert not (tmp_path / "run").exists()
