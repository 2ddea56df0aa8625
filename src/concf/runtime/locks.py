"""Lock files: one process at a time, named in the file; the system frees the lock however the process ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from concf.errors import ConfigError, note

LOCKED_BYTE = 1 << 30  # on Windows a locked byte cannot be read, so one beyond the contents is locked
TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or this process ends; False if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        if error.errno not in NO_LOCKS:
            raise
        note(f"{file.name}: this file system has no locks. Make sure that no other process writes there")
    return True


@contextmanager
def held(path: Path, work: str) -> Iterator[None]:
    """Hold a lock file while the block runs, then remove it; refuse and name the process that holds it already.

    work: what the holder does, for the message
    """
    file = _locked(path, work)
    try:
        file.seek(0)
        file.truncate()
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}) + "\n")
        file.flush()
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file ...
            path.unlink()
        file.close()
        if sys.platform == "win32":
            with suppress(OSError):  # ... and another process may have opened it meanwhile
                path.unlink()


def _locked(path: Path, work: str) -> IO[str]:
    while True:
        file = path.open("a+", encoding="utf-8")
        if not lock(file):
            with file:
                raise ConfigError(f"{path.parent}: {_holder(file)} {work}. Wait until it has ended, or stop it")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its last holder removed it after it was opened here


def _holder(file: IO[str]) -> str:
    """The process that holds the lock, in words."""
    try:
        file.seek(0)
        holder = json.loads(file.read())
        return f"since {holder['started']} process {holder['pid']} on {holder['host']!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
