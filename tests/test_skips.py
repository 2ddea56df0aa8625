"""The last line of a run of the tests: what was skipped, and what it would take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from skipping import MAY_SKIP, skipped_line

TESTS = """
import pytest
from skipping import absent

@pytest.mark.parametrize("k", range(3))
def test_of_data(k):
    absent("the data", "fetch it")

def test_of_a_browser():
    absent("a browser", "install one")

@pytest.mark.skipif(True, reason="elsewhere only")
def test_marked():
    pass

def test_whole():
    pass
"""


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pytest on a file of its own, with what ends a run of this suite."""
    (folder / "conftest.py").write_text("from skipping import pytest_unconfigure as pytest_unconfigure")
    (folder / "test_outside.py").write_text(TESTS)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CI", MAY_SKIP) and "PYTEST" not in name
    }
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they take long
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "-p", "no:cacheprovider", "-p", "xdist", *words]
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_a_run_ends_with_what_was_skipped_and_what_it_would_take(tmp_path: Path, words: list[str]) -> None:
    ended = run(tmp_path, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("Skipped: ")]
    assert ended.stdout.splitlines()[-1] == line
    assert line.startswith("Skipped: 3 tests that need the data (fetch it); ")
    assert "1 test that needs a browser (install one)" in line
    assert "1 test (elsewhere only)" in line


def test_with_ci_nothing_is_skipped_for_want_of_something(tmp_path: Path) -> None:
    ended = run(tmp_path, CI="true")
    assert ended.returncode == 1
    assert "4 failed" in ended.stdout
    assert "needs a browser (install one); with CI=true nothing is skipped" in ended.stdout


def test_where_ci_lacks_the_data_it_may_skip(tmp_path: Path) -> None:
    assert run(tmp_path, CI="true", CONCF_TESTS_MAY_SKIP="1").returncode == 0


def test_nothing_skipped_is_said_too() -> None:
    assert skipped_line([]) == "Skipped: nothing."
