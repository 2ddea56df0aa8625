"""Progress bars: for anything over two seconds, on a terminal, and nowhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from concf.runtime.launch import follows
from concf.runtime.text_tables import shortened

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0  # seconds before a bar appears
MEMORY = 600.0  # seconds of the past by which the time that is left is estimated: an epoch may take minutes
BAR = 12  # columns that the bar keeps, however long the words are ...
OTHERS = 25  # ... and those of both times and of what stands between, without the digits of the count
SHORTEST = 8  # what is left of the words, even where there is no room

_lock = threading.RLock()
_display: Progress | None = None  # the one display a terminal can hold; inner tasks join the outer one's
_tasks = 0


def shows() -> bool:
    """Whether somebody watches: standard error is a terminal, and this process is the one that speaks."""
    return not follows() and sys.stderr.isatty()


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show `what` while the block runs; the yielded function advances the bar, with a note if there is news.

    total None: length unknown.
    """
    if not shows():
        yield lambda _steps, _note="": None
        return
    task = _Task(what, total)
    timer = threading.Timer(PATIENCE, task.show)
    timer.daemon = True
    timer.start()
    try:
        yield task.advance
    finally:
        timer.cancel()
        task.hide()


def words(what: str, note: str, room: int) -> str:
    """What and note in so many columns: of a note `a, b` the last parts give way first, then of `what` the middle."""
    parts = note.split(", ") if note else []
    while parts and len(f"{what}  {', '.join(parts)}") > room:
        parts.pop()
    return f"{what}  {', '.join(parts)}" if parts else shortened([what], max(room, SHORTEST))[0]


def _new_display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(None, table_column=Column(ratio=1, min_width=BAR)),  # what the words leave of the line
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, expand=True, speed_estimate_period=MEMORY)


class _Task:
    """One bar, shown once it has run for a while."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.note = ""
        self.id: int | None = None
        self.over = False

    def show(self) -> None:
        global _display, _tasks
        with _lock:
            if self.over:
                return
            if _display is None:
                _display = _new_display()
                _display.start()
            _tasks += 1
            self.id = int(_display.add_task(self.said(), total=self.total, completed=self.done))

    def advance(self, steps: int, note: str = "") -> None:
        with _lock:
            self.done += steps
            self.note = note or self.note
            if self.id is not None and _display is not None:
                _display.update(self.id, completed=self.done, description=self.said())  # type: ignore[arg-type]

    def said(self) -> str:
        """What stands before the bar."""
        width = _display.console.width if _display is not None else 80
        return words(self.what, self.note, width - BAR - OTHERS - 2 * len(str(self.total or "")))

    def hide(self) -> None:
        global _display, _tasks
        with _lock:
            self.over = True
            if self.id is None or _display is None:
                return
            _display.remove_task(self.id)  # type: ignore[arg-type]
            _tasks -= 1
            if _tasks == 0:
                _display.stop()
                _display = None
