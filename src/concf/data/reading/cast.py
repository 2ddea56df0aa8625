"""Cast the columns of all tables alike, and check every row.

Ids become integers or strings; counts, ratings and times become numbers. A value that cannot be cast is null, and a row
with such a value fails a check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from concf.data.ids import MAX_ID_BYTES
from concf.data.reading.scan import ID_ROLES, Table
from concf.data.reading.sniff import first_line
from concf.errors import ConfigError, DataError, option

AMBIGUOUS_DATE = r"^\s*[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}\b"  # 03/05/2024: is the day or the month first?
UUID_TEXT = r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "${1}-${2}-${3}-${4}-${5}"  # of 32 hexadecimal digits


def cast(tables: list[Table], time_format: str | None = None) -> tuple[list[pl.LazyFrame], set[str]]:
    """Return a frame per table (row, user, item[, rating][, count][, timestamp]), and roles whose text may be integers.

    Rows with a count of 0 are left out. Ids that are integers in one table and text in another are cast to text.
    time_format: of times in text; None: ISO 8601
    """
    schemas = [table.frame.collect_schema() for table in tables]
    columns: dict[str, list[pl.Expr]] = {}
    text_integers = set()
    for role in ID_ROLES:
        integers = [_is_integer(table, role, schema[role]) for table, schema in zip(tables, schemas, strict=True)]
        kind = pl.Int64 if all(integers) else pl.String
        columns[role] = [plain_ids(role, schema[role]).cast(kind, strict=False) for schema in schemas]
        if all(one or role in table.may_be_integers for table, one in zip(tables, integers, strict=True)):
            text_integers.add(role)
    for role in {"rating", "count"} & set(schemas[0]):
        columns[role] = [pl.col(role).cast(pl.Float64, strict=False)] * len(tables)
    if "timestamp" in schemas[0]:
        times = [_time(table, schema["timestamp"], time_format) for table, schema in zip(tables, schemas, strict=True)]
        for table, (_, unit) in zip(tables, times, strict=True):
            if (unit == "date") != (times[0][1] == "date"):
                fix = f"Use one kind in all files, or {option('timestamp', 'none')}"
                problem = f"times are dates here and numbers in {tables[0].name}, or vice versa"
                raise DataError(f"{table.name}: {problem}. {fix}")
        floats = any(unit == "float" for _, unit in times)
        columns["timestamp"] = [column.cast(pl.Float64) if floats else column for column, _ in times]
    frames = []
    for k, table in enumerate(tables):
        frame = table.frame.select("row", **{role: column[k] for role, column in columns.items()})
        frames.append(frame.filter(pl.col("count").ne_missing(0.0)) if "count" in columns else frame)
    return frames, text_integers


def plain_ids(name: str, dtype: pl.DataType) -> pl.Expr:
    """Column of ids; 16 bytes are a UUID and become its text, other bytes become null."""
    column = pl.col(name)
    text = column.bin.encode("hex").str.replace(*UUID_TEXT)
    return pl.when(column.bin.size() == 16).then(text) if dtype == pl.Binary else column


def _is_integer(table: Table, role: str, dtype: pl.DataType) -> bool:
    """Whether ids are integers rather than strings; any other type is refused."""
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return True
    if dtype in (pl.String, pl.Binary) or isinstance(dtype, pl.Categorical | pl.Enum):
        return False
    raise DataError(f"{table.name}: the {role} ids are {dtype}. Cast the column to strings or 64-bit integers")


def _time(table: Table, dtype: pl.DataType, time_format: str | None) -> tuple[pl.Expr, str]:
    """Cast the times of a table to numbers, dates and text to microseconds since 1970; also return their kind."""
    column = pl.col("timestamp")
    if time_format is not None:
        if dtype != pl.String:
            raise DataError(f"{table.name}: the timestamps are {dtype}; {option('time_format')} is for times in text")
        try:
            pl.select(_dates(pl.lit("2024-05-03"), time_format))
        except pl.exceptions.PolarsError as error:
            raise ConfigError(f"{option('time_format', time_format)}: {first_line(error)}") from None
        return _dates(column, time_format), "date"
    if dtype.is_temporal():
        return column.cast(pl.Datetime("us")).cast(pl.Int64), "date"
    casts = {"integer": column.cast(pl.Int64, strict=False), "float": column.cast(pl.Float64, strict=False)}
    kind = "integer" if dtype.is_integer() else "float"
    if dtype == pl.String:
        casts["date"] = _dates(pl.when(~column.str.contains(AMBIGUOUS_DATE)).then(column))
        sample = table.frame.select("timestamp").head(1000).collect()
        kind = max(casts, key=lambda name: _n_readable(sample, casts[name]))
    elif not dtype.is_numeric():
        raise DataError(f"{table.name}: the timestamps are {dtype}; expected numbers, dates or ISO 8601 text")
    return casts[kind], kind


def _dates(text: pl.Expr, time_format: str | None = None) -> pl.Expr:
    """Parse text as microseconds since 1970; null where it does not follow the format."""
    return text.str.to_datetime(time_format, time_unit="us", time_zone="UTC", strict=False).cast(pl.Int64)


def _n_readable(sample: pl.DataFrame, cast: pl.Expr) -> int:
    """Count the values of the sample that can be cast; 0 if Polars cannot infer a date format."""
    try:
        return sample.select(cast).to_series().count()
    except pl.exceptions.PolarsError:
        return 0


class Check(NamedTuple):
    """Condition that no row may meet: its column, when a row is bad, what is wrong and what to do."""

    column: str
    bad: pl.Expr
    problem: str
    fix: str


def row_checks(schema: pl.Schema, time_format: str | None) -> Iterator[Check]:
    """Yield the checks for cast rows with these columns."""
    for role in ID_ROLES:
        column, is_text = pl.col(role), schema[role] == pl.String
        missing = column.is_null() | (column == "") if is_text else column.is_null()
        yield Check(role, missing, f"no {role} id", "Every row needs a user and an item.")
        if is_text:
            long = column.str.len_bytes() > MAX_ID_BYTES
            yield Check(role, long, f"the {role} id is longer than {MAX_ID_BYTES} bytes", "Use shorter ids.")
    drop = "drop the row, or leave the column out with {}"
    count, rating, time = map(pl.col, ("count", "rating", "timestamp"))
    if "count" in schema:
        fix = f"Counts and weights are finite numbers, 0 or more; {drop.format(option('count', 'none'))}"
        yield Check("count", count.is_null() | ~count.is_finite() | (count < 0), "not a count", fix)
    if "rating" in schema:
        yield Check("rating", rating.is_null() | rating.is_nan(), "not a rating", "Ratings are numbers; drop the row")
    if "timestamp" in schema:
        bad = time.is_null() | ~time.is_finite() if schema["timestamp"].is_float() else time.is_null()
        form = f"of the form {time_format!r}" if time_format else "numbers or ISO 8601, all with a zone or all without"
        fix = f"Times are {form} ({option('time_format')} sets another); {drop.format(option('timestamp', 'none'))}"
        yield Check("timestamp", bad, "not a time", fix)


def bad_row(frame: pl.LazyFrame, table: Table, check: Check, time_format: str | None) -> DataError:
    """Return the error for the first row of the cast frame that fails a check, with the source's values in that row."""
    row = frame.filter(check.bad).select(pl.col("row").min()).collect(engine="streaming").item()
    source = table.frame.filter(pl.col("row") == row).drop("row").head(1).collect(engine="streaming")
    values = source.row(0, named=True)
    value, problem, fix = values[check.column], check.problem, check.fix
    if check.column in ID_ROLES and isinstance(value, int):  # an unsigned integer that does not fit
        problem, fix = f"the {check.column} id is above 2^63 - 1", "Cast the column to strings"
    elif check.column in ID_ROLES and table.first_line is not None:
        fix += f" Is the separator another one? Set it with {option('separator')}"
    elif check.column == "timestamp" and time_format is None and re.match(AMBIGUOUS_DATE, str(value)):
        problem = "ambiguous, the day or the month first"
        fix = f"Set the format, such as {option('time_format', '%d/%m/%Y')}, or write ISO 8601"
    shown = {name: None if value is None else str(value)[:60] for name, value in values.items()}
    return DataError(f"{table.where(row)}: column {table.columns[check.column]!r}: {problem}, found {shown}. {fix}")
