"""Lock files: one process at a time, named in the file; the system frees the lock however the process ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from concf.errors import ConfigError


@contextmanager
def held(path: Path, work: str) -> Iterator[None]:
    """Hold a lock file while the block runs, then remove it; refuse and name the process that holds it already.

    work: what the holder does, for the message
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
