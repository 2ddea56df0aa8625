"""The same command in several processes on this machine, by torchrun's own agent."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from signal import Signals

from concf.errors import PeerError


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
        raise KeyboardInterrupt from error


def follows() -> bool:
    """Whether torchrun started this process beside another that speaks for both."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def _end(code: int) -> str:
    return f"was killed ({Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
