"""Writing so that nothing is ever half-written: beside, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concf.errors import DataError


@contextmanager
def new_folder(target: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """Fill the yielded folder; it takes the place of `target` when the block ends well, else it is gone.

    marker: the file by which a folder of ours is known; only such a folder, or an empty one, is ever replaced.
    """
    _refuse_occupied(target, marker, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        fresh = target.with_name(f".{target.name}.partial-{os.getpid()}")
        fresh.mkdir()
        try:
            yield fresh
            _sync(fresh)
            _replace(target, fresh)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"{target}: could not be written ({reason}). Nothing was left behind; make room and try again"
        ) from error


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Write to the yielded path; it is renamed to `target` when the block ends well, else it is gone."""
    fresh = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield fresh
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{target}: could not be written ({reason}). Nothing was left behind") from error


def _refuse_occupied(target: Path, marker: str, overwrite: bool) -> None:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir() or not (target / marker).is_file():
        raise DataError(f"{target}: exists and is not a folder that concf made; it is left alone. Choose another --out")
    if not overwrite:
        raise DataError(f"{target}: exists already. Choose another --out, or say --overwrite")


def _sweep(target: Path) -> None:
    """Remove what a killed process left beside the target."""
    for stale in target.parent.glob(f".{target.name}.partial-*"):
        pid = stale.name.rpartition("-")[2]
        if pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            shutil.rmtree(stale, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(target: Path, fresh: Path) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    old = target.with_name(f"{fresh.name}-old")
    target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
