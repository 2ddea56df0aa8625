"""Where a figure comes from: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

VERSION = "0.1.0"  # of the package, in the one place that everything reads it from
LIBRARIES = ("torch", "numpy", "scipy", "polars", "implicit")
DIGITS = 12  # of a commit
NOT_RECORDED = "commit not recorded"
CHANGED = "A + at a commit: measured with uncommitted changes. The code may have changed since a commit."


def provenance() -> dict[str, Any]:
    """What every measured line carries."""
    return {
        "concf": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
    }


def commit_of(line: Mapping[str, Any]) -> str:
    """The commit that a measured line carries, with a + if the code had uncommitted changes."""
    commit = str((line.get("provenance") or {}).get("commit") or "")
    return commit.rstrip("+")[:DIGITS] + "+" * commit.endswith("+") or NOT_RECORDED


def commits_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """Which commits measured lines are of, and how many lines each: "`54d8bab5f2ac` (3), commit not recorded (1)"."""
    counts = Counter(map(commit_of, lines))
    return ", ".join(
        f"{commit if commit == NOT_RECORDED else f'`{commit}`'} ({count:,})" for commit, count in counts.items()
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, with a + if the package was changed.

    CONCF_COMMIT says it where there is no git (a container, a copied tree); None when nothing does.
    """
    if os.environ.get("CONCF_COMMIT"):
        return os.environ["CONCF_COMMIT"]
    here = str(Path(__file__).parent)
    top = _git(here, "rev-parse", "--show-toplevel")
    if top is None or Path(top, "src", "concf").resolve() != Path(here).resolve():
        return None  # installed, perhaps inside a checkout of something else
    commit = _git(here, "rev-parse", f"--short={DIGITS}", "HEAD")
    return commit and commit + ("+" if _git(here, "status", "--porcelain", "--", here) else "")


def _git(folder: str, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
