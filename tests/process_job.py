"""Several processes that a test starts, watches and kills."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small_run import QUIET

from concf.runs.checkpoint import HISTORY

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
IMPATIENT = Path(__file__).with_name("impatient.py")
WAIT = 300  # seconds after which a test gives up

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Job:
    """`concf train` in two processes, restarted by torchrun; what it says is in `said`."""

    def __init__(self, out: Path, restarts: int, *words: object) -> None:
        self.out, self.said = out, out.with_suffix(".said")
        command = [*TORCHRUN[:-1], "--nproc-per-node=2", f"--max-restarts={restarts}", IMPATIENT, "train"]
        command += [*words, "--out", out, "--device", "cpu"]
        with self.said.open("a") as log:
            self.process = subprocess.Popen(list(map(str, command)), env=QUIET, stdout=log, stderr=log)

    def until_epoch(self, epochs: int) -> None:
        until(lambda: (self.out / HISTORY).exists() and len((self.out / HISTORY).read_text().splitlines()) >= epochs)

    def pid(self, rank: int) -> int:
        """Of one of the processes that train."""
        pid = self.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
                return int(child)
        raise AssertionError(self.said.read_text())

    def end(self) -> int:
        return self.process.wait(WAIT)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)
