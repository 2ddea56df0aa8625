"""From the tables of a log to interactions: checked, their ids put in order, repeats merged."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import MAX_ID_BYTES
from concf.data.interactions import Interactions
from concf.data.reading.census import FirstLook, Numbered, number, suspicious
from concf.data.reading.explain import explain
from concf.data.reading.heaps import Heaps
from concf.data.reading.logs import files_of, scan_files
from concf.data.reading.scan import Reading, Table, scan_file, scan_object
from concf.data.reading.sniff import EmptyFileError
from concf.data.reading.typed import ID_ROLES, UNCLEAR_DATE, typed
from concf.errors import DataError, note, option
from concf.runtime.progress import working

LOOK_ROWS = 1 << 22  # that the streaming engine hands over at a time, in the first pass
BATCH_ROWS = 1 << 20  # and in the second


@dataclass(frozen=True)
class Fault:
    """Something no row may have: when it holds, in which column, what is wrong and what to do."""

    column: str
    when: pl.Expr
    what: str
    fix: str


def read(log: Any, reading: Reading | None = None) -> Interactions:
    """The interactions of a file, of many (a glob, a list), of a frame, a sparse matrix or a pair of arrays.

    Files are gone through twice by Polars' streaming engine: once for the ids and the checks, once for the
    pairs. The rows themselves are never held all at once.
    """
    reading = reading or Reading()
    paths = files_of(log)
    if paths is None:
        try:
            return collect([scan_object(log, reading)], reading)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DataError(
                f"the {type(log).__name__} cannot be read ({reason}). Expected a user and an item a row"
            ) from error
    with working(f"reading {paths[0].name if len(paths) == 1 else f'{len(paths)} files'}"):
        return _read_files(paths, reading)


def _read_files(paths: list[Path], reading: Reading) -> Interactions:
    try:
        return collect(scan_files(paths, reading), reading)
    except (pl.exceptions.PolarsError, OSError, EOFError) as error:
        raise explain(_culprit(paths, reading), reading, error) from error


def _culprit(paths: list[Path], reading: Reading) -> Path:
    """The first file that cannot be gone through alone, else the last."""
    for path in paths[:-1]:
        try:
            scan_file(path, reading).frame.select(pl.all().null_count()).collect(engine="streaming")
        except EmptyFileError:
            continue
        except (pl.exceptions.PolarsError, OSError, EOFError):
            return path
    return paths[-1]


def collect(tables: list[Table], reading: Reading) -> Interactions:
    """Check the tables, number their ids in ascending order, merge repeats, sort by user and item."""
    frames, spelt = typed(tables, reading.time_format)
    liked = pl.lit(True) if reading.min_rating is None else pl.col("rating") >= reading.min_rating
    faults, look = _faults(frames[0], reading.time_format), FirstLook(ID_ROLES)
    fault = pl.coalesce(pl.when(each.when).then(pl.lit(k, pl.Int8)) for k, each in enumerate(faults))
    for frame, table in zip(frames, tables, strict=True):
        _go_through(frame.select(*ID_ROLES, fault=fault, liked=liked), look.add, LOOK_ROWS)
        if look.faults:
            raise _report(frame, table, faults[min(look.faults)], reading)
    if not look.n_liked:
        rated = f" rated {reading.min_rating:g} or more" if look.n_rows and reading.min_rating else ""
        raise DataError(f"{_name(tables)}: holds no interaction{rated}. Expected a user and an item a row")
    found = {role: look.ids[role].total() for role in ID_ROLES}
    _note_doubts(tables, found)
    users, items = (number(found[role], role in spelt) for role in ID_ROLES)
    return Interactions(users.ids, items.ids, **_pairs([frame.filter(liked) for frame in frames], users, items))


def _go_through(rows: pl.LazyFrame, take: Callable[[pl.DataFrame], None], batch: int) -> None:
    """Hand all rows over, `batch` of them at a time and in any order.

    One file at a time: of several in one query the streaming engine would read all ahead.
    """
    rows.sink_batches(take, chunk_size=batch, maintain_order=False, engine="streaming")


def _pairs(liked: list[pl.LazyFrame], users: Numbered, items: Numbered) -> dict[str, NDArray[Any]]:
    """user, item, count[, timestamp]: the distinct pairs, sorted."""
    schema, n_items = liked[0].collect_schema(), len(items.ids)
    further = [name for name in ("count", "timestamp") if name in schema]
    kinds = [(name, np.float64 if schema[name].is_float() else np.int64) for name in further]
    columns: dict[str, NDArray[Any]] = {}
    with Heaps(users.rows, n_items, np.dtype([("cell", np.int64), *kinds])) as heaps:

        def take(batch: pl.DataFrame) -> None:
            user, item, *others = (column.to_numpy() for column in batch)
            cell = users.places(user) * n_items + items.places(item)  # one key sorts faster than two
            heaps.add({"cell": cell, **dict(zip(further, others, strict=True))})

        for frame in liked:
            _go_through(frame.select(users.key, items.key, *further), take, BATCH_ROWS)
        for merged in heaps.merged():
            user, item = np.divmod(merged.pop("cell"), n_items)
            merged |= {"user": user.astype(np.int32), "item": item.astype(np.int32)}
            for name, piece in merged.items():
                _append(columns.setdefault(name, np.empty(0, piece.dtype)), piece)
    return columns


def _append(column: NDArray[Any], piece: NDArray[Any]) -> None:
    """Lengthen an array where it lies: to join pieces in the end would take the memory twice."""
    begin = len(column)
    column.resize(begin + len(piece), refcheck=False)
    column[begin:] = piece


def _name(tables: list[Table]) -> str:
    return tables[0].name if len(tables) == 1 else f"{tables[0].name} and {len(tables) - 1} more"


def _note_doubts(tables: list[Table], found: dict[str, pl.DataFrame]) -> None:
    """Say what is read as it stands and may be meant otherwise. found: role -> the census of its ids."""
    ignored = next((table.ignored_rating for table in tables if table.ignored_rating is not None), None)
    if ignored is not None:
        note(
            f"{_name(tables)}: column {ignored!r} is not looked at: every row counts as positive, whatever its rating. "
            f"Say {option('min_rating', 4)} to keep rows rated 4 or more, {option('rating', 'none')} if all are meant"
        )
    for role, census in found.items():
        doubtful = suspicious(census)
        if doubtful:
            rows = ", ".join(f"{name!r} in {rows:,} row{'s' * (rows != 1)}" for name, rows in doubtful.items())
            note(f"{_name(tables)}: the {role} id is {rows}. It is read as an id; if it stands for none, drop the rows")


def _faults(frame: pl.LazyFrame, time_format: str | None) -> list[Fault]:
    schema = frame.collect_schema()
    faults = []
    for role in ID_ROLES:
        column = pl.col(role)
        absent = column.is_null() | (column == "") if schema[role] == pl.String else column.is_null()
        faults.append(Fault(role, absent, f"no {role} id", "Every row needs a user and an item."))
        if schema[role] == pl.String:
            long = column.str.len_bytes() > MAX_ID_BYTES
            what = f"the {role} id is longer than {MAX_ID_BYTES} bytes"
            faults.append(Fault(role, long, what, "Use shorter ids, or another column."))
    if "count" in schema:
        count = pl.col("count")
        bad_count = count.is_null() | ~count.is_finite() | (count < 0)
        leave_out = f"drop the row, or leave the column out with {option('count', 'none')}"
        fix = f"Counts are numbers, 0 or more; {leave_out}"
        faults.append(Fault("count", bad_count, "not a count", fix))
    if "rating" in schema:
        bad_rating = pl.col("rating").is_null() | pl.col("rating").is_nan()
        faults.append(Fault("rating", bad_rating, "not a rating", "Ratings are numbers; drop the row"))
    if "timestamp" in schema:
        time = pl.col("timestamp")
        bad_time = time.is_null() | time.is_nan() if schema["timestamp"].is_float() else time.is_null()
        expected = f"of the form {time_format!r}" if time_format else "numbers or ISO 8601"
        leave_out = f"drop the row, or leave the column out with {option('timestamp', 'none')}"
        fix = f"Times are {expected} ({option('time_format')} says another form); {leave_out}"
        faults.append(Fault("timestamp", bad_time, "not a time", fix))
    return faults


def _report(frame: pl.LazyFrame, table: Table, fault: Fault, reading: Reading) -> DataError:
    """The error for a fault that some row has: the first such row, and what the source holds there."""
    row = frame.filter(fault.when).select(pl.col("row").min()).collect(engine="streaming").item()
    source = table.frame.filter(pl.col("row") == row).drop("row").head(1).collect(engine="streaming")
    values = source.row(0, named=True)
    found = {name: str(value)[:60] if value is not None else None for name, value in values.items()}
    what, fix = _closer(fault, values[fault.column], reading)
    column = table.columns.get(fault.column, fault.column)
    text = table.first_line is not None and fault.column in ID_ROLES
    separator = f" Is the separator another one? Give it with {option('separator')}" if text else ""
    return DataError(f"{table.where(row)}: column {column!r}: {what}, found {found}. {fix}{separator}")


def _closer(fault: Fault, value: object, reading: Reading) -> tuple[str, str]:
    """What is wrong and what to do, more closely where the value shows it."""
    unclear = isinstance(value, str) and re.match(UNCLEAR_DATE, value) is not None
    if fault.column == "timestamp" and unclear and reading.time_format is None:
        forms = f"{option('time_format', '%d/%m/%Y')} or {option('time_format', '%m/%d/%Y')}"
        return "ambiguous, the day or the month first", f"Say which, such as {forms}, or write ISO 8601"
    if fault.column in ID_ROLES and isinstance(value, int):  # an integer, but not one of 64 bits with a sign
        return f"the {fault.column} id is above 2^63 - 1", "Cast the column to strings"
    return fault.what, fault.fix
