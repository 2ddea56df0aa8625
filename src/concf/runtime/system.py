"""Operating systems: their differences (PLATFORMS.md), and signals."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

IS_WINDOWS = sys.platform == "win32"
LOCKS_MAPPED_FILES = IS_WINDOWS  # a file that is memory-mapped anywhere can be neither replaced nor removed
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)  # makes a service reload its run


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


class Stopped(KeyboardInterrupt):
    """Raised by a signal to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM raise `Stopped` inside the block, so that it ends as by Ctrl-C."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    if current_thread() is not main_thread():  # only the main thread may set signal handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def follows() -> bool:
    """Whether torchrun started this process and another one (rank 0) writes the messages."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
