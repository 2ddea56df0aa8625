"""Small jobs for workers of Ray, which import this by name: without torch, so that they start fast."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from concf.errors import DataError


@dataclass
class Sums:
    """Adds a job to what was added before in this worker; some jobs are bad."""

    folder: Path
    total: int = 0

    def __call__(self, job: int) -> int:
        if job == -1:
            raise DataError("a bad job")
        if job == -2:
            with (self.folder / "deaths").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        self.total += job
        return self.total
