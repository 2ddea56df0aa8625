"""Differences between operating systems; see PLATFORMS.md."""

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
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)  # makes a service reload its run
own_process = Event()  # set where concf is the program, not a library: on the command line and in workers


def refuse_on_windows(what: str, fix: str) -> None:
    """Raise on Windows, which can neither fork nor send signals."""
    if IS_WINDOWS:
        raise ConfigError(f"{what}: not available on Windows. {fix}")


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if IS_WINDOWS and path.is_dir():
        return  # a folder cannot be opened there
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)  # Windows flushes only what may be written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_utf8() -> None:
    """Write UTF-8 to pipes and files on Windows too: ids are of any language."""
    for stream in (sys.stdout, sys.stderr):
        if IS_WINDOWS and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
