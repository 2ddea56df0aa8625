"""Provenance of a measurement: versions, machine, commit."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

VERSION = "0.3.0"  # of the package
LIBRARIES = ("torch", "numpy", "scipy", "polars", "implicit")
DIGITS = 12  # of a commit


def provenance() -> dict[str, Any]:
    """Return the record that is saved with every measurement."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    try:
        model = re.search(r"^model name\s*: *(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        processor = model[1].strip() if model else platform.machine()
    except OSError:
        processor = platform.processor()
    return {
        "concf": VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": versions,
        "machine": {"system": platform.platform(), "processor": processor, "cores": os.cpu_count()},
    }


def _commit() -> str | None:
    """Commit of the checkout, with a + if the package was changed; without git CONCF_COMMIT, else None."""
    if os.environ.get("CONCF_COMMIT"):
        return os.environ["CONCF_COMMIT"]
    package = Path(__file__).resolve().parents[1]
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top, "src", "concf").resolve() != package:
        return None  # installed, perhaps inside a checkout of something else
    commit = _git(package, "rev-parse", f"--short={DIGITS}", "HEAD")
    return commit and commit + ("+" if _git(package, "status", "--porcelain", "--", str(package)) else "")


def _git(folder: Path, *words: str) -> str | None:
    import subprocess

    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
