"""The core works where there is no fork, no POSIX signal, no /proc, no C library by name: as on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_run import QUIET

from concf.errors import ConfigError
from concf.runtime import system

SCRIPT = Path(__file__).with_name("without_posix.py")


@pytest.mark.skipif(sys.platform == "win32", reason="there it is so already")
def test_the_core_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(words, env=QUIET, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["done"]), ended.stderr
    assert len((tmp_path / "lists.csv").read_text(encoding="utf-8").splitlines()) == 1 + 40 * 3


def test_what_needs_posix_is_refused_on_windows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "IS_WINDOWS", False)
    system.refuse_on_windows("--workers 2", "Serve with one")
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    with pytest.raises(ConfigError, match=r"^--workers 2: not available on Windows\. Serve with one$"):
        system.refuse_on_windows("--workers 2", "Serve with one")


def test_ids_of_any_language_are_printed_to_a_pipe_on_windows() -> None:
    script = "from concf.runtime import system; system.IS_WINDOWS = True; system.write_utf8(); print('Łódź 東京')"
    words = [sys.executable, "-c", script]
    ended = subprocess.run(words, env=QUIET | {"PYTHONIOENCODING": "cp1252"}, capture_output=True, check=True)
    assert ended.stdout.decode("utf-8").strip() == "Łódź 東京"
