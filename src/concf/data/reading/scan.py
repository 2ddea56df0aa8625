"""Any log, as one lazy table with the columns user, item and, where there are such, rating, count, timestamp."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy import sparse

from concf.data.reading.sniff import ROLES, EmptyFileError, first_lines, sniff
from concf.errors import ConfigError, DataError, option
from concf.runtime.files import refuse_no_file
from concf.runtime.settings import Settings

Format = Literal["auto", "table", "parquet", "jsonl", "user-lines", "counted-lines"]
ROW = "row of the source"  # a name that no column has
BOTH = frozenset({"user", "item"})
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".inter": "table",
}  # fmt: skip


class Reading(Settings):
    """How a log is to be read. A column that is not named is found by its usual names (see `sniff.ROLES`)."""

    user: str | None = None  # column of the user; its place, from 0, in a file without header
    item: str | None = None  # column of the item
    rating: str | None = None  # column of an explicit rating, looked at only with `min_rating`; "none": there is none
    count: str | None = None  # column that says how many events a row stands for; "none": there is none
    timestamp: str | None = None  # column of the time; "none": there is none
    time_format: str | None = None  # of times as text, such as %d/%m/%Y; None: ISO 8601
    min_rating: float | None = None  # a row rated below is not an interaction
    format: Format = "auto"  # table | parquet | jsonl | user-lines (id first) | counted-lines (count first)
    separator: str | None = None  # of a text table; one or more characters
    header: bool | None = None  # whether the first line of a text table names the columns

    def named(self) -> dict[str, str]:
        """The columns that the user named, by role."""
        return {role: name for role in ROLES if (name := getattr(self, role)) is not None}


@dataclass(frozen=True)
class Table:
    """A log before it is read.

    frame:      row, user, item[, rating][, count][, timestamp]; `row` counts the rows of the source from 0
    name:       what messages call it
    first_line: the line of the text file that holds row 0, or None if the source has no lines
    may_be_integers: the roles (user, item) whose ids came as text that may spell integers
    columns:    what the source calls the column of a role
    ignored_rating: the column of ratings that nothing is asked of
    users_are_lines: whether a user is the number of a line
    """

    frame: pl.LazyFrame
    name: str
    first_line: int | None = None
    may_be_integers: frozenset[str] = frozenset()
    columns: dict[str, str] = field(default_factory=dict)
    ignored_rating: str | None = None
    users_are_lines: bool = False

    def where(self, row: int) -> str:
        """The place of a row, for a message."""
        return f"{self.name}:{row + self.first_line}" if self.first_line is not None else f"{self.name}, row {row}"


@dataclass(frozen=True)
class Columns:
    """Which columns of a source are read: role -> column; and the one of ratings that nothing is asked of."""

    of: dict[str, str]
    ignored_rating: str | None = None


def choose_columns(names: list[str], reading: Reading, where: str) -> Columns:
    """A column that is missing is refused with the ones that are there."""
    chosen: dict[str, str] = {}
    named = reading.named()
    lowered = {name.lower(): name for name in reversed(names)}
    for role, usual in ROLES.items():
        if role in named:
            if named[role] == "none" and role not in ("user", "item"):
                continue
            if named[role] not in names:
                raise DataError(f"{where}: no column {named[role]!r} for the {role}; the columns are {names}")
            chosen[role] = named[role]
            continue
        found = [lowered[name] for name in usual if name in lowered]
        if found:
            chosen[role] = found[0]
        elif role in ("user", "item"):
            raise DataError(
                f"{where}: no column for the {role} among {names}. Name it with {option(role)} "
                f"(usual names: {', '.join(usual)})"
            )
    for wanted, role in (("min_rating", "rating"), ("time_format", "timestamp")):
        if getattr(reading, wanted) is not None and role not in chosen:
            raise DataError(
                f"{where}: {option(wanted)} needs a {role} and {names} has none. Name its column with {option(role)}"
            )
    ignored = chosen.pop("rating", None) if reading.min_rating is None else None
    doubled = [role for role in chosen if list(chosen.values()).count(chosen[role]) > 1]
    if doubled:
        raise ConfigError(f"{where}: column {chosen[doubled[0]]!r} cannot be {' and '.join(doubled)} at once")
    return Columns(chosen, ignored)


def _table(frame: pl.LazyFrame, name: str, columns: Columns, **told: Any) -> Table:
    """The table of a source's rows with the chosen columns."""
    roles = frame.select(pl.col(ROW).alias("row"), **{role: pl.col(name) for role, name in columns.of.items()})
    return Table(roles, name, columns=columns.of, ignored_rating=columns.ignored_rating, **told)


def _scan_lines(path: Path, skip: int = 0) -> pl.LazyFrame:
    """row, line: every line of a text file as one string."""
    return pl.scan_csv(
        path, has_header=False, skip_rows=skip, schema={"line": pl.String},
        separator="\x1e", quote_char=None, row_index_name=ROW, glob=False,
    )  # fmt: skip


def _scan_text_table(path: Path, reading: Reading) -> Table:
    shape = sniff(path, reading.separator, reading.header, set(reading.named().values()))
    if shape.kind == "lines" and reading.format == "auto":
        return _scan_user_lines(path, reading)
    if shape.kind == "either" and reading.format == "auto":
        raise DataError(
            f"{path}:1: a line may be a row of {len(shape.names)} columns or a user with its items. "
            f"Say {option('format', 'table')} or {option('format', 'user-lines')}"
        )
    names, skip = shape.names, shape.skip
    if not shape.header:
        reading = reading.model_copy(update={"user": reading.user or "0", "item": reading.item or "1"})
    if len(shape.separator.encode()) == 1:
        frame = pl.scan_csv(
            path, has_header=False, skip_rows=skip, schema=dict.fromkeys(names, pl.String),
            separator=shape.separator, row_index_name=ROW, quote_char=None if _is_recbole(path) else '"', glob=False,
        )  # fmt: skip
    else:
        pieces = pl.col("line").str.split(shape.separator)
        whole = pieces.list.len() == len(names)  # a row with another number of fields has no ids, and is refused
        cells = {
            name: pl.when(whole).then(pieces.list.get(place, null_on_oob=True))
            for place, name in enumerate(names)
        }  # fmt: skip
        frame = _scan_lines(path, skip).filter(pl.col("line").is_not_null()).select(ROW, **cells)
    columns = choose_columns(names, reading, f"{path}:1")
    blank = pl.col(columns.of["user"]).is_null() & pl.col(columns.of["item"]).is_null()
    kept = frame if len(shape.separator) > 1 else frame.filter(~blank)
    return _table(kept, str(path), columns, first_line=1 + skip, may_be_integers=BOTH)


def _is_recbole(path: Path) -> bool:
    """RecBole's files quote nothing."""
    return ".inter" in path.suffixes


def _scan_user_lines(path: Path, reading: Reading) -> Table:
    """One line a user: its items behind its id, or behind their number (then the user is the line, from 0)."""
    if reading.named() or reading.min_rating is not None or reading.time_format is not None:
        raise ConfigError(
            f"{path}: a file with one line a user has no columns to name. Try {option('format', 'table')}"
        )
    lines = [line for line in first_lines(path) if line.strip()]
    separator = reading.separator or (" " if any(" " in line for line in lines) else "\t")
    rows = [line.split(separator) for line in lines]
    counted = reading.format == "counted-lines" or (
        reading.format == "auto" and all(row[0] == str(len(row) - 1) for row in rows)
    )
    pieces = pl.col("line").str.strip_chars().str.split(separator)
    frame = _scan_lines(path).filter(pl.col("line").is_not_null())
    if counted:
        _refuse_wrong_counts(path, frame, pieces)
    first = pl.col(ROW).cast(pl.String) if counted else pieces.list.first()
    items = frame.select(pl.col(ROW).alias("row"), user=first, item=pieces.list.slice(1))
    exploded = items.filter(pl.col("item").list.len() > 0).explode("item")
    return Table(exploded, str(path), first_line=1, may_be_integers=BOTH, users_are_lines=counted)


def _refuse_wrong_counts(path: Path, frame: pl.LazyFrame, pieces: pl.Expr) -> None:
    length = (pieces.list.len().cast(pl.Int64) - 1).cast(pl.String)
    wrong = frame.filter(pieces.list.first() != length).bottom_k(1, by=ROW).collect(engine="streaming")
    if len(wrong):
        row, line = wrong.row(0)
        raise DataError(
            f"{path}:{row + 1}: expected the number of items and then the items, found {line[:80]!r}. "
            f"If the lines begin with the user's id, say {option('format', 'user-lines')}"
        )


def _scan_json_lines(path: Path, reading: Reading) -> Table:
    """Ids keep the kind that the first line gives them: numbers are read as text, then become integers again."""
    lines = [line for line in first_lines(path) if line.strip()]
    line = lines[0]
    try:
        first = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:1: not JSON ({error.msg}), found {line[:80]!r}. Expected one object a line") from None
    if not isinstance(first, dict):
        raise DataError(f"{path}:1: expected a JSON object with a user and an item, found {line[:80]!r}")
    keys = dict.fromkeys(key for text in lines for key in _keys(text))
    columns = choose_columns(list(keys), reading, f"{path}:1")
    ids = {role: first.get(columns.of[role]) for role in ("user", "item")}
    for role, found in ids.items():
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise DataError(f"{path}:1: the {role} id is {found!r}; expected a string or an integer")
    schema = dict.fromkeys(columns.of.values(), pl.String)
    frame = pl.scan_ndjson(escape(str(path)), schema=schema, row_index_name=ROW)
    numbers = frozenset(role for role, found in ids.items() if not isinstance(found, str))
    return _table(frame, str(path), columns, first_line=1, may_be_integers=numbers)


def _keys(text: str) -> list[str]:
    """The keys of one line of JSON, none if it is broken (it is found when all are read)."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return []
    return list(found) if isinstance(found, dict) else []


def _scan_parquet(path: Path, reading: Reading) -> Table:
    frame = pl.scan_parquet(path, row_index_name=ROW, glob=False)
    if not frame.select(pl.len()).collect().item():
        raise EmptyFileError(f"{path}: holds no interaction. Expected a user and an item a row")
    columns = choose_columns(frame.drop(ROW).collect_schema().names(), reading, str(path))
    return _table(frame, str(path), columns)


SCANNERS: dict[str, Callable[[Path, Reading], Table]] = {
    "auto": _scan_text_table,
    "table": _scan_text_table,
    "parquet": _scan_parquet,
    "jsonl": _scan_json_lines,
    "user-lines": _scan_user_lines,
    "counted-lines": _scan_user_lines,
}


def scan_file(path: Path, reading: Reading) -> Table:
    """A file as a table, its format told by its name unless the reading says it."""
    refuse_no_file(path, f" For the files in it give a pattern, such as '{path / '*.csv'}'")
    if path.stat().st_size == 0:
        raise EmptyFileError(f"{path}: the file is empty. Expected one interaction a line, such as 'user_id,item_id'")
    return SCANNERS[format_of(path, reading)](path, reading)


def format_of(path: Path, reading: Reading) -> Format:
    """The format that the reading says, else the one that the name tells, else `auto`: a text to be looked at."""
    if reading.format != "auto":
        return reading.format
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return SUFFIXES.get(suffixes[-1], "auto") if suffixes else "auto"


def scan_object(log: Any, reading: Reading) -> Table:
    """A polars, pandas or Arrow frame, a sparse matrix, or a pair of arrays, as a table."""
    if sparse.issparse(log):
        cells = log.tocoo()
        rows, columns = cells.coords
        log = pl.DataFrame({"user_id": rows, "item_id": columns, "count": np.asarray(cells.data, np.float64)})
        log = log.filter(pl.col("count") != 0)
    elif isinstance(log, tuple):
        if len(log) != 2 or len(log[0]) != len(log[1]):
            raise DataError("expected a pair of arrays of one length, (users, items)")
        log = pl.DataFrame({"user_id": np.asarray(log[0]), "item_id": np.asarray(log[1])}, strict=False)
    elif not isinstance(log, pl.LazyFrame | pl.DataFrame):
        if not hasattr(log, "__arrow_c_stream__"):
            raise DataError(
                f"cannot read interactions from {type(log).__name__}; expected a file, a catalogue name, a polars, "
                "pandas or Arrow frame, a scipy sparse matrix, or a pair of arrays (users, items)"
            )
        log = pl.DataFrame(log)
    frame = log.lazy()
    name = f"the {type(log).__name__}"
    columns = choose_columns(frame.collect_schema().names(), reading, name)
    return _table(frame.with_row_index(ROW), name, columns)
