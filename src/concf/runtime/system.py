"""Operating systems: their differences (PLATFORMS.md), signals, and several processes by torchrun."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from threading import current_thread, main_thread
from types import FrameType

from concf.errors import ConfigError, PeerError

IS_WINDOWS = sys.platform == "win32"
LOCKS_MAPPED_FILES = IS_WINDOWS  # a file that is memory-mapped anywhere can be neither replaced nor removed
RELOAD: signal.Signals | None = getattr(signal, "SIGHUP", None)  # makes a service reload its run


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


class Stopped(KeyboardInterrupt):
    """A signal to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM raises `Stopped` inside the block, so that it ends like Ctrl-C."""

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


def launch(words: Sequence[str], processes: int) -> None:
    """Run `concf words` in several processes and wait until all have ended; if one fails, all are ended."""
    refuse_on_windows(f"--processes {processes}", "Train with one process")
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its failures are reported below
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // processes)))
    options = ["--standalone", f"--nproc-per-node={processes}", "-m", "concf"]
    try:
        run(parse_args([*options, *words]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
        first = {rank: code for rank, code in codes.items() if code != -Signals.SIGTERM} or codes  # not by torchrun
        ends = ", ".join(
            f"process {rank} " + (f"was killed ({Signals(-code).name})" if code < 0 else f"ended with exit code {code}")
            for rank, code in first.items()
        )
        raise PeerError(f"{ends}. If there is a checkpoint, continue from it with --resume") from None
    except SignalException as error:
        raise Stopped(error.sigval) from error


def follows() -> bool:
    """Whether torchrun started this process and another one (rank 0) writes the messages."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
