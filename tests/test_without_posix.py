"""The core works where there is no fork, no POSIX signal, no /proc, no C library by name: as on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_run import QUIET

SCRIPT = Path(__file__).with_name("without_posix.py")


@pytest.mark.skipif(sys.platform == "win32", reason="there it is so already")
def test_the_core_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(words, env=QUIET, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["done"]), ended.stderr
    assert len((tmp_path / "lists.csv").read_text(encoding="utf-8").splitlines()) == 1 + 40 * 3
