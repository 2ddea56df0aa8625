"""From a table to interactions: checked, its ids put in order, repeats merged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from concf.data.ids import MAX_ID_BYTES, Ids
from concf.data.interactions import Interactions
from concf.data.scan import Reading, Table, format_of, scan_file, scan_object
from concf.data.sniff import TextShape, fields, open_bytes, sniff
from concf.errors import DataError
from concf.progress import working


@dataclass(frozen=True)
class Fault:
    """Something no row may have: when it holds, in which column, what is wrong and what to do."""

    column: str
    when: pl.Expr
    what: str
    mend: str


def read(log: Any, reading: Reading | None = None) -> Interactions:
    """The interactions of a file, a frame, a sparse matrix or a pair of arrays.

    The file is gone through twice by Polars' streaming engine: once for the ids and the checks, once for the
    pairs. The rows themselves are never held all at once.
    """
    reading = reading or Reading()
    if not isinstance(log, str | Path):
        try:
            return collect(scan_object(log, reading), reading)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DataError(
                f"the {type(log).__name__} cannot be read ({reason}). Expected a user and an item a row"
            ) from error
    path = Path(log)
    try:
        with working(f"reading {path.name}"):
            return collect(scan_file(path, reading), reading)
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        raise _explain(path, reading, error) from error


def collect(table: Table, reading: Reading) -> Interactions:
    """Check the table, number its ids in ascending order, merge repeats, sort by user and item."""
    frame = _typed(table)
    faults = _faults(frame, table)
    ok = pl.lit(True) if reading.min_rating is None else pl.col("rating") >= reading.min_rating
    liked = frame.filter(ok)
    checks = frame.select(pl.len().alias("rows"), *(f.when.any().alias(str(k)) for k, f in enumerate(faults)))
    checked, users, items = pl.collect_all(
        [checks, liked.select("user").unique(), liked.select("item").unique()], engine="streaming"
    )
    for k, fault in enumerate(faults):
        if checked[str(k)].item():
            raise _report(frame, table, fault)
    if not len(users):
        rated = f" rated {reading.min_rating:g} or more" if checked["rows"].item() and reading.min_rating else ""
        raise DataError(f"{table.name}: holds no interaction{rated}. Expected a user and an item a row")
    user_ids, user_places = _number(users["user"], "user" in table.may_be_integers)
    item_ids, item_places = _number(items["item"], "item" in table.may_be_integers)
    timed = "timestamp" in frame.collect_schema()
    cell = pl.col("user_place").cast(pl.Int64) * len(item_ids) + pl.col("item_place")  # one key sorts faster than two
    pairs = (
        liked.join(user_places.lazy(), on="user").join(item_places.lazy(), on="item")
        .group_by(cell.alias("cell"))
        .agg(pl.col("count").sum(), *([pl.col("timestamp").min()] if timed else []))
        .collect(engine="streaming")
        .sort("cell")
    )  # fmt: skip
    user, item = np.divmod(pairs["cell"].to_numpy(), len(item_ids))
    return Interactions(
        user_ids, item_ids,
        user=user.astype(np.int32),
        item=item.astype(np.int32),
        count=pairs["count"].to_numpy(),
        timestamp=pairs["timestamp"].to_numpy() if timed else None,
    )  # fmt: skip


def _number(ids: pl.Series, may_be_integers: bool) -> tuple[Ids, pl.DataFrame]:
    """The ids in ascending order, and the table (id as in the source, its place) to join with."""
    kind = ids.name
    numbers = ids.cast(pl.Int64, strict=False) if may_be_integers else None
    plain = numbers is not None and (numbers.cast(pl.String) == ids).fill_null(False).all()  # 7, but not 007
    values = numbers if numbers is not None and plain else ids
    order = values.arg_sort()
    places = pl.DataFrame({kind: ids.gather(order)}).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int32).alias(f"{kind}_place")
    )
    ordered = values.gather(order)
    if ordered.dtype.is_integer():
        return Ids(ordered.cast(pl.Int64).to_numpy()), places
    return Ids(np.array(ordered.to_list(), dtype=object)), places


def _typed(table: Table) -> pl.LazyFrame:
    """The table with ids of a kind we know, numbers as numbers and times as numbers; no cast can fail here."""
    schema = table.frame.collect_schema()
    typed = {role: _typed_id(table, role, schema[role]) for role in ("user", "item")}
    if "rating" in schema:
        typed["rating"] = pl.col("rating").cast(pl.Float64, strict=False)
    typed["count"] = pl.col("count").cast(pl.Float64, strict=False) if "count" in schema else pl.lit(1.0)
    if "timestamp" in schema:
        typed["timestamp"] = _typed_time(table, schema["timestamp"])
    frame = table.frame.select("row", **typed)
    return frame.filter(pl.col("count").ne_missing(0.0)) if "count" in schema else frame


def _typed_id(table: Table, role: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(role)
    if isinstance(kind, pl.Categorical | pl.Enum):
        return column.cast(pl.String)
    if kind == pl.UInt64:
        return column.cast(pl.Int64, strict=False)
    if kind == pl.String or (kind.is_integer() and kind not in (pl.Int128, pl.UInt128)):
        return column
    raise DataError(
        f"{table.name}: the {role} ids are {kind}; expected strings or integers up to 64 bits. Cast the column first"
    )


def _typed_time(table: Table, kind: pl.DataType) -> pl.Expr:
    """Times as numbers: integers and floats as they are, dates and ISO 8601 text in microseconds since 1970."""
    column = pl.col("timestamp")
    if kind.is_temporal():
        return column.cast(pl.Datetime("us")).cast(pl.Int64)
    if kind.is_numeric():
        return column.cast(pl.Int64 if kind.is_integer() else pl.Float64, strict=False)
    if kind != pl.String:
        raise DataError(f"{table.name}: the timestamps are {kind}; expected numbers, dates or text in ISO 8601")
    sample = table.frame.select("timestamp").head(1000).collect()["timestamp"].drop_nulls()
    ways: tuple[Callable[[pl.Expr], pl.Expr], ...] = (
        lambda text: text.cast(pl.Int64, strict=False),
        lambda text: text.cast(pl.Float64, strict=False),
        lambda text: text.str.to_datetime(time_unit="us", time_zone="UTC", strict=False).cast(pl.Int64),
    )
    return max(ways, key=lambda way: _n_understood(sample, way))(column)


def _n_understood(sample: pl.Series, way: Callable[[pl.Expr], pl.Expr]) -> int:
    """How many of the sample are not null after the conversion; none where it cannot be tried."""
    try:
        return sample.to_frame().select(way(pl.col(sample.name))).to_series().count()
    except pl.exceptions.PolarsError:
        return 0


def _faults(frame: pl.LazyFrame, table: Table) -> list[Fault]:
    schema = frame.collect_schema()
    separator = " Is the separator another one? Give it with --separator" if table.first_line is not None else ""
    faults = []
    for role in ("user", "item"):
        column = pl.col(role)
        absent = column.is_null() | (column == "") if schema[role] == pl.String else column.is_null()
        faults.append(Fault(role, absent, f"no {role} id", f"Every row needs a user and an item.{separator}"))
        if schema[role] == pl.String:
            long = column.str.len_bytes() > MAX_ID_BYTES
            what = f"the {role} id is longer than {MAX_ID_BYTES} bytes"
            faults.append(Fault(role, long, what, f"Use shorter ids, or another column.{separator}"))
    count = pl.col("count")
    bad_count = count.is_null() | ~count.is_finite() | (count < 0)
    mend = "Counts are numbers, 0 or more; drop the row, or leave the column out with --count none"
    faults.append(Fault("count", bad_count, "not a count", mend))
    if "rating" in schema:
        bad_rating = pl.col("rating").is_null() | pl.col("rating").is_nan()
        faults.append(Fault("rating", bad_rating, "not a rating", "Ratings are numbers; drop the row"))
    if "timestamp" in schema:
        time = pl.col("timestamp")
        bad_time = time.is_null() | time.is_nan() if schema["timestamp"].is_float() else time.is_null()
        faults.append(
            Fault(
                "timestamp",
                bad_time,
                "not a time",
                "Times are numbers or ISO 8601; drop the row, or leave the column out with --timestamp none",
            )
        )
    return faults


def _report(frame: pl.LazyFrame, table: Table, fault: Fault) -> DataError:
    """The error for a fault that some row has: the first such row, and what the source holds there."""
    row = frame.filter(fault.when).select(pl.col("row").min()).collect(engine="streaming").item()
    source = table.frame.filter(pl.col("row") == row).drop("row").head(1).collect(engine="streaming")
    found = {name: str(value)[:60] if value is not None else None for name, value in source.row(0, named=True).items()}
    column = table.columns.get(fault.column, fault.column)
    return DataError(f"{table.where(row)}: column {column!r}: {fault.what}, found {found}. {fault.mend}")


def _explain(path: Path, reading: Reading, error: BaseException) -> DataError:
    """What the engine stumbled over, with the line, found by reading the file slowly."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read ({error.strerror})")
    if isinstance(error, pl.exceptions.NoDataError):
        return DataError(f"{path}: holds no interaction. Expected a user and an item a row")
    try:
        problem_of = _line_checker(path, reading)
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                problem = problem_of(line)
                if problem:
                    return DataError(f"{path}:{number}: {problem}")
    except (EOFError, OSError) as damage:
        return DataError(f"{path}: the gzip data is damaged ({damage}). Fetch or pack the file again")
    except DataError as sniffed:
        return sniffed
    message = str(error).strip().partition("\n")[0] or type(error).__name__
    return DataError(f"{path}: cannot be read ({message}). Is its format another one? Give it with --format")


def _line_checker(path: Path, reading: Reading) -> Callable[[bytes], str | None]:
    """What may be wrong with a line of this file, or nothing if it has no lines."""
    kind = format_of(path, reading)
    if kind == "parquet":
        return lambda _line: None
    if kind == "jsonl":
        return lambda line: _undecodable(line) or _not_json(line.decode())
    if kind in ("auto", "table"):
        shape = sniff(path, reading.separator, reading.header, set(reading.named().values()))
        if shape.kind == "table" or kind == "table":
            return lambda line: _undecodable(line) or _wrong_fields(line.decode().rstrip("\r\n"), shape)
    return _undecodable


def _undecodable(line: bytes) -> str | None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        found = line[max(0, error.start - 20) : error.start + 20]
        return f"byte {error.start + 1} is not UTF-8, found {found!r}. Save the file as UTF-8"
    return None


def _not_json(text: str) -> str | None:
    try:
        json.loads(text if text.strip() else "{}")
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg}), found {text[:80]!r}. Expected one object a line"
    return None


def _wrong_fields(text: str, shape: TextShape) -> str | None:
    if text.count('"') % 2:
        return f"a quotation mark is not closed, found {text[:80]!r}. Double it or close it"
    found = len(fields(text, shape.separator)) if text.strip() else 0
    if found in (0, len(shape.names)):
        return None
    return (
        f"expected {len(shape.names)} fields, found {found}: {text[:80]!r}. "
        "Quote a field that holds the separator, and leave none out"
    )
