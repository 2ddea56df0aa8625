"""Files and folders that appear complete or not at all: written under another name, then renamed; lock files.

A safetensors file has its checksum inside, so that both are renamed together: the SHA-256 of the whole file with 64
zeros in place of the checksum, which is in the metadata of the header.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from concf.errors import ConfigError, DataError, option
from concf.runtime.system import LOCKS_MAPPED_FILES, sync

FIELD = "sha256"
BLANK = "0" * 64  # the value of the field until the file is sealed
KINDS = {"BOOL": "?", "U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}  # of tensors
PLACE = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')  # strings inside the header's strings have escaped quotes


@contextmanager
def new_folder(target: Path, *, marker: str, overwrite: bool = False) -> Iterator[Path]:
    """Fill the yielded folder; it replaces `target` if the block succeeds and is removed if not.

    marker: the file by which a folder of ours is recognised; only such a folder, or an empty one, is ever replaced.
    """
    target = target.absolute()
    with _written(target, "; make room and try again") as fresh:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            if not (target / marker).is_file():
                fix = f"it is left alone. Choose another {option('out')}"
                raise DataError(f"{target}: exists and is not a folder that concf made; {fix}")
            if not overwrite:
                fix = f"Choose another {option('out')}, or set {option('overwrite', True)}"
                raise DataError(f"{target}: exists already. {fix}")
        fresh.mkdir()
        yield fresh
        for path in [*fresh.iterdir(), fresh]:
            sync(path)
        old = target.with_name(f".{target.name}.replaced-{os.getpid()}")
        if target.exists():
            target.rename(old)
        try:
            fresh.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Write to the yielded path; it is renamed to `target` if the block succeeds and is removed if not."""
    with _written(target) as fresh:
        yield fresh
        sync(fresh)
        fresh.replace(target)


@contextmanager
def _written(target: Path, fix: str = "") -> Iterator[Path]:
    """Yield a path beside the target, removed at the end; an OSError becomes a DataError. fix: advice in the message"""
    fresh = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clean_up(target)
        try:
            yield fresh
        finally:
            _remove(fresh)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{target}: could not be written ({reason}). Nothing was left behind{fix}") from error


@contextmanager
def held(path: Path, work: str) -> Iterator[None]:
    """Hold a lock file while the block runs, then remove it; the system frees it however the process ends.

    A second process is refused, with the name of the first. work: what the holder does, for the message
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = "another process"
        with suppress(OSError):  # Windows does not let others read a locked file
            holder = path.read_text(encoding="utf-8") or holder
        raise ConfigError(f"{path.parent}: {holder} {work}. Wait until it has ended, or stop it") from None
    try:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):
            path.write_text(f"since {started} process {os.getpid()} on {socket.gethostname()!r}", encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows removes it when it is released
            path.unlink()
        lock.release()


def is_partial(path: Path, target: Path) -> bool:
    """Whether a path is a leftover of a killed process that was writing the target."""
    return path.name.startswith(f".{target.name}.partial-")


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(path: Path) -> None:
    """Write a file's checksum into its metadata, which must have a blank one."""
    field, digest = _field_and_digest(path)
    if field is None:
        raise ValueError(f"{path}: has no field for a checksum")
    with path.open("r+b") as file:
        file.seek(field.start(1))
        file.write(digest.encode())


def refuse_changed(path: Path) -> None:
    """Refuse a file that was changed since it was sealed, or that has no checksum."""
    field, digest = _field_and_digest(path)
    if field is None or digest != field[1].decode():
        sealed = "its checksum is gone" if field is None else f"and was {field[1][:16].decode()} when it was written"
        problem = f"cut short or damaged: its SHA-256 is {digest[:16]}, {sealed}"
        raise DataError(f"{path}: {problem}. Restore a copy, or remove it to start the run again")


def refuse_no_file(path: Path, fix: str = "") -> None:
    """Refuse a path that is not a file. fix: advice for a folder"""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a file.{fix}")
    if not path.is_file():
        raise DataError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")


def mapped(path: Path) -> NDArray[Any]:
    """Map the array of a `.npy` file, read-only."""
    return np.asarray(np.load(path, mmap_mode="r"))


def mapped_tensors(path: Path) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return the metadata of a safetensors file, and its tensors as mapped arrays, whose changes are not written."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    whole = np.fromfile(path, np.uint8) if LOCKS_MAPPED_FILES else np.memmap(path, mode="c")
    data, metadata = np.asarray(whole)[8 + size :], header.pop("__metadata__")
    arrays = {name: data[slice(*each["data_offsets"])].view(KINDS[each["dtype"]]) for name, each in header.items()}
    return metadata, {name: array.reshape(header[name]["shape"]) for name, array in arrays.items()}


def _clean_up(target: Path) -> None:
    """Clean up after a killed process: move a replaced folder back, remove other leftovers."""
    for stale in sorted(target.parent.glob(f".{target.name}.*-*"), reverse=True):  # `replaced` before `partial`
        state, _, pid = stale.name.removeprefix(f".{target.name}.").partition("-")
        if state not in ("partial", "replaced") or not pid.isdigit():
            continue
        if int(pid) != os.getpid() and psutil.pid_exists(int(pid)):
            continue
        if state == "replaced" and not target.exists():
            stale.rename(target)
        else:
            _remove(stale)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _field_and_digest(path: Path) -> tuple[re.Match[bytes] | None, str]:
    """Return the checksum in the header (None without one), and the checksum of the file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(0)
        header = file.read(8 + min(size, path.stat().st_size))
        field = PLACE.search(header)
        blank = header if field is None else header[: field.start(1)] + BLANK.encode() + header[field.end(1) :]
        digest = hashlib.sha256(blank)
        return field, hashlib.file_digest(file, lambda: digest).hexdigest()
