"""Recommendations as a long frame, in the library that the caller uses."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.errors import ConfigError, MissingExtraError

Library = Literal["polars", "pandas", "arrow", "arrays"]
Frame = Any  # a polars or pandas frame, an Arrow table, or (ids, scores) arrays: as the caller asks
COLUMNS = ("user_id", "item_id", "score", "rank")


def library_of(data: Any) -> Library:
    """The library of a caller's frame; polars for whatever is none."""
    module = type(data).__module__.partition(".")[0]
    return "pandas" if module == "pandas" else "arrow" if module == "pyarrow" else "polars"


def kind_of(ids: Ids) -> pa.DataType:
    """The type of a column of those ids."""
    return pa.int64() if ids.are_integers else pa.string()


def long_table(
    users: NDArray[Any], items: NDArray[np.int32], scores: NDArray[np.float32], item_ids: Ids, kind: pa.DataType
) -> pa.Table:
    """user_id, item_id, score, rank (from 1) of lists [b, k], empty places left out.

    users: [b] the caller's ids; kind: their type, which an empty table cannot tell
    """
    there = items >= 0
    row, place = np.nonzero(there)
    columns = (users[row], item_ids.values[items[there]], scores[there], (place + 1).astype(np.int32))
    kinds = (kind, kind_of(item_ids), pa.float32(), pa.int32())
    return pa.table(dict(zip(COLUMNS, map(pa.array, columns, kinds), strict=True)))


def as_frame(table: pa.Table, library: Library) -> Frame:
    """The table in that library."""
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
