"""Cast the columns of all tables alike: ids to integers or strings; counts, ratings and times to numbers."""

from __future__ import annotations

import polars as pl

from concf.data.reading.scan import ID_ROLES, Table
from concf.errors import ConfigError, DataError, option

AMBIGUOUS_DATE = r"^\s*[0-9]{1,2}[/.-][0-9]{1,2}[/.-][0-9]{2,4}\b"  # 03/05/2024: is the day or the month first?

UUID_TEXT = r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "${1}-${2}-${3}-${4}-${5}"  # of 32 hexadecimal digits


def cast(tables: list[Table], time_format: str | None = None) -> tuple[list[pl.LazyFrame], set[str]]:
    """A frame per table (row, user, item[, rating][, count][, timestamp]), and the id roles that may become integers.

    Casts never fail: a value that cannot be read is null. Rows with a count of 0 are left out. Ids that are integers in
    one table and text in another are cast to text.
    time_format: of times in text; None: ISO 8601
    """
    schemas = [table.frame.collect_schema() for table in tables]
    columns: dict[str, list[pl.Expr]] = {}
    text_integers = set()
    for role in ID_ROLES:
        integers = [_is_integer(table, role, schema[role]) for table, schema in zip(tables, schemas, strict=True)]
        kind = pl.Int64 if all(integers) else pl.String
        columns[role] = [plain_ids(role, schema[role]).cast(kind, strict=False) for schema in schemas]
        if not all(integers) and all(
            integer or role in table.may_be_integers for table, integer in zip(tables, integers, strict=True)
        ):
            text_integers.add(role)
    for role in {"rating", "count"} & set(schemas[0]):
        columns[role] = [pl.col(role).cast(pl.Float64, strict=False)] * len(tables)
    if "timestamp" in schemas[0]:
        columns["timestamp"] = _times(tables, [schema["timestamp"] for schema in schemas], time_format)
    frames = [
        table.frame.select("row", **{role: column[k] for role, column in columns.items()})
        for k, table in enumerate(tables)
    ]
    if "count" in columns:
        frames = [frame.filter(pl.col("count").ne_missing(0.0)) for frame in frames]
    return frames, text_integers


def plain_ids(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column of ids; 16 bytes, as Parquet and Arrow have a UUID, are its text, and other bytes are null."""
    column = pl.col(name)
    if dtype != pl.Binary:
        return column
    text = column.bin.encode("hex").str.replace(*UUID_TEXT)
    return pl.when(column.bin.size() == 16).then(text)


def _is_integer(table: Table, role: str, dtype: pl.DataType) -> bool:
    """Whether the ids of a table are integers rather than strings; any other type is refused."""
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return True
    if dtype in (pl.String, pl.Binary) or isinstance(dtype, pl.Categorical | pl.Enum):
        return False
    raise DataError(
        f"{table.name}: the {role} ids are {dtype}; expected strings or 64-bit integers. Cast the column first"
    )


def _times(tables: list[Table], dtypes: list[pl.DataType], time_format: str | None) -> list[pl.Expr]:
    """Times as numbers: integers and floats as they are, dates and text in microseconds since 1970."""
    times = [_time(table, dtype, time_format) for table, dtype in zip(tables, dtypes, strict=True)]
    kinds = ["dates" if kind == "date" else "numbers" for _, kind in times]
    for table, kind in zip(tables, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(
                f"{table.name}: the times are {kind} here and {kinds[0]} in {tables[0].name}. "
                f"Use one kind in all files, or leave the column out with {option('timestamp', 'none')}"
            )
    floats = any(kind == "float" for _, kind in times)
    return [column.cast(pl.Float64) if floats else column for column, _ in times]


def _time(table: Table, dtype: pl.DataType, time_format: str | None) -> tuple[pl.Expr, str]:
    """The times of a table as numbers, and their kind: integer, float or date."""
    column = pl.col("timestamp")
    if time_format is not None:
        if dtype != pl.String:
            raise DataError(f"{table.name}: the timestamps are {dtype}; {option('time_format')} is for times in text")
        _check_time_format(time_format)
        return _dates(column, time_format), "date"
    if dtype.is_temporal():
        return column.cast(pl.Datetime("us")).cast(pl.Int64), "date"
    if dtype.is_integer():
        return column.cast(pl.Int64, strict=False), "integer"
    if dtype.is_numeric():
        return column.cast(pl.Float64, strict=False), "float"
    if dtype != pl.String:
        raise DataError(f"{table.name}: the timestamps are {dtype}; expected numbers, dates or ISO 8601 text")
    sample = table.frame.select("timestamp").head(1000).collect()
    casts = {
        "integer": column.cast(pl.Int64, strict=False),
        "float": column.cast(pl.Float64, strict=False),
        "date": _dates(pl.when(~column.str.contains(AMBIGUOUS_DATE)).then(column)),
    }
    kind = max(casts, key=lambda name: _n_readable(sample, casts[name]))
    return casts[kind], kind


def _dates(text: pl.Expr, time_format: str | None = None) -> pl.Expr:
    """Text as microseconds since 1970; null where it does not follow the format."""
    return text.str.to_datetime(time_format, time_unit="us", time_zone="UTC", strict=False).cast(pl.Int64)


def _check_time_format(time_format: str) -> None:
    try:
        pl.select(_dates(pl.lit("2024-05-03"), time_format))
    except pl.exceptions.PolarsError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{option('time_format', time_format)}: {reason}") from None


def _n_readable(sample: pl.DataFrame, cast: pl.Expr) -> int:
    """How many values of the sample are not null after the cast; 0 if Polars cannot infer a date format."""
    try:
        return sample.select(cast).to_series().count()
    except pl.exceptions.PolarsError:
        return 0
