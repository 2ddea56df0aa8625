"""One process at a time: a locked file that names its holder, and that the system frees however the holder ends."""

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

FAR = 1 << 30  # the byte that is locked on Windows, where what is locked cannot be read
TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or this process ends; False if another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file.fileno(), FAR, os.SEEK_SET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        if error.errno not in NO_LOCKS:
            raise
        note(f"{file.name}: this file system has no locks. See to it that no other process writes there")
    return True


@contextmanager
def held(path: Path, work: str) -> Iterator[None]:
    """Hold a file while the block runs, and remove it at its end; if another process has it, refuse and name that one.

    work: what the holder does, for the message
    """
    file = _taken(path, work)
    try:
        file.seek(0)
        file.truncate()
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started}) + "\n")
        file.flush()
        yield
    finally:
        with suppress(OSError):  # Windows removes no file that is open ...
            path.unlink()
        file.close()
        if sys.platform == "win32":
            with suppress(OSError):  # ... and another process may have opened it by now
                path.unlink()


def _taken(path: Path, work: str) -> IO[str]:
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
    """The process that has it, in words."""
    try:
        file.seek(0)
        said = json.loads(file.read())
        return f"since {said['started']} process {said['pid']} on {said['host']!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
