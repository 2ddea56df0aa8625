from __future__ import annotations

import gc
import os
import pty
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import HealthCheck, settings

from concf.cli import main
from concf.data.catalogue import CATALOGUE, HOME_VARIABLE, data_home, is_here

# A loaded machine must not fail a law by the clock; CI draws the same examples every time.
settings.register_profile("concf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("concf"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "concf")

BESIDE = Path(__file__).parents[2] / "shared" / "data"


def absent(what: str, remedy: str) -> NoReturn:
    """Skip a test that needs something from outside, and say how to get it; with CI=true nothing may be skipped."""
    reason = f"needs {what} ({remedy})"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; with CI=true nothing is skipped")
    pytest.skip(reason)


def skipped_line(reasons: Iterable[str]) -> str:
    """What was skipped, how often, and what it would take: one line."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    if not counted:
        return "Skipped: nothing."
    return f"Skipped: {'; '.join(_counted(reason, number) for reason, number in counted.most_common())}."


def _counted(reason: str, number: int) -> str:
    tests = f"{number} test{'s' if number > 1 else ''}"
    if found := re.fullmatch(r"needs (.*)", reason, re.DOTALL):
        return f"{tests} that need{'' if number > 1 else 's'} {found[1]}"
    return f"{tests} ({reason})"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run, after pytest's own; a process of pytest-xdist says nothing."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    reporter.write_line(skipped_line(reasons))


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data home with the public data sets."""
    if HOME_VARIABLE not in os.environ and BESIDE.is_dir():
        monkeypatch.setenv(HOME_VARIABLE, str(BESIDE))
    if not all(is_here(name) for name in CATALOGUE):
        absent("the public data sets", f"concf data fetch NAME for {', '.join(CATALOGUE)}, or set {HOME_VARIABLE}")
    return data_home()


def on_a_terminal(words: list[object], **settings: Any) -> tuple[bytes, str, int]:
    """Run a program whose standard error is a terminal: what it showed there, its standard output, its exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(word) for word in words], stderr=theirs, stdout=subprocess.PIPE, text=True, **settings
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other side has closed
            break
    os.close(ours)
    said, _ = process.communicate()
    return shown, said, process.returncode


@pytest.fixture(autouse=True)
def small_data_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all data of the tests is small, and would be noted; `test_short_histories.py` tests that it is."""
    monkeypatch.setattr("concf.data.split.FEW_USERS", 0)


@pytest.fixture
def on_one_thread() -> Iterator[None]:
    """Small operations on a loaded machine: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Where garbage is collected again and again, as after every trial, all that was there before is left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def concf(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (exit code, standard output, standard error)."""

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
