"""What systems do differently: each difference is decided here, or in the one function that needs it.

Locks are in `locks.py`, memory in `training/memory.py`, the start of processes in `executors.py`; docs/platforms.md
says what a system lacks.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from threading import Event

from concf.errors import ConfigError

IS_WINDOWS = sys.platform == "win32"
LOCKS_MAPPED_FILES = IS_WINDOWS  # a file that is memory-mapped anywhere can be neither replaced nor removed
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)  # what makes a service load its run again
own_process = Event()  # set where concf is the program and not a guest: on the command line and in workers


def refuse_on_windows(what: str, fix: str) -> None:
    """Refuse what needs a system that can fork and send signals."""
    if IS_WINDOWS:
        raise ConfigError(f"{what}: not available on Windows. {fix}")


def sync(path: Path) -> None:
    """Make the system write a file or folder to the disk."""
    if IS_WINDOWS and path.is_dir():
        return  # a folder cannot be opened there
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_utf8() -> None:
    """Standard output and error in UTF-8 where they are a pipe or a file, also on Windows: ids are of any language."""
    for stream in (sys.stdout, sys.stderr):
        if IS_WINDOWS and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
