"""Progress bars on a terminal, for anything that takes more than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING

from concf.runtime.system import follows

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0  # seconds before a bar appears
MEMORY = 600.0  # seconds over which the remaining time is estimated: an epoch may take minutes
BAR = 12  # least width of the bar ...
OTHERS = 25  # ... and width of both times and the gaps, without the digits of the count
SHORTEST = 8  # least width of the description

_busy = threading.Lock()  # a terminal can hold one bar: inner tasks show none


def shows() -> bool:
    """Whether standard error is a terminal and this is the process that writes to it."""
    return not follows() and sys.stderr.isatty()


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs; the yielded function takes the number of steps and, optionally, a note.

    what: text beside the bar; total: number of steps; None: unknown
    """
    if not shows() or not _busy.acquire(blocking=False):
        yield lambda _steps, _note="": None
        return
    display = _new_display()
    room = max(display.console.width - BAR - OTHERS - 2 * len(str(total or "")), SHORTEST)
    task = display.add_task(shorten(what, room, placeholder="…"), total=total)

    def advance(steps: int, note: str = "") -> None:
        text = shorten(f"{what} {note}", room, placeholder="…") if note else None  # at a space: no number is cut
        display.update(task, advance=steps, description=text)

    timer = threading.Timer(PATIENCE, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        display.stop()
        _busy.release()


def _new_display() -> Progress:
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(None, table_column=Column(ratio=1, min_width=BAR)),  # the rest of the line
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, expand=True, speed_estimate_period=MEMORY,
    )  # fmt: skip
