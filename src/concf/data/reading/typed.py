"""Columns of a kind we know: ids as integers or strings, counts, ratings and times as numbers, in all tables alike."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from concf.data.reading.scan import Table
from concf.errors import ConfigError, DataError, option

ID_ROLES = ("user", "item")
UNCLEAR_DATE = r"^\s*[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}\b"  # 03/05/2024: the day first, or the month?


def typed(tables: list[Table], time_format: str | None = None) -> tuple[list[pl.LazyFrame], frozenset[str]]:
    """A frame of each table (row, user, item[, rating][, count][, timestamp]), and the ids that may spell integers.

    Where one table has ids as integers and another as text, all are text first. No cast can fail here: what is
    not understood is null. time_format: of times as text; None: ISO 8601
    """
    schemas = [table.frame.collect_schema() for table in tables]
    roles = schemas[0].names()
    columns: dict[str, list[pl.Expr]] = {}
    spelt = []
    for role in ID_ROLES:
        whole = [_has_integers(table, role, schema[role]) for table, schema in zip(tables, schemas, strict=True)]
        kind = pl.Int64 if all(whole) else pl.String
        columns[role] = [pl.col(role).cast(kind, strict=False)] * len(tables)
        if all(integers or role in table.may_be_integers for table, integers in zip(tables, whole, strict=True)):
            spelt += [role] if kind == pl.String else []
    for role in {"rating", "count"} & set(roles):
        columns[role] = [pl.col(role).cast(pl.Float64, strict=False)] * len(tables)
    if "timestamp" in roles:
        columns["timestamp"] = _times(tables, [schema["timestamp"] for schema in schemas], time_format)
    frames = [
        table.frame.select("row", **{role: column[k] for role, column in columns.items()})
        for k, table in enumerate(tables)
    ]
    if "count" in roles:
        frames = [frame.filter(pl.col("count").ne_missing(0.0)) for frame in frames]
    return frames, frozenset(spelt)


def _has_integers(table: Table, role: str, kind: pl.DataType) -> bool:
    """Whether the ids of a table are integers; else they are strings, or refused."""
    if kind.is_integer() and kind not in (pl.Int128, pl.UInt128):
        return True
    if kind == pl.String or isinstance(kind, pl.Categorical | pl.Enum):
        return False
    raise DataError(
        f"{table.name}: the {role} ids are {kind}; expected strings or integers up to 64 bits. Cast the column first"
    )


def _times(tables: list[Table], kinds: list[pl.DataType], time_format: str | None) -> list[pl.Expr]:
    """Times as numbers: integers and floats as they are, dates and text in microseconds since 1970."""
    found = [_time(table, kind, time_format) for table, kind in zip(tables, kinds, strict=True)]
    for table, (_, what) in zip(tables, found, strict=True):
        if (what == "date") != (found[0][1] == "date"):
            words = {True: "dates", False: "numbers"}
            raise DataError(
                f"{table.name}: the times are {words[what == 'date']} here and {words[what != 'date']} in "
                f"{tables[0].name}. Make them alike, or leave the column out with {option('timestamp', 'none')}"
            )
    floats = any(what == "float" for _, what in found)
    return [column.cast(pl.Float64) if floats else column for column, _ in found]


def _time(table: Table, kind: pl.DataType, time_format: str | None) -> tuple[pl.Expr, str]:
    """The times of a table as numbers, and what they are: integer, float or date."""
    column = pl.col("timestamp")
    if time_format is not None:
        if kind != pl.String:
            raise DataError(f"{table.name}: the timestamps are {kind}; {option('time_format')} is for times as text")
        _refuse_unknown(time_format)
        return _dates(column, time_format), "date"
    if kind.is_temporal():
        return column.cast(pl.Datetime("us")).cast(pl.Int64), "date"
    if kind.is_numeric():
        integers = kind.is_integer()
        return column.cast(pl.Int64 if integers else pl.Float64, strict=False), "integer" if integers else "float"
    if kind != pl.String:
        raise DataError(f"{table.name}: the timestamps are {kind}; expected numbers, dates or text in ISO 8601")
    sample = table.frame.select("timestamp").head(1000).collect()["timestamp"].drop_nulls()
    ways: dict[str, Callable[[pl.Expr], pl.Expr]] = {
        "integer": lambda text: text.cast(pl.Int64, strict=False),
        "float": lambda text: text.cast(pl.Float64, strict=False),
        "date": lambda text: _dates(pl.when(~text.str.contains(UNCLEAR_DATE)).then(text)),
    }
    what = max(ways, key=lambda name: _n_understood(sample, ways[name]))
    return ways[what](column), what


def _dates(text: pl.Expr, time_format: str | None = None) -> pl.Expr:
    """Text in microseconds since 1970; null where it is not of the format."""
    return text.str.to_datetime(time_format, time_unit="us", time_zone="UTC", strict=False).cast(pl.Int64)


def _refuse_unknown(time_format: str) -> None:
    try:
        pl.select(_dates(pl.lit("2024-05-03"), time_format))
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{option('time_format', time_format)}: {reason}") from None


def _n_understood(sample: pl.Series, way: Callable[[pl.Expr], pl.Expr]) -> int:
    """How many of the sample are not null after the conversion; none where it cannot be tried."""
    try:
        return sample.to_frame().select(way(pl.col(sample.name))).to_series().count()
    except pl.exceptions.PolarsError:
        return 0
