"""Find the first bad row of a log, and say where it is, what it contains and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from concf.data.ids import MAX_ID_BYTES
from concf.data.reading.cast import AMBIGUOUS_DATE
from concf.data.reading.scan import ID_ROLES, Reading, Table, format_of
from concf.data.reading.sniff import EmptyFileError, TextLayout, damaged_gzip, open_bytes, sniff, split_fields
from concf.errors import DataError, option


@dataclass(frozen=True)
class Check:
    """Something that no row may have: the column, when a row is bad, what is wrong with it and what to do."""

    column: str
    bad: pl.Expr
    problem: str
    fix: str


def row_checks(schema: pl.Schema, time_format: str | None) -> list[Check]:
    """The checks for cast rows with these columns."""
    checks = []
    for role in ID_ROLES:
        column = pl.col(role)
        missing = column.is_null() | (column == "") if schema[role] == pl.String else column.is_null()
        checks.append(Check(role, missing, f"no {role} id", "Every row needs a user and an item."))
        if schema[role] == pl.String:
            problem = f"the {role} id is longer than {MAX_ID_BYTES} bytes"
            fix = "Use shorter ids, or another column."
            checks.append(Check(role, column.str.len_bytes() > MAX_ID_BYTES, problem, fix))
    if "count" in schema:
        count = pl.col("count")
        fix = f"Counts and weights are finite numbers, 0 or more; {_drop('count')}"
        checks.append(Check("count", count.is_null() | ~count.is_finite() | (count < 0), "not a count", fix))
    if "rating" in schema:
        rating = pl.col("rating")
        fix = "Ratings are numbers; drop the row"
        checks.append(Check("rating", rating.is_null() | rating.is_nan(), "not a rating", fix))
    if "timestamp" in schema:
        time = pl.col("timestamp")
        bad = time.is_null() | ~time.is_finite() if schema["timestamp"].is_float() else time.is_null()
        expected = f"of the form {time_format!r}" if time_format else "numbers or ISO 8601"
        fix = f"Times are {expected} ({option('time_format')} sets another form); {_drop('timestamp')}"
        checks.append(Check("timestamp", bad, "not a time", fix))
    return checks


def _drop(role: str) -> str:
    return f"drop the row, or leave the column out with {option(role, 'none')}"


def bad_row(frame: pl.LazyFrame, table: Table, check: Check, reading: Reading) -> DataError:
    """The error for the first row of the cast frame that fails a check, with the source's values in that row."""
    row = frame.filter(check.bad).select(pl.col("row").min()).collect(engine="streaming").item()
    source = table.frame.filter(pl.col("row") == row).drop("row").head(1).collect(engine="streaming")
    values = source.row(0, named=True)
    value, problem, fix = values[check.column], check.problem, check.fix
    if check.column in ID_ROLES and isinstance(value, int):  # an unsigned integer that does not fit
        problem, fix = f"the {check.column} id is above 2^63 - 1", "Cast the column to strings"
    ambiguous = isinstance(value, str) and re.match(AMBIGUOUS_DATE, value)
    if check.column == "timestamp" and ambiguous and reading.time_format is None:
        problem = "ambiguous, the day or the month first"
        formats = f"{option('time_format', '%d/%m/%Y')} or {option('time_format', '%m/%d/%Y')}"
        fix = f"Set the format, such as {formats}, or write ISO 8601"
    elif check.column == "timestamp" and reading.time_format is None and _other_zone(frame, table, check, value):
        problem = "some times have a zone and others have none"
        fix = "Write all of them with a zone, as 2024-05-03T10:00:00Z, or all without, which means UTC"
    if check.column in ID_ROLES and table.first_line is not None:
        fix += f" Is the separator another one? Set it with {option('separator')}"
    shown = {name: None if value is None else str(value)[:60] for name, value in values.items()}
    column = table.columns[check.column]
    return DataError(f"{table.where(row)}: column {column!r}: {problem}, found {shown}. {fix}")


def _other_zone(frame: pl.LazyFrame, table: Table, check: Check, value: object) -> bool:
    """Whether a time is ISO 8601 with a zone and the first good one has none, or the other way round."""
    good = frame.filter(~check.bad).select(pl.col("row").min())
    first = table.frame.join(good, on="row").select("timestamp").collect(engine="streaming").to_series().to_list()
    try:
        zoned = {datetime.fromisoformat(each).tzinfo is not None for each in (value, *first[:1])}
    except (TypeError, ValueError):
        return False
    return len(zoned) == 2


def unreadable(path: Path, reading: Reading, error: BaseException) -> DataError:
    """The error for a file that Polars could not read, with the line, found by reading it line by line."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read ({error.strerror})")
    if isinstance(error, pl.exceptions.NoDataError):
        return EmptyFileError(path)
    try:
        problem_of = _line_check(path, reading)
        with open_bytes(path) as file:
            for number, line in enumerate(file, start=1):
                problem = problem_of(line)
                if problem:
                    return DataError(f"{path}:{number}: {problem}")
    except (EOFError, OSError) as damage:
        return damaged_gzip(path, damage)
    except DataError as sniffed:
        return sniffed
    message = str(error).strip().partition("\n")[0] or type(error).__name__
    return DataError(f"{path}: cannot be read ({message}). Is its format another one? Set it with {option('format')}")


def _line_check(path: Path, reading: Reading) -> Callable[[bytes], str | None]:
    """A function that returns what is wrong with a line of this file, or None."""
    kind = format_of(path, reading)
    if kind == "parquet":
        return lambda _line: None
    if kind == "jsonl":
        return lambda line: _not_utf8(line) or _json_problem(line.decode())
    if kind in ("auto", "table"):
        layout = sniff(path, reading.separator, reading.header, set(reading.named().values()))
        if layout.kind == "table" or kind == "table":
            return lambda line: _not_utf8(line) or _field_problem(line.decode().rstrip("\r\n"), layout)
    return _not_utf8


def _not_utf8(line: bytes) -> str | None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        context = line[max(0, error.start - 20) : error.start + 20]
        return f"byte {error.start + 1} is not UTF-8, found {context!r}. Save the file as UTF-8"
    return None


def _json_problem(text: str) -> str | None:
    try:
        if isinstance(json.loads(text if text.strip() else "{}"), dict):
            return None
        problem = "not a JSON object"
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg})"
    return f"{problem}, found {text[:80]!r}. Expected one object per line, with a user and an item"


def _field_problem(text: str, layout: TextLayout) -> str | None:
    if text.count('"') % 2:
        return f"a quotation mark is not closed, found {text[:80]!r}. Double it or close it"
    expected, n_fields = len(layout.names), len(split_fields(text, layout.separator))
    if not text.strip() or n_fields == expected:
        return None
    return (
        f"expected {expected} fields, found {n_fields}: {text[:80]!r}. "
        "Quote a field that contains the separator, and leave none out"
    )
