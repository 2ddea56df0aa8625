"""Merge the rows of a log that may be larger than memory: spill them to disk by user, then merge bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.errors import DataError

BUCKET_ROWS = 1 << 22  # rows that are sorted at once
MAX_BUCKETS = 1024
MEMORY_BYTES = 1 << 28  # of rows held in memory before they are spilled to disk together

Records = NDArray[np.void]


class PairBuckets:
    """Buckets of rows (cell[, count][, timestamp]) of consecutive users.

    A cell is user * n_items + item, so the sorted buckets, one after the other, are the sorted log. The temporary file
    has no name and disappears with the process, however that ends.
    """

    def __init__(self, rows_per_user: NDArray[np.int64], n_items: int, dtype: np.dtype[np.void]) -> None:
        self.dtype = dtype
        self.borders = _borders(rows_per_user) * n_items  # [buckets - 1] the first cell of each bucket but the first
        self.held: list[list[Records]] = [[] for _ in range(len(self.borders) + 1)]
        self.spilled: list[list[tuple[int, int]]] = [[] for _ in self.held]  # (offset, length) in bytes of the file
        self.held_bytes = 0
        self.file: Any = None

    def add(self, batch: pl.DataFrame) -> None:
        """Add rows [b] to their buckets. A cell is null if the first pass did not see the id."""
        if batch["cell"].null_count():
            raise DataError("the log was changed while it was read. Read it again when nothing writes to it")
        rows = np.empty(len(batch), self.dtype)
        for name in batch.columns:
            rows[name] = batch[name].to_numpy()
        bucket = np.searchsorted(self.borders, rows["cell"], side="right").astype(np.uint16)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.held)))
        by_bucket = rows[np.argsort(bucket, kind="stable")] if len(self.borders) else rows
        for held, part in zip(self.held, np.split(by_bucket, ends[:-1]), strict=True):
            held.append(part)
        self.held_bytes += rows.nbytes
        if len(self.borders) and self.held_bytes > MEMORY_BYTES:
            self._spill()

    def merged(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield, per bucket, the distinct cells in ascending order, the sum of their counts and their first times."""
        for held, ranges in zip(self.held, self.spilled, strict=True):
            rows = np.concatenate([np.empty(0, self.dtype), *map(self._read, ranges), *held])
            held.clear()
            if len(rows):
                yield _merge(rows)

    def _spill(self) -> None:
        try:
            self.file = self.file or TemporaryFile(prefix="concf-")  # noqa: SIM115
            for held, ranges in zip(self.held, self.spilled, strict=True):
                rows = np.concatenate(held)
                ranges.append((self.file.tell(), rows.nbytes))
                self.file.write(rows.view(np.uint8))
                held.clear()
            self.file.flush()
        except OSError as error:
            raise DataError(
                f"{gettempdir()}: no space for a log larger than memory ({error.strerror or error}). Free some, or set "
                "TMPDIR to another folder"
            ) from error
        self.held_bytes = 0

    def _read(self, offset_and_length: tuple[int, int]) -> Records:
        offset, length = offset_and_length
        self.file.seek(offset)
        return np.frombuffer(self.file.read(length), self.dtype)


def _borders(rows_per_user: NDArray[np.int64]) -> NDArray[np.int64]:
    """[buckets - 1] the users at which a new bucket begins, so that buckets have about `BUCKET_ROWS` rows."""
    before = np.cumsum(rows_per_user) - rows_per_user
    size = max(BUCKET_ROWS, -(-int(rows_per_user.sum()) // MAX_BUCKETS))
    return np.flatnonzero(np.diff(before // size)) + 1


def _merge(rows: Records) -> dict[str, NDArray[Any]]:
    """Merge the rows of each cell. Counts are added in ascending order, so that the order of rows does not matter."""
    names = rows.dtype.names or ()
    counted = "count" in names
    rows = rows[np.lexsort((rows["count"], rows["cell"])) if counted else np.argsort(rows["cell"])]
    starts = np.flatnonzero(np.r_[True, rows["cell"][1:] != rows["cell"][:-1]])
    n_rows = np.diff(starts, append=len(rows)).astype(np.float64)
    merged = {"cell": rows["cell"][starts], "count": np.add.reduceat(rows["count"], starts) if counted else n_rows}
    if "timestamp" in names:
        merged["timestamp"] = np.minimum.reduceat(rows["timestamp"], starts)
    return merged
