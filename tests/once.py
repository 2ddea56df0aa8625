"""What takes long is made once for all workers of the suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once_for_all(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of that name, made by the first worker that asks for it, while the others wait."""
    base = factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "once" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            half = folder.with_suffix(".half")
            half.mkdir()
            make(half)
            half.rename(folder)
    return folder
