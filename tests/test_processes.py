"""Two processes, really started, train as one does; a killed or a hung one loses nothing but time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import process_group
import process_worker
import pytest
import recipe_worker
import torch
from gpu_processes import assert_close
from once import once_for_all
from process_job import TORCHRUN, WAIT, Job, double_precision, linux, until
from process_worker import CASES, RESUMED, settings, stopped, tensors, trained
from recipe_worker import DEFAULT
from safetensors.torch import load_file
from small_run import LONG, QUIET, checkpoint, history, small_data

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConfigError
from concf.models import train_job
from concf.reference.batches import Sampler, distinct
from concf.runs import job as jobs
from concf.runs.run import Run
from concf.runtime.process_group import ProcessGroup, fingerprint

once = cache(trained)  # in one process, in double precision; said with `out`, its checkpoint is there too


def test_a_fingerprint_knows_the_order_of_rows_and_tables() -> None:
    table = torch.arange(12.0).view(4, 3)
    others = [table.flip(0), table.flip(1), table.roll(1), table.nextafter(table + 1)]
    found = [fingerprint(each) for each in ([table, others[0]], [others[0], table], *([each] for each in others))]
    assert len({*found, fingerprint([table])}) == 7
    assert fingerprint([table.T.contiguous().T]) == fingerprint([table])


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left behind; `said` is what they wrote."""

    def make(folder: Path) -> None:
        with double_precision():
            stopped(RESUMED, 2, folder / "stopped by one")
            recipe_worker.trained(DEFAULT, stop_after=1, out=folder / "left by one")
        words = [*TORCHRUN, process_group.__file__, folder, "2", "recipe_worker", "process_worker"]
        done = subprocess.run(words, env=QUIET, timeout=WAIT, stdout=subprocess.PIPE, text=True, check=True)
        (folder / "said").write_text(done.stdout)

    return once_for_all(tmp_path_factory, "processes", make)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs of one process are."""
    return tmp_path_factory.getbasetemp() / "alone"


def assert_alike(folder: Path, name: str, expected: Run) -> None:
    """History and tensors of both processes."""
    for mine, theirs in zip(json.loads((folder / f"{name}.json").read_text()), expected.history, strict=True):
        assert_close(mine, theirs, (name,))
    wanted = tensors(expected)
    for rank in range(2):
        parts = load_file(folder / f"{name}.{rank}.safetensors")
        assert parts.keys() == wanted.keys()
        for part, tensor in parts.items():
            assert torch.allclose(tensor, wanted[part], rtol=0, atol=1e-8), (name, rank, part)


def validations(state: dict[str, Any]) -> dict[tuple[str, str], float]:
    parts = ("validation", "epoch", "rose")
    return {(name, part): each[part] for name, each in state["state"]["best"].items() for part in parts}


def assert_same_files(folder: Path, expected: Path) -> None:
    """The same checkpoint and history, but for rounding."""
    (state, parts), (wanted_state, wanted) = checkpoint(folder), checkpoint(expected)
    assert parts.keys() == wanted.keys()
    for part, tensor in parts.items():
        assert tensor.shape == wanted[part].shape
        assert torch.allclose(tensor, wanted[part], rtol=0, atol=1e-8), part
    assert validations(state) == pytest.approx(validations(wanted_state), rel=1e-9)
    for mine, theirs in zip(history(folder), history(expected), strict=True):
        assert_close(mine, theirs)


def test_two_processes_train_as_one(group: Path, alone: Path) -> None:
    with double_precision():
        runs = {case: once(case, out=alone / case) for case in CASES}
    for case, run in runs.items():
        assert_alike(group, case, run)
        assert any(run.history[-1]["consensus_loss"].values()), case
        assert_same_files(group / f"run of {case}", alone / case)
    for rank in range(2):
        message = (group / f"refused.{rank}").read_text()
        assert "process 1 of 2 has another seed than process 0" in message
    assert (group / "said").read_text().count("best head") == 1  # one process speaks


def test_another_number_of_processes_goes_on(group: Path, alone: Path) -> None:
    left = group / "stopped by two"
    assert len(history(left)) == checkpoint(left)[0]["state"]["epoch"] == 2
    with double_precision():
        run = once(RESUMED, out=alone / RESUMED)
        trained(RESUMED, out=left, resume=True)
    assert_alike(group, "resumed", run)  # two, from a checkpoint of one
    for folder in (left, group / "stopped by one"):
        assert_same_files(folder, alone / RESUMED)


@cache
def recipe_alone(name: str, out: Path) -> Run:
    with double_precision():
        run = recipe_worker.trained(name, out=out)
    assert run is not None
    return run


@pytest.mark.parametrize("name", recipe_worker.CASES)
@pytest.mark.filterwarnings("ignore:only .* of .* users are")
def test_two_processes_train_the_default_as_one(group: Path, alone: Path, name: str) -> None:
    """Each with its own users; in memory, and in a folder that any number of processes reads."""
    assert_alike(group, name, recipe_alone(name, alone / name))
    assert_same_files(group / f"run of {name}", alone / name)


@pytest.mark.filterwarnings("ignore:only .* of .* users are")
def test_another_number_of_processes_goes_on_with_the_default(group: Path, alone: Path) -> None:
    recipe_alone(DEFAULT, alone / DEFAULT)
    assert_same_files(group / "left by one", alone / DEFAULT)  # two have gone on with it
    with double_precision():
        recipe_worker.trained(DEFAULT, out=group / "left by two", resume=True)
    assert_same_files(group / "left by two", alone / DEFAULT)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="12 processes for 11 users"):
        train_job(process_worker.data(), settings(RESUMED), jobs.Job(group=ProcessGroup(0, 12)), device="cpu")


@pytest.mark.parametrize("size", [2, 7, 40])
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
def test_a_run_whose_processes_are_killed_and_hang_loses_nothing(group: Path, tmp_path: Path) -> None:
    """With dropout, bit for bit: as many processes add up in the same order."""
    job = Job(tmp_path / "run", 1, small_data(tmp_path / "small"), *LONG)
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
    assert job.end() != 0
    state, _ = checkpoint(job.out)
    assert state["state"]["epoch"] >= 5  # of the last epoch there may be no checkpoint yet
    assert not state["state"]["finished"]
    done = history(job.out)
    assert done == history(group / "undisturbed")[: len(done)]
