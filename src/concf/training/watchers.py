"""Who watches a run epoch by epoch: a note beside a progress bar, a line a ranking, TensorBoard's scalars."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.errors import MissingExtraError
from concf.runtime.text_tables import short

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

FIGURES = ("loss", "consensus_loss", "gradient", "weight", "validation")


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


class Scalars:
    """Called with every epoch's record; `loss/bpr`, `validation/consensus`, `seconds/epoch` and so on.

    A run that goes on from a checkpoint takes back what was written of the epochs after it.
    """

    def __init__(self, folder: str | Path) -> None:
        if not find_spec("tensorboard"):
            raise MissingExtraError("tensorboard", "tensorboard", "--tensorboard")
        self.folder = str(folder)
        self.writer: SummaryWriter | None = None

    def __call__(self, record: dict[str, Any]) -> None:
        """Write one epoch."""
        if self.writer is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(self.folder, purge_step=record["epoch"])
        figures = {f"{kind}/{name}": value for kind in FIGURES for name, value in record.get(kind, {}).items()}
        figures["seconds/epoch"] = record["seconds"]
        if "ranking_seconds" in record:
            figures["seconds/ranking"] = record["ranking_seconds"]
        for name, value in figures.items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def close(self) -> None:
        """End the file."""
        if self.writer is not None:
            self.writer.close()
