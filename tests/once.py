"""What takes long is made once for all workers of the suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once_for_all(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, made by the first worker that asks for it, while the others wait."""
    base = factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "once" / name
    folder.parent.mkdir(exist_ok=True)
    made = folder.with_suffix(".made")
    with FileLock(folder.with_suffix(".lock")):
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what an attempt that failed has left
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
