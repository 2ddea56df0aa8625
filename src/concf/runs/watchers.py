"""Watchers of a run: a note beside a progress bar, a line for each ranking or stage, TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.errors import MissingExtraError
from concf.runs.run import Run
from concf.runtime.progress import shows
from concf.runtime.text_tables import short

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

METRICS = ("loss", "consensus_loss", "gradient", "weight", "validation")
Watch = Callable[[dict[str, Any]], None]  # called with the record of every epoch or stage


@runtime_checkable
class Watcher(Protocol):
    """A `Watch` that is also called at the beginning and the end: TensorBoard, or a class of yours."""

    def begin(self, run: Run, folder: Path | None) -> None:
        """Before the first epoch or stage, or before the next of a run that goes on: `run.history` has the others."""

    def __call__(self, record: dict[str, Any]) -> None:
        """After an epoch or stage; its record is the last of `run.history`."""

    def end(self) -> None:
        """After the last of them, or after a failure or Ctrl-C: then `run.finished` is False."""


@contextmanager
def watched(run: Run, folder: Path | None, watchers: Sequence[Watch]) -> Iterator[None]:
    """Call `begin` of the watchers and, however the run ends, `end`."""
    with ExitStack() as ends:
        for each in watchers:
            if isinstance(each, Watcher):
                each.begin(run, folder)
                ends.callback(each.end)
        yield


def metrics_of(record: dict[str, Any]) -> dict[str, float]:
    """`loss/bpr`, `validation/consensus`, `seconds/epoch` and so on."""
    metrics = {f"{kind}/{name}": value for kind in METRICS for name, value in record.get(kind, {}).items()}
    metrics["seconds/stage" if "stage" in record else "seconds/epoch"] = record["seconds"]
    return metrics | ({"seconds/ranking": record["ranking_seconds"]} if "ranking_seconds" in record else {})


def note_of(record: dict[str, Any], metric: str) -> str:
    """For a progress bar: the consensus and the best head on validation; nothing for an epoch without validation."""
    shown = _shown(record)
    words = (f"{name} {value:.4f}".replace(" 0.", " .") for name, value in shown.items())
    return f"{short(metric)} {', '.join(words)}" if shown else ""


class Lines:
    """Print a line on standard error for every ranking or stage: settings chosen, validation, the seconds so far.

    Where a progress bar shows, nothing is printed.
    """

    def begin(self, run: Run, folder: Path | None) -> None:  # noqa: ARG002
        """Start the clock."""
        self.run, self.started, self.silent = run, time.monotonic(), shows()

    def __call__(self, record: dict[str, Any]) -> None:
        """Print the line of an epoch with a ranking, or of a stage."""
        stage = record.get("stage")
        if self.silent or (stage is None and "agreement" not in record):
            return
        chosen = [
            f"{voter}: {', '.join(f'{name} {value:g}' for name, value in settings.items())}"
            for voter, settings in record.get("chosen", {}).items()
        ]
        metrics = _shown(record) if stage is None else record.get("validation", {})
        values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        validated = [f"validation {short(self.run.metric)} {values}"] if values else []
        words = "; ".join([*chosen, *validated, f"{time.monotonic() - self.started:.0f} s"])
        name = stage or f"epoch {record['epoch']} of at most {self.run.at_most}"
        print(f"{name}: {words}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Do nothing: there is nothing to close."""


def _shown(record: dict[str, Any]) -> dict[str, float]:
    """The consensus, where there is one, and the best head."""
    metrics: dict[str, float] = record.get("validation", {})
    heads = [name for name in metrics if name not in (CONSENSUS, R_CONSENSUS)]
    best = [max(heads, key=metrics.__getitem__)] if heads else []
    return {name: metrics[name] for name in (CONSENSUS, *best) if name in metrics} if best else {}


class TensorBoard:
    """Write the metrics of every epoch or stage for TensorBoard.

    A run that resumes from a checkpoint purges what was written for later epochs.
    """

    def __init__(self, folder: str | Path) -> None:
        if not find_spec("tensorboard"):
            raise MissingExtraError("tensorboard", "tensorboard", "TensorBoard")
        self.folder = str(folder)
        self.writer: SummaryWriter | None = None

    def begin(self, run: Run, folder: Path | None) -> None:  # noqa: ARG002
        """Open a file, unless nothing will be written."""
        if not run.finished:
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(self.folder, purge_step=run.epoch)

    def __call__(self, record: dict[str, Any]) -> None:
        """Write one epoch or stage."""
        assert self.writer is not None
        for name, value in metrics_of(record).items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def end(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
