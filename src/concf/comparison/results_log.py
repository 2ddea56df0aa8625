"""Results log: measured cells as JSON lines, so that nothing is measured twice."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from concf.errors import DataError
from concf.runtime.provenance import provenance


class ResultsLog:
    """File of cells, each with the `key` of its measurement; a line cut short by a kill is skipped.

    path: None keeps the cells in memory only
    option: the command-line option that names the file, for error messages
    """

    def __init__(self, path: Path | None, option: str = "--log") -> None:
        self.path = path
        self.cells: dict[str, dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        with suppress(OSError, UnicodeDecodeError):
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):
                    cell = json.loads(line)
                    self.cells[json.dumps(cell["key"], sort_keys=True)] = cell
        if not self.cells and (path.is_dir() or path.stat().st_size):
            raise DataError(f"{path}: not a log of measurements; it is left alone. Choose another {option}")

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """Cell of that key; None if it was not measured."""
        return self.cells.get(json.dumps(key, sort_keys=True))

    def add(self, key: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
        """Write a cell, with its provenance unless it has its own."""
        cell = {"key": key, **cell}
        self.cells[json.dumps(key, sort_keys=True)] = cell
        if self.path is not None:
            line = json.dumps({"provenance": provenance()} | cell, separators=(",", ":"))
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a+b") as out:  # one write for a line, after the end of any line cut short
                    if out.tell():
                        out.seek(-1, 2)
                        line = line if out.read(1) == b"\n" else "\n" + line
                    out.write(line.encode() + b"\n")
            except OSError as error:
                raise DataError(f"{self.path}: could not be written ({error.strerror})") from error
        return cell
