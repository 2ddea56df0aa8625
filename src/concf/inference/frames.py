"""Ranked lists as arrays, or as a long frame in the caller's library."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concf.data.ids import Ids, is_integer
from concf.errors import ConfigError, DataError, MissingExtraError
from concf.inference.lookup import Short

Library = Literal["polars", "pandas", "arrow", "arrays"]
Frame = Any  # a frame of the log's library, or arrays
COLUMNS = ("user_id", "item_id", "score", "rank")


def library_of(data: object) -> Library:
    """Return the library of a caller's frame; polars for anything else."""
    module = type(data).__module__.partition(".")[0]
    return "pandas" if module == "pandas" else "arrow" if module == "pyarrow" else "polars"


def column_type(ids: Ids, names: NDArray[Any] | None = None) -> pa.DataType:
    """Return the Arrow type of a column of ids, or of names, which may be unknown ids of another type."""
    given = [] if names is None or names is ids.values else [each for each in names.tolist() if each is not None]
    if not given:
        return pa.int64() if ids.are_integers else pa.string()
    if all(map(is_integer, given)):
        return pa.int64()
    if all(isinstance(each, str) for each in given):
        return pa.string()
    raise DataError("users: expected integers of 64 bits or text, and the same for all of them")


def long_table(
    names: NDArray[Any], lists: Sequence[Short], ids: Ids, kind: pa.DataType, columns: Sequence[str] = COLUMNS
) -> pa.Table:
    """Return a row for each item of each list: user, item id, score, rank (from 1).

    names: [b] users of the lists; kind: Arrow type of names; columns: of the table
    """
    lengths = [len(items) for items, _ in lists]
    items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in lists)])
    scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in lists)])
    ranks = np.concatenate([np.empty(0, np.int32), *(np.arange(1, n + 1, dtype=np.int32) for n in lengths)])
    values = (np.repeat(names, lengths), ids.values[items], scores, ranks)
    kinds = (kind, column_type(ids), pa.float32(), pa.int32())
    return pa.table(dict(zip(columns, map(_column, values, kinds), strict=True)))


def _column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Arrow array of the values; numbers share their buffer, since `pa.array` imports pandas for an array."""
    if pa.types.is_string(kind) or (values.dtype == object and None in values.tolist()):
        return pa.array(values, kind)
    buffer = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


def as_arrays(
    lists: Sequence[Short], k: int, ids: Ids, single: bool = False
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return ids and scores, [b, k] each or [k] of a single list; short lists end in -1 (text: None) and -inf."""
    positions, scores = np.full((len(lists), k), -1), np.full((len(lists), k), -np.inf, np.float32)
    for row, (items, values) in enumerate(lists):
        positions[row, : len(items)], scores[row, : len(items)] = items, values
    named = ids.values[np.maximum(positions, 0)]
    named[positions < 0] = -1 if ids.are_integers else None
    return (named[0], scores[0]) if single else (named, scores)


def as_frame(table: pa.Table, library: Library) -> Frame:
    """Convert a table to a library's frame."""
    if library == "arrow":
        return table
    if library == "polars":
        import polars as pl

        return pl.from_arrow(table)
    if library == "pandas":
        if find_spec("pandas") is None:
            raise MissingExtraError("pandas", "pandas", "a pandas frame")
        return table.to_pandas()
    raise ConfigError(f"frame = {library!r}: choose from polars, pandas, arrow, arrays")
