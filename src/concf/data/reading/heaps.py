"""Pairs of a log that may be larger than memory: heaped up on disk by user, then merged heap by heap."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile, gettempdir
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.errors import DataError

HEAP_ROWS = 1 << 22  # rows that are sorted at once
MAX_HEAPS = 1024
HELD_BYTES = 1 << 28  # of rows that wait in memory before they go to the disk together

Records = NDArray[np.void]


class Heaps:
    """Rows (cell, and where there are such count and timestamp) by the heap of their user.

    A cell is user * n_items + item; heap h holds the users from one border to the next, so that the sorted heaps,
    one behind the other, are the sorted log. The file has no name: it is gone with the process, however that ends.
    """

    def __init__(self, rows_of_user: NDArray[np.int64], n_items: int, kind: np.dtype[np.void]) -> None:
        self.kind = kind
        self.borders = _borders(rows_of_user) * n_items  # [heaps - 1] the first cell of each heap but the first
        self.held: list[list[Records]] = [[] for _ in range(len(self.borders) + 1)]
        self.held_bytes = 0
        self.places: list[list[tuple[int, int]]] = [[] for _ in self.held]  # (where, how many) bytes of the file
        self.file: Any = None

    def __enter__(self) -> Heaps:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.file is not None:
            self.file.close()

    def add(self, columns: dict[str, NDArray[Any]]) -> None:
        """Put rows on their heaps. columns: cell [b], ..."""
        rows = np.empty(len(columns["cell"]), self.kind)
        for name, column in columns.items():
            rows[name] = column
        if len(self.held) > 1:
            heap = np.searchsorted(self.borders, rows["cell"], side="right").astype(np.uint16)
            rows = rows[np.argsort(heap, kind="stable")]
            ends = np.cumsum(np.bincount(heap, minlength=len(self.held)))
            parts = np.split(rows, ends[:-1])
        else:
            parts = [rows]
        for held, part in zip(self.held, parts, strict=True):
            held.append(part)
        self.held_bytes += rows.nbytes
        if len(self.held) > 1 and self.held_bytes > HELD_BYTES:
            self._write_held()

    def merged(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Heap by heap the distinct cells, ascending, with the sum of their counts and their first time."""
        for heap, held in enumerate(self.held):
            rows = np.concatenate([*self._written(heap), *held])
            held.clear()
            if len(rows):
                yield _merge(rows)

    def _write_held(self) -> None:
        try:
            if self.file is None:
                self.file = TemporaryFile(prefix="concf-")  # noqa: SIM115
            for held, places in zip(self.held, self.places, strict=True):
                rows = np.concatenate(held)
                places.append((self.file.tell(), rows.nbytes))
                self.file.write(rows.view(np.uint8))
                held.clear()
            self.file.flush()
        except OSError as error:
            raise DataError(
                f"{gettempdir()}: no room for the rows of a log larger than memory ({error.strerror or error}). "
                "Make room, or name a folder that has it with TMPDIR"
            ) from error
        self.held_bytes = 0

    def _written(self, heap: int) -> Iterator[Records]:
        for begin, n_bytes in self.places[heap]:
            self.file.seek(begin)
            yield np.frombuffer(self.file.read(n_bytes), self.kind)


def _borders(rows_of_user: NDArray[np.int64]) -> NDArray[np.int64]:
    """[heaps - 1] the users at which a new heap begins, so that heaps have about `HEAP_ROWS` rows."""
    before = np.cumsum(rows_of_user) - rows_of_user
    size = max(HEAP_ROWS, -(-int(rows_of_user.sum()) // MAX_HEAPS))
    return np.flatnonzero(np.diff(before // size)) + 1


def _merge(rows: Records) -> dict[str, NDArray[Any]]:
    """Rows of one cell as one: counts are added in ascending order, so that the order of rows does not matter."""
    names = rows.dtype.names or ()
    cell = rows["cell"]
    order = np.lexsort((rows["count"], cell)) if "count" in names else np.argsort(cell)
    cell = cell[order]
    begins = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
    merged = {"cell": cell[begins]}
    if "count" in names:
        merged["count"] = np.add.reduceat(rows["count"][order], begins)
    else:
        merged["count"] = np.diff(begins, append=len(cell)).astype(np.float64)
    if "timestamp" in names:
        merged["timestamp"] = np.minimum.reduceat(rows["timestamp"][order], begins)
    return merged
