from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import HealthCheck, settings
from skipping import POSIX_FILES, absent
from skipping import pytest_unconfigure as pytest_unconfigure
from small_run import CLI, small_data, stopped_run, trained_run

from concf.baselines.table import BASELINES
from concf.cli.app import main
from concf.data.catalogue import CATALOGUE, HOME_VARIABLE, data_home, is_here
from concf.reference.encoders import ENCODERS
from concf.reference.objectives import FORMULATIONS, OBJECTIVES
from concf.runtime.provenance import provenance

# A loaded machine must not fail a law by the clock; CI draws the same examples every time.
settings.register_profile("concf", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("concf"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "concf")

TABLES: tuple[dict[str, object], ...] = (BASELINES, ENCODERS, FORMULATIONS, OBJECTIVES)  # type: ignore[assignment]
collect_ignore = list(POSIX_FILES) if sys.platform == "win32" else []
BESIDE = Path(__file__).parents[2] / "shared" / "data"

# git is asked once, not at every run that is saved; `test_cli.py` asks it itself.
if commit := provenance()["commit"]:
    os.environ["CONCF_COMMIT"] = commit

torch.set_num_threads(1)  # also in fixtures of a module
command_of = cache(typer.main.get_command)  # to build all commands takes longer than most of them


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data home with the public data sets."""
    if HOME_VARIABLE not in os.environ and BESIDE.is_dir():
        monkeypatch.setenv(HOME_VARIABLE, str(BESIDE))
    if not all(is_here(name) for name in CATALOGUE):
        absent("the public data sets", f"concf data fetch NAME for {', '.join(CATALOGUE)}, or set {HOME_VARIABLE}")
    return data_home()


@pytest.fixture
def in_double() -> Iterator[None]:
    """Models are made with 64 bits, so that they can be compared with sums that are written out."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def own_rows_leave() -> Iterator[None]:
    """Rows that a test, or the code of a page, adds to a table are gone after it."""
    before = [dict(table) for table in TABLES]
    yield
    for table, rows in zip(TABLES, before, strict=True):
        for name in table.keys() - rows.keys():
            del table[name]


@pytest.fixture(autouse=True)
def small_data_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all data of the tests is small, and would be noted; `test_short_histories.py` tests that it is."""
    monkeypatch.setattr("concf.data.split.FEW_USERS", 0)


@pytest.fixture(autouse=True)
def on_one_thread() -> None:
    """Small operations on a loaded machine: threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Where garbage is collected again and again, as after every trial, all that was there before is left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def quick_processes() -> None:
    """The server that forks the processes of `execute` has imported what they train with, and not PyTorch alone."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(["torch._dynamo", "concf.models"])
        import_module("multiprocessing.forkserver").ensure_running()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data set of 40 users and 30 items, to be read alone."""
    return small_data(tmp_path_factory.mktemp("data") / "small")


@pytest.fixture(scope="session")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed, to be read alone."""
    return trained_run(data, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="session")
def stopped_once(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its sixth epoch."""
    return stopped_run(data, tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to damage and to go on with."""
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


@pytest.fixture
def concf(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    """Run the command line in this process: (exit code, standard output, standard error)."""

    monkeypatch.setattr("typer.main.get_command", command_of)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["concf", *map(str, words)])
        capsys.readouterr()  # what a fixture said before is not this command's
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
