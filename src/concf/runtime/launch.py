"""The same command in several processes on this machine, by torchrun's own agent."""

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


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM raises `Stopped`, so that it ends the block as Ctrl-C does."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    if current_thread() is not main_thread():  # no other may say what signals do
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(words: Sequence[str], processes: int, restarts: int = 0) -> None:
    """Start `concf words` in so many processes and wait until all have ended; one that fails ends them all.

    restarts: how often they are all started again after a failure
    """
    import torch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what it says is said below
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // processes)))
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}", "-m", "concf"]
    try:
        run(parse_args([*options, *words]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
        first = {rank: code for rank, code in codes.items() if code != -Signals.SIGTERM} or codes  # others were ended
        ends = ", ".join(f"process {rank} {_end(code)}" for rank, code in first.items())
        raise PeerError(f"{ends}. Where there is a checkpoint, go on from it with --resume") from None
    except SignalException as error:
        raise Stopped(error.sigval) from error


def follows() -> bool:
    """Whether torchrun started this process beside another that speaks for both."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def _end(code: int) -> str:
    return f"was killed ({Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
