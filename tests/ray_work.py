"""Jobs for workers of Ray, which import this module by name: one that fails, and one that is killed in its middle."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from concf.errors import DataError
from concf.inference.bulk import Job, Lists

BAD = -1
FATAL = 14  # the first user of the part in whose middle a worker is killed


@dataclass
class Counting:
    """Gives the number of jobs that this worker has done so far."""

    done: int = 0

    def __call__(self, job: int) -> int:
        if job == BAD:
            raise DataError("a bad job")
        self.done += 1
        return self.done


class Interrupted(Lists):
    """In the middle of one part the first worker leaves half a file, says who it is, and waits to be killed."""

    def __call__(self, job: Job) -> int:
        part, _ = job
        victim = self.out.parent / "victim"
        if part.begin == FATAL and not victim.exists():
            (self.out / f".{part.name}.partial-{os.getpid()}").write_bytes(b"PAR1 half a fi")
            (self.out / f".{part.name}.partial-1").write_bytes(b"of a process on another machine")
            (self.out.parent / "victim.new").write_text(str(os.getpid()))
            (self.out.parent / "victim.new").rename(victim)
            time.sleep(60)
            raise AssertionError("nobody killed it")
        return super().__call__(job)
