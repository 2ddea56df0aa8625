"""The history of a run as TensorBoard's scalars."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.errors import MissingExtraError

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

FIGURES = ("loss", "lesson", "gradient", "weight", "validation")


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
