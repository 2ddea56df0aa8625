"""How good a run is so far, in words: beside a progress bar, or a line a ranking where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

from concf.learning.settings import CONSENSUS, R_CONSENSUS
from concf.tables import short


def note_of(record: dict[str, Any], metric: str) -> str:
    """For a progress bar: the consensus and the best head on validation; nothing for an epoch without a ranking."""
    shown = _shown(record)
    words = (f"{name} {value:.4f}".replace(" 0.", " .") for name, value in shown.items())
    return f"{short(metric)} {', '.join(words)}" if shown else ""


class Teller:
    """A line of standard error for every ranking: the epoch, the consensus and the best head, the seconds so far."""

    def __init__(self, metric: str, epochs: int) -> None:
        self.metric, self.epochs, self.begin = metric, epochs, time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        """Of an epoch's record."""
        figures = ", ".join(f"{name} {value:.4f}" for name, value in _shown(record).items())
        if figures:
            seconds = time.monotonic() - self.begin
            print(
                f"epoch {record['epoch']} of at most {self.epochs}: validation {short(self.metric)} {figures}; "
                f"{seconds:.0f} s", file=sys.stderr, flush=True,
            )  # fmt: skip


def _shown(record: dict[str, Any]) -> dict[str, float]:
    """The consensus, where there is one, and the best head."""
    figures: dict[str, float] = record.get("validation", {})
    heads = [name for name in figures if name not in (CONSENSUS, R_CONSENSUS)]
    best = [max(heads, key=figures.__getitem__)] if heads else []
    return {name: figures[name] for name in (CONSENSUS, *best) if name in figures} if best else {}
