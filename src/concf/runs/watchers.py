"""Who watches a run: a note beside a progress bar, a line a ranking or stage, TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.errors import MissingExtraError
from concf.runs.run import Run
from concf.runs.settings import ConCFSettings
from concf.runtime.text_tables import short

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

FIGURES = ("loss", "consensus_loss", "gradient", "weight", "validation")
Watch = Callable[[dict[str, Any]], None]  # called with the record of every epoch or stage


@runtime_checkable
class Watcher(Protocol):
    """A `Watch` that is also told of the beginning and the end: TensorBoard, MLflow, or a class of yours."""

    def begin(self, run: Run, folder: Path | None) -> None:
        """Before the first epoch or stage, or before the next of a run that goes on: `run.history` has the others."""

    def __call__(self, record: dict[str, Any]) -> None:
        """After an epoch or stage; its record is the last of `run.history`."""

    def end(self) -> None:
        """After the last of them, or after a failure or Ctrl-C: then `run.finished` is False."""


@contextmanager
def watched(run: Run, folder: Path | None, watchers: Sequence[Watch]) -> Iterator[None]:
    """Tell watchers of the beginning and, however the run ends, of the end."""
    with ExitStack() as ends:
        for each in watchers:
            if isinstance(each, Watcher):
                each.begin(run, folder)
                ends.callback(each.end)
        yield


def time_of(settings: ConCFSettings) -> str:
    """The figure that every record has: the seconds of its epoch or stage."""
    return "seconds/epoch" if settings.recipe is None else "seconds/stage"


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """`loss/bpr`, `validation/consensus`, `seconds/epoch` and so on."""
    figures = {f"{kind}/{name}": value for kind in FIGURES for name, value in record.get(kind, {}).items()}
    figures["seconds/stage" if "stage" in record else "seconds/epoch"] = record["seconds"]
    return figures | ({"seconds/ranking": record["ranking_seconds"]} if "ranking_seconds" in record else {})


def note_of(record: dict[str, Any], metric: str) -> str:
    """For a progress bar: the consensus and the best head on validation; nothing for an epoch without validation."""
    shown = _shown(record)
    words = (f"{name} {value:.4f}".replace(" 0.", " .") for name, value in shown.items())
    return f"{short(metric)} {', '.join(words)}" if shown else ""


class ProgressLines:
    """A line of standard error for every ranking: the epoch, the consensus and the best head, the seconds so far."""

    def __init__(self, metric: str, epochs: int) -> None:
        self.metric, self.epochs, self.begin = metric, epochs, time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        """Of an epoch's record."""
        figures = ", ".join(f"{name} {value:.4f}" for name, value in _shown(record).items())
        if figures and "agreement" in record:  # a ranking
            seconds = time.monotonic() - self.begin
            print(
                f"epoch {record['epoch']} of at most {self.epochs}: validation {short(self.metric)} {figures}; "
                f"{seconds:.0f} s", file=sys.stderr, flush=True,
            )  # fmt: skip


class StageLines:
    """A line of standard error for every stage: what was chosen, the validation figures, the seconds so far."""

    def __init__(self, metric: str) -> None:
        self.metric, self.begin = metric, time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        """Of a stage's record."""
        chosen = [
            f"{voter}: {', '.join(f'{name} {value:g}' for name, value in settings.items())}"
            for voter, settings in record.get("chosen", {}).items()
        ]
        figures = [f"{name} {value:.4f}" for name, value in record.get("validation", {}).items()]
        validated = [f"validation {short(self.metric)} {', '.join(figures)}"] if figures else []
        words = "; ".join([*chosen, *validated, f"{time.monotonic() - self.begin:.0f} s"])
        print(f"{record['stage']}: {words}", file=sys.stderr, flush=True)


def _shown(record: dict[str, Any]) -> dict[str, float]:
    """The consensus, where there is one, and the best head."""
    figures: dict[str, float] = record.get("validation", {})
    heads = [name for name in figures if name not in (CONSENSUS, R_CONSENSUS)]
    best = [max(heads, key=figures.__getitem__)] if heads else []
    return {name: figures[name] for name in (CONSENSUS, *best) if name in figures} if best else {}


class TensorBoard:
    """Writes the figures of every epoch or stage for TensorBoard.

    A run that goes on from a checkpoint takes back what was written of the epochs after it.
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
        for name, value in figures_of(record).items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def end(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
