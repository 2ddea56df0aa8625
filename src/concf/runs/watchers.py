"""Watchers of a run: a note beside a progress bar, a line for each ranking or stage."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from concf.runs.run import Run
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.progress import shows
from concf.runtime.text_tables import settings_line, short

Watch = Callable[[dict[str, Any]], None]  # called with every record of a run; `begin`, if it has one, with the run


def note_of(record: dict[str, Any], metric: str) -> str:
    """Make the note of a progress bar: the consensus and the best head on validation; empty without validation."""
    shown = _shown(record)
    words = (f"{name} {value:.4f}".replace(" 0.", " .") for name, value in shown.items())
    return f"{short(metric)} {', '.join(words)}" if shown else ""


class Lines:
    """Print a line on standard error for every ranking or stage: settings chosen, validation, the seconds so far.

    Where a progress bar shows, nothing is printed.
    """

    def begin(self, run: Run) -> None:
        """Start the clock, before the first epoch or stage."""
        self.run, self.started, self.silent = run, time.monotonic(), shows()

    def __call__(self, record: dict[str, Any]) -> None:
        """Print the line of an epoch with a ranking, or of a stage."""
        stage = record.get("stage")
        if self.silent or (stage is None and "ranked" not in record):
            return
        chosen = [f"{voter}: {settings_line(each)}" for voter, each in record.get("chosen", {}).items()]
        metrics = _shown(record) if stage is None else record.get("validation", {})
        values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        validated = [f"validation {short(self.run.metric)} {values}"] if values else []
        words = "; ".join([*chosen, *validated, f"{time.monotonic() - self.started:.0f} s"])
        name = stage or f"epoch {record['epoch']} of at most {self.run.at_most}"
        print(f"{name}: {words}", file=sys.stderr, flush=True)


def _shown(record: dict[str, Any]) -> dict[str, float]:
    """Validation metrics of the consensus, if there is one, and of the best head."""
    metrics: dict[str, float] = record.get("validation", {})
    heads = [name for name in metrics if name not in (CONSENSUS, R_CONSENSUS)]
    best = [max(heads, key=metrics.__getitem__)] if heads else []
    return {name: metrics[name] for name in (CONSENSUS, *best) if name in metrics} if best else {}
