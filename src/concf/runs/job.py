"""Where and how a run is trained: its folder, its processes, and its watchers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from concf.errors import ConfigError, option
from concf.runs.checkpoint import Resumable, RunFolder
from concf.runs.run import Run
from concf.runs.watchers import Watch
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.provenance import VERSION

CHECKPOINT_SECONDS = 30.0  # least seconds between two checkpoints of Algorithm 1


@dataclass(frozen=True)
class Job:
    """Circumstances of a training, which do not change its result.

    folder:   where the run is written; None: in memory
    resume:   continue the run in `folder`
    group:    processes that train together; the first of them writes
    watchers: called with the record of every epoch or stage
    """

    folder: RunFolder | None = None
    resume: bool = False
    group: ProcessGroup = ALONE
    watchers: tuple[Watch, ...] = ()

    @contextmanager
    def begun(self, run: Run, trainer: Resumable) -> Iterator[None]:
        """Begin or resume the run in its folder, held while it trains; all processes must begin alike."""
        folder, main = self.folder, self.group.is_main
        with folder.held() if folder is not None and main else nullcontext():
            if folder is not None and self.resume:
                folder.load(run, trainer)
            elif folder is not None and main:
                folder.begin(run)
            for watch in self.watchers:
                getattr(watch, "begin", lambda _: None)(run)
            self.group.refuse_difference({
                "version of concf": VERSION, "data set": run.data.hash, "settings": run.settings.model_dump_json(),
                "seed": str(run.seed), "kind of device": run.device.type, "checkpoint": str(run.epoch),
            })  # fmt: skip
            yield
            self.group.barrier()  # all processes see the last checkpoint

    def record(self, run: Run, record: dict[str, Any]) -> None:
        """Add the record of an epoch or stage to the history."""
        run.history.append(record)
        run.epoch += 1
        if self.folder is not None and self.group.is_main:
            self.folder.record(record)

    def save(self, run: Run, trainer: Resumable) -> None:
        """Write a checkpoint."""
        if self.folder is not None:
            self.folder.save(run, trainer)

    def tell(self, record: dict[str, Any]) -> None:
        """Call the watchers."""
        for watch in self.watchers:
            watch(record)


def as_watchers(watch: Watch | Sequence[Watch] | None) -> tuple[Watch, ...]:
    """Return one watcher, several or none as a tuple."""
    return () if watch is None else (watch,) if callable(watch) else tuple(watch)


def device_of(
    wanted: str | torch.device | None, before: str | None = None, group: ProcessGroup = ALONE
) -> torch.device:
    """Check the requested device; None: that of `before`, or a GPU. Each of several processes gets its own GPU."""
    name = str(wanted or before or ("cuda" if torch.cuda.is_available() else "cpu"))
    if not re.fullmatch("(cpu|cuda)(:[0-9]+)?", name):
        raise ConfigError(f"device {name!r}: choose cpu or cuda")
    device = torch.device(name)
    if device.type == "cuda" and group.several:
        device = torch.device("cuda", group.local_rank)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"PyTorch {torch.__version__} finds {torch.cuda.device_count()} GPUs"
        fix = f"Set {option('device', 'cpu')}, or install PyTorch for your GPU"
        raise ConfigError(f"device {str(device)!r}: {found}. {fix}")
    if device.type == "cuda" and group.several:
        torch.cuda.set_device(device)
    return device
