"""Small jobs for workers of Ray, which import this by name: without torch, so that they start fast."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concf.errors import DataError

BAD, DEADLY = -1, -2


@dataclass
class Counting:
    """Gives the number of jobs that this worker has done so far."""

    folder: Path
    done: int = 0

    def __call__(self, job: int) -> int:
        if job == BAD:
            raise DataError("a bad job")
        if job == DEADLY:
            with (self.folder / "deaths").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1
        return self.done


@dataclass
class Doomed:
    """A function. A worker of the machine of that name says that it is at a job, and ends with it; others wait."""

    victim: Path
    machine: str
    function: Callable[[Any], Any]

    def __call__(self, job: Any) -> Any:
        if os.environ.get("MACHINE") == self.machine:
            sleep(self.victim)
        limit = time.monotonic() + 50
        while not self.victim.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        return self.function(job)


def sleep(started: Path) -> None:
    """Write a file, then take up a worker until it is killed."""
    started.touch()
    time.sleep(60)
    raise AssertionError("nobody ended it")
