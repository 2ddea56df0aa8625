"""Measured cells as JSON lines: what the file holds is not measured again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from concf.errors import DataError
from concf.runtime.provenance import provenance


class ResultsLog:
    """A file of cells, each with the `key` that says what was measured; a line cut short by a kill is skipped.

    path: None keeps the cells in memory only
    option: the command-line option that names the file, for error messages
    """

    def __init__(self, path: Path | None, option: str = "--log") -> None:
        self.path = path
        self.cells: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._read(path, option)

    def _read(self, path: Path, option: str) -> None:
        lines = []
        with suppress(OSError, UnicodeDecodeError):
            lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                cell = json.loads(line)
                self.cells[self._name(cell["key"])] = cell
        if not self.cells and (path.is_dir() or path.stat().st_size):
            raise DataError(f"{path}: not a log of measurements; it is left alone. Choose another {option}")

    @staticmethod
    def _name(key: dict[str, Any]) -> str:
        return json.dumps(key, sort_keys=True)

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The cell of that key, if it was measured."""
        return self.cells.get(self._name(key))

    def add(self, key: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
        """Write a cell, with its provenance unless it has its own."""
        cell = {"key": key, **cell}
        self.cells[self._name(key)] = cell
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
