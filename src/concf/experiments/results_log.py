"""Measured cells as JSON lines: what stands there is not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from concf.errors import DataError
from concf.runtime.provenance import provenance


class ResultsLog:
    """A file of cells, each with the `key` that says what was measured; a line cut short by a kill is passed over.

    option: the option of the command line that names the file, for what is said when it cannot be used
    """

    def __init__(self, path: Path | None, option: str = "--log") -> None:
        self.path = path
        self.cells: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._read(path, option)

    def _read(self, path: Path, option: str) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: not a log of measurements ({type(error).__name__}). Choose another {option}"
            ) from None
        for line in lines:
            try:
                cell = json.loads(line)
                self.cells[self._name(cell["key"])] = cell
            except (ValueError, KeyError, TypeError):
                continue
        if lines and not self.cells:
            raise DataError(
                f"{path}: holds something else than measurements; it is left alone. Choose another {option}"
            )

    @staticmethod
    def _name(key: dict[str, Any]) -> str:
        return json.dumps(key, sort_keys=True)

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The cell of that key, if it was measured."""
        return self.cells.get(self._name(key))

    def add(self, key: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
        """Take down a cell, with where it comes from unless it says so itself."""
        cell = {"key": key, **cell}
        self.cells[self._name(key)] = cell
        if self.path is not None:
            line = json.dumps({"provenance": provenance()} | cell, separators=(",", ":"))
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a+b") as out:  # one write a line, after the end of any line cut short
                    if out.tell():
                        out.seek(-1, 2)
                        line = line if out.read(1) == b"\n" else "\n" + line
                    out.write(line.encode() + b"\n")
            except OSError as error:
                raise DataError(f"{self.path}: could not be written ({error.strerror})") from error
        return cell
