"""Tests that need something from outside: skipped with a remedy, and a run ends with all of them in one line."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

MAY_SKIP = "CONCF_TESTS_MAY_SKIP"  # set where CI has neither the public data sets nor a browser
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, limits, links or terminals")
POSIX_FILES = {  # what they need is needed by most of their tests, or to import them
    "test_documents.py": "pages for POSIX shells",
    "test_benchmarks.py": "test_documents.py",
    "test_layout.py": "terminals",
    "test_processes.py": "several processes",
    "test_service_process.py": "signals",
}


def absent(what: str, remedy: str) -> NoReturn:
    """Skip a test that needs something from outside, and say how to get it; with CI=true nothing may be skipped."""
    reason = f"needs {what} ({remedy})"
    if os.environ.get("CI") == "true" and not os.environ.get(MAY_SKIP):
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
    if not reason.startswith("needs "):
        return f"{tests} ({reason})"
    return f"{tests} that need{'' if number > 1 else 's'} {reason.removeprefix('needs ')}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run, after pytest's own; nothing where no test ran, as in a process of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not reporter.stats:
        return
    reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    reporter.write_line(skipped_line(reasons))
