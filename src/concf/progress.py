"""Progress bars: for anything over two seconds, on a terminal, and nowhere else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from concf.launch import follows

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0  # seconds before a bar appears

_lock = threading.RLock()
_display: Progress | None = None  # the one display a terminal can hold; inner tasks join the outer one's
_tasks = 0


@contextmanager
def working(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show `what` while the block runs; the yielded function advances the bar, with a note if there is news.

    total None: length unknown.
    """
    if follows() or not sys.stderr.isatty():
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


class _Task:
    """One bar, shown once it has run for a while."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self.note = ""
        self.id: int | None = None
        self.over = False

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        global _display, _tasks
        with _lock:
            if self.over:
                return
            if _display is None:
                columns = (
                    TextColumn("{task.description}"),
                    BarColumn(None, table_column=Column(ratio=1)),  # what the words leave of the line
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                )
                _display = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
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
        return f"{self.what}  {self.note}" if self.note else self.what

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
