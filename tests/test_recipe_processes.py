"""The default preset in several processes, each with its own users, comes to the end of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import cache
from pathlib import Path

import process_group
import pytest
import torch
from once import once_for_all
from process_job import TORCHRUN, WAIT, Job, double_precision, linux, until
from recipe_worker import CASES, COMMAND, DEFAULT, UNEVEN, case, trained
from small_recipe import data
from small_run import QUIET, assert_same_end
from test_processes import assert_alike, assert_same_files

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.process_group import ProcessGroup
from concf.training.checkpoint import load_run
from concf.training.config.presets import choose_settings
from concf.training.run import Run
from concf.training.train import train

pytestmark = [pytest.mark.usefixtures("on_one_thread"), pytest.mark.filterwarnings("ignore:only .* of .* users are")]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four processes have left behind, then three and two of them."""

    def make(folder: Path) -> None:
        data().save(folder / "data")
        words = [*TORCHRUN, process_group.__file__, folder, "4", "recipe_worker"]
        subprocess.run(words, env=QUIET, timeout=WAIT, check=True)

    return once_for_all(tmp_path_factory, "recipe", make)


@cache
def alone(name: str, out: Path) -> Run:
    with double_precision():
        run = trained(name, out=out)
    assert run is not None
    return run


@pytest.mark.parametrize(("processes", "name"), [(size, name) for size, names in CASES.items() for name in names])
def test_processes_train_as_one(group: Path, tmp_path_factory, processes: int, name: str) -> None:
    """In memory, and in a folder that any number of processes reads."""
    expected = tmp_path_factory.getbasetemp() / "alone" / name
    assert_alike(group / str(processes), name, processes, alone(name, expected))
    assert_same_files(group / str(processes) / f"run of {name}", expected)


def test_a_process_may_have_nobody_to_validate() -> None:
    split, _ = case(UNEVEN)
    assert split.validated.max() < ProcessGroup(3, 4).share(split.train.shape[0]).start


def test_another_number_of_processes_goes_on(group: Path, tmp_path_factory) -> None:
    expected = tmp_path_factory.getbasetemp() / "alone" / DEFAULT
    alone(DEFAULT, expected)
    assert_same_files(group / "elastic", expected)  # four have begun it, three gone on, and two come to its end
    with double_precision():
        trained(DEFAULT, out=group / "4" / "left", resume=True)  # one, after four
    assert_same_files(group / "4" / "left", expected)


def test_single_precision_rounds_a_little_differently(group: Path) -> None:
    """Two processes and one: scores by their standard deviation, and lists."""
    words = [word for word in COMMAND if "=" in word]
    alone, run = train(data(), choose_settings("strong", words=words), device="cpu"), load_run(group / "undisturbed")
    assert run.chosen == alone.chosen
    for name, expected in alone.model.factors().items():
        factors = run.model.factors()[name]
        scores, wanted = (each.user @ each.item.T for each in (factors, expected))
        assert float((scores - wanted).abs().max() / wanted.std()) < 1e-4
    for name in (CONSENSUS, R_CONSENSUS):
        lists, wanted = (torch.as_tensor(each.best[name].lists) for each in (run, alone))
        assert float((lists == wanted).double().mean()) > 0.99


@linux
@pytest.mark.parametrize("processes", CASES)
def test_processes_of_a_machine_hold_the_log_once(group: Path, processes: int) -> None:
    """A matrix of 64 MB that all have read: each counts for its share of the pages, and has no copy."""
    for rank in range(processes):
        found = json.loads((group / str(processes) / f"memory.{rank}").read_text())
        assert found["rss"] >= 64 << 20
        assert found["pss"] == pytest.approx(found["rss"] / processes, rel=0.1)
        assert found["more"] < 8 << 20


@linux
def test_killed_processes_lose_nothing(group: Path, tmp_path: Path) -> None:
    """The first one, which writes, and then the other, of those that were started in their place."""
    job = Job(tmp_path / "run", 2, group / "data", *COMMAND)
    for rank, stages in ((0, 2), (1, 4)):
        job.until_epoch(stages)
        os.kill(job.pid(rank), signal.SIGKILL)
        until(lambda so_far=rank: job.said.read_text().count("a process failed, all are started again") > so_far)
    assert job.end() == 0, job.said.read_text()
    assert_same_end(job.out, group / "undisturbed")
