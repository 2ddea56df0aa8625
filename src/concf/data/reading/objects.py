"""Scan Python objects as logs: frames, matrices and rows."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any
from uuid import UUID

import numpy as np
import polars as pl
from scipy import sparse

from concf.data.reading.scan import ROW, Reading, Table, choose_columns, table_of
from concf.errors import DataError

ROW_COLUMNS = ("user_id", "item_id", "count", "timestamp")
LIKE_A_TIME = 1e8  # seconds since 1970 are larger since 1973; no weight is
TUPLE = "(user, item[, count][, time])"
EXPECTED = (
    "expected a file, a catalogue name, a frame (polars, pandas, Arrow PyCapsule), a scipy sparse matrix "
    f"[users, items] or a list of tuples {TUPLE}"
)


def scan_object(log: Any, reading: Reading) -> Table:
    """Scan a log in any form of `EXPECTED` other than files."""
    name, frame = f"the {type(log).__name__}", _frame(log).lazy()
    columns = choose_columns(frame.collect_schema().names(), reading, name)
    return table_of(frame.with_row_index(ROW), name, columns, reading)


def _frame(log: Any) -> pl.DataFrame | pl.LazyFrame:
    if sparse.issparse(log):
        cells = log.tocoo()
        columns = (*cells.coords, np.asarray(cells.data, np.float64))
        return pl.DataFrame(dict(zip(ROW_COLUMNS, columns, strict=False))).filter(pl.col("count") != 0)
    if isinstance(log, list):
        return _of_rows(log)
    if isinstance(log, pl.LazyFrame):
        return log
    if not hasattr(log, "__arrow_c_stream__"):
        raise DataError(f"cannot read interactions from {type(log).__name__}; {EXPECTED}")
    return pl.DataFrame(log)


def _of_rows(rows: list[Any]) -> pl.DataFrame:
    """Make a frame of tuples (user, item[, count][, time]), all of one length.

    A third value is a time if it is a date or text, and otherwise a count.
    """
    length = len(rows[0]) if rows and isinstance(rows[0], tuple | list) else 0
    if not rows:
        raise DataError(f"the list is empty; expected tuples {TUPLE}")
    for index, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != length or not 2 <= length <= len(ROW_COLUMNS):
            raise DataError(f"row {index} of the list is {str(row)[:60]!r}; expected equally long tuples {TUPLE}")
    names = list(ROW_COLUMNS[:length])
    columns = [list(values) for values in zip(*rows, strict=True)]
    if length == 3 and isinstance(columns[2][0], str | date | datetime | np.datetime64):
        names[2] = "timestamp"
    elif length == 3 and all(isinstance(each, int | float) and each >= LIKE_A_TIME for each in columns[2]):
        raise DataError(f"the third values ({columns[2][0]} ...) look like times. Give (user, item, 1, time)")
    return pl.DataFrame(dict(zip(names, [*map(_checked_ids, columns[:2]), *columns[2:]], strict=True)), strict=False)


def _checked_ids(ids: list[Any]) -> list[Any]:
    """Return the ids of a list, UUIDs as text; anything but integers, text and UUIDs is refused."""
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int | np.integer | str | UUID | None):
            raise DataError(f"{one!r} is no id; expected integers or text (or UUIDs) for users and items")
    if len({isinstance(one, int | np.integer) for one in ids if one is not None}) > 1:
        raise DataError("some ids are integers and others text; write all of a column in one way, as str(id)")
    return [str(one) if isinstance(one, UUID) else one for one in ids]
