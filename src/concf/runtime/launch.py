"""Start the same command in several processes on this machine with torchrun."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from signal import Signals
from threading import current_thread, main_thread
from types import FrameType

from concf.errors import PeerError
from concf.runtime.system import refuse_on_windows


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
