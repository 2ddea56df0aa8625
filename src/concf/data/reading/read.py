"""Read a log: check its rows, number its ids in ascending order, merge repeated pairs."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.data.interactions import Dislikes, Interactions
from concf.data.reading.cast import bad_row, cast, row_checks
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import ID_ROLES, UNREADABLE, Reading, Table, files_of, scan_files, unreadable
from concf.data.reading.sniff import first_line
from concf.data.reading.times import EARLIEST, LATEST, TICKS
from concf.errors import DataError, note, option
from concf.runtime.progress import working

FIRST_PASS_ROWS = 1 << 22  # per batch of the streaming engine
SECOND_PASS_ROWS = 1 << 20
PENDING_IDS = 1 << 23  # ids counted by batch before they are added up
BUCKET_ROWS = 1 << 22  # rows that are sorted at once
MAX_BUCKETS = 1024
NO_ID = ("nan", "null", "none")  # text that other programs write, in any case, for a missing id
Records = NDArray[np.void]
DAY = 86_400  # seconds by which a log's clock may be ahead
NEAR_1970 = 30 * DAY  # smaller numbers are hardly times


def read(log: Any, reading: Reading | None = None) -> Interactions:
    """Read the interactions of a file, of many (a glob, a list), of a frame, a matrix or tuples.

    Polars' streaming engine reads files twice, for the ids and the checks and then for the pairs, so that the rows are
    never in memory all at once.
    """
    reading = reading or Reading()
    paths = files_of(log)
    if paths is None:
        try:
            return _interactions([scan_object(log, reading)], reading)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            problem = f"the {type(log).__name__} cannot be read ({first_line(error)})"
            raise DataError(f"{problem}. Expected a user and an item per row") from error
    with working(f"reading {paths[0].name if len(paths) == 1 else f'{len(paths)} files'}"):
        try:
            return _interactions(scan_files(paths, reading), reading)
        except UNREADABLE as error:
            raise unreadable(paths, reading, error) from error


def columns_of(log: Any, reading: Reading | None = None) -> dict[str, str]:
    """Map roles to the columns of a file, the first of many, or an object."""
    files, reading = files_of(log), reading or Reading()
    return (scan_object(log, reading) if files is None else scan_files(files, reading)[0]).columns


def _interactions(tables: list[Table], reading: Reading) -> Interactions:
    frames, text_integers = cast(tables, reading.time_format)
    positive = pl.lit(True) if reading.likes_from is None else pl.col("rating") >= reading.likes_from
    counts = _first_pass(frames, tables, positive, reading)
    if counts.times is not None:
        checked = check_times(frames, tables, *counts.times, drop=reading.bad_times == "drop")
        if checked is not frames:
            frames, counts = checked, _first_pass(checked, tables, positive, reading)
    if not counts.n_positive:
        rated = f" rated {reading.likes_from:g} or more" if counts.n_rows and reading.likes_from else ""
        raise DataError(f"{_name(tables)}: contains no interactions{rated}. Expected a user and an item per row")
    totals = {role: counts.total(role) for role in ID_ROLES}
    _note_doubts(tables, totals)
    (user_ids, users), (item_ids, items) = (_numbered(totals[role], role in text_integers) for role in ID_ROLES)
    pairs = _pairs([frame.filter(positive) for frame in frames], users, items)
    interactions = Interactions(user_ids, item_ids, **pairs, dislikes=None)
    if reading.dislike_below is None:
        return interactions
    disliked = [frame.filter(pl.col("rating") < reading.dislike_below) for frame in frames]
    for ids, role in ((users, "user"), (items, "item")):  # other users and items are unknown
        disliked = [frame.join(ids.lazy(), on=role, how="semi") for frame in disliked]
    pairs = _pairs(disliked, users, items)
    dislikes = pairs and Dislikes(pairs["user"], pairs["item"], pairs.get("timestamp"))
    return interactions.disliking(dislikes) if dislikes else interactions


def _first_pass(frames: list[pl.LazyFrame], tables: list[Table], positive: pl.Expr, reading: Reading) -> IdCounts:
    """Count the ids of all files; a row that fails a check is refused."""
    schema, counts = frames[0].collect_schema(), IdCounts()
    checks = list(row_checks(schema, reading.time_format))
    failed = pl.coalesce(pl.when(check.bad).then(pl.lit(k, pl.Int8)) for k, check in enumerate(checks))
    columns = [name for name in (*ID_ROLES, "timestamp") if name in schema]
    for frame, table in zip(frames, tables, strict=True):
        rows = frame.select(*columns, failed=failed, positive=positive)  # of one file: of several, it would read ahead
        rows.sink_batches(counts.add, chunk_size=FIRST_PASS_ROWS, maintain_order=False, engine="streaming")
        if counts.failed:
            raise bad_row(frame, table, checks[min(counts.failed)], reading.time_format)
    return counts


class IdCounts:
    """First pass over a log: rows per id, indices of the checks that some row fails, and the range of the times.

    Memory grows with the ids and not with the rows; Polars' streaming group_by would hold nearly every row.
    """

    def __init__(self) -> None:
        self.pending: dict[str, list[pl.DataFrame]] = {role: [] for role in ID_ROLES}
        self.n_pending = self.n_rows = self.n_positive = 0
        self.failed: set[int] = set()
        self.times: tuple[float, float] | None = None  # the oldest and the newest

    def add(self, batch: pl.DataFrame) -> None:
        """Count rows: user, item[, timestamp], failed (index of a check, or null), positive (if an interaction)."""
        self.failed.update(batch["failed"].drop_nulls().unique())
        if "timestamp" in batch.columns and batch["timestamp"].count():
            times = [batch["timestamp"].min(), batch["timestamp"].max(), *(self.times or ())]
            self.times = min(times), max(times)
        rows = batch.filter("positive")
        self.n_rows += len(batch)
        self.n_positive += len(rows)
        for role, pending in self.pending.items():
            pending.append(rows.group_by(role).agg(rows=pl.len().cast(pl.Int64)))
            self.n_pending += len(pending[-1])
        if self.n_pending > PENDING_IDS:
            self.pending = {role: [self.total(role)] for role in ID_ROLES}
            self.n_pending = 0

    def total(self, role: str) -> pl.DataFrame:
        """(role, rows): every id once, in no order."""
        return pl.concat(self.pending[role]).group_by(role).agg(pl.col("rows").sum())


def _numbered(counts: pl.DataFrame, may_be_integers: bool) -> tuple[Ids, pl.DataFrame]:
    """Sort the ids; also return (role, rows, position) for each, to join the log with.

    Text ids become integers if all of them are integers in their plain form: 7, but not 007.
    """
    ids = counts.to_series(0)
    if may_be_integers and ids.dtype == pl.String:
        integers = ids.cast(pl.Int64, strict=False)
        ids = integers if (integers.cast(pl.String) == ids).fill_null(False).all() else ids
    order = ids.arg_sort()
    ascending = ids.gather(order)
    values = ascending.to_numpy() if ascending.dtype == pl.Int64 else np.array(ascending.to_list(), object)
    return Ids(values), counts[order].with_columns(position=pl.int_range(pl.len()))


def _pairs(frames: list[pl.LazyFrame], users: pl.DataFrame, items: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """user, item, count[, timestamp[, last]]: the distinct pairs, sorted; no `last` if no pair has a later time."""
    schema, n_items = frames[0].collect_schema(), len(items)
    others = [name for name in ("count", "timestamp") if name in schema]
    dtypes = [(name, np.float64 if schema[name].is_float() else np.int64) for name in others]
    cell = pl.col("position") * n_items + pl.col("position_item")  # one key sorts faster than two
    columns: dict[str, NDArray[Any]] = {}
    buckets = PairBuckets(users["rows"].to_numpy(), n_items, np.dtype([("cell", np.int64), *dtypes]))
    for frame in frames:
        with_user = frame.join(users.lazy().drop("rows"), on="user", how="left")
        with_both = with_user.join(items.lazy().drop("rows"), on="item", how="left", suffix="_item")
        rows = with_both.select(*others, cell=cell)
        rows.sink_batches(buckets.add, chunk_size=SECOND_PASS_ROWS, maintain_order=False, engine="streaming")
    for merged in buckets.merged():
        user, item = np.divmod(merged.pop("cell"), n_items)
        merged |= {"user": user.astype(np.int32), "item": item.astype(np.int32)}
        for name, part in merged.items():  # in place: to concatenate in the end would need twice the memory
            column = columns.setdefault(name, np.empty(0, part.dtype))
            column.resize(len(column) + len(part), refcheck=False)
            column[-len(part) :] = part
    if "last" in columns and np.array_equal(columns["last"], columns["timestamp"]):
        del columns["last"]
    return columns


def _name(tables: Sequence[Table]) -> str:
    return tables[0].name if len(tables) == 1 else f"{tables[0].name} and {len(tables) - 1} more"


def _note_doubts(tables: list[Table], totals: dict[str, pl.DataFrame]) -> None:
    """Note an ignored rating, and ids that may be missing values. totals: role -> (id, rows)"""
    ignored = [table.ignored_rating for table in tables if table.ignored_rating is not None]
    if ignored:
        fix = f"{option('min_rating', 4)} keeps rows rated 4 or more, {option('rating', 'none')} keeps all"
        note(f"{_name(tables)}: column {ignored[0]!r} is ignored: every row counts as positive. {fix}")
    for role, ids in totals.items():
        doubtful = ids.filter(pl.col(role).cast(pl.String).str.to_lowercase().is_in(NO_ID)).sort(role).rows()
        if doubtful:
            shown = ", ".join(f"{name!r} in {rows:,} rows" for name, rows in doubtful)
            note(f"{_name(tables)}: the {role} id is {shown}. It is read as an id; if it means no id, drop the rows")


def check_times(
    frames: list[pl.LazyFrame], tables: Sequence[Table], oldest: float, newest: float, drop: bool
) -> list[pl.LazyFrame]:
    """Refuse rows with bad times or, with `drop`, return the frames without them; frames, tables: one per file.

    If at least half of the times above 0 are since 1970 in a unit of `TICKS`, a row is bad if its time is 0 or below,
    in the future, or in another unit than the commonest. Other logs have times of their own, such as positions, and
    stay as they are.

    oldest, newest: of all rows; if these two are good, so are the others, and nothing is read
    """
    latest = clock.time() + DAY
    if newest < EARLIEST or any(EARLIEST * ticks <= oldest <= newest <= latest * ticks for ticks in TICKS):
        return frames
    when = pl.col("timestamp")
    times = pl.concat([frame.select("timestamp") for frame in frames])
    counts = {"positive": (when > 0).sum()} | {str(ticks): _in_unit(ticks).sum() for ticks in TICKS}
    n_positive, *per_unit = times.select(**counts).collect(engine="streaming").row(0)
    if 2 * sum(per_unit) < n_positive:
        return frames
    ticks = TICKS[per_unit.index(max(per_unit))]
    early = (when > NEAR_1970 * ticks) & (when < EARLIEST * ticks) & ~pl.any_horizontal(map(_in_unit, TICKS))
    bad = ~(_in_unit(ticks) | early) | (when > latest * ticks)
    n_bad, example = 0, ""
    for frame, table in zip(frames, tables, strict=True):
        n_rows, row = frame.filter(bad).select(pl.len(), pl.min("row")).collect(engine="streaming").row(0)
        n_bad += n_rows
        if n_rows and not example:
            source = table.frame.filter(pl.col("row") == row).select("timestamp").head(1).collect(engine="streaming")
            example = f"{table.where(row)} = {source.item()}"
    if not n_bad:
        return frames
    causes = "0, negative, in the future, or in another unit than most"
    found = f"{_name(tables)}: column {tables[0].columns['timestamp']!r}: {n_bad:,} bad times"
    if not drop:
        fix = f"Correct them, drop the rows: {option('bad_times', 'drop')}, or all times: {option('timestamp', 'none')}"
        raise DataError(f"{found} ({causes}), the first {example}. {fix}")
    note(f"{found}: these rows are dropped ({causes}), the first {example}")
    return [frame.filter(~bad) for frame in frames]


def _in_unit(ticks: int) -> pl.Expr:
    """Whether a time is since 1970 in a unit of which `ticks` make a second."""
    return pl.col("timestamp").is_between(EARLIEST * ticks, LATEST * ticks)


class PairBuckets:
    """Buckets of rows (cell[, count][, timestamp]) of consecutive users.

    A cell is user * n_items + item, so the sorted buckets, one after the other, are the sorted log.
    """

    def __init__(self, rows_per_user: NDArray[np.int64], n_items: int, dtype: np.dtype[np.void]) -> None:
        self.dtype = dtype
        before = np.cumsum(rows_per_user) - rows_per_user
        size = max(BUCKET_ROWS, -(-int(rows_per_user.sum()) // MAX_BUCKETS))
        first_users = np.flatnonzero(np.diff(before // size)) + 1
        self.borders = first_users * n_items  # [buckets - 1] the first cell of each bucket but the first
        self.held: list[list[Records]] = [[] for _ in range(len(self.borders) + 1)]

    def add(self, batch: pl.DataFrame) -> None:
        """Add rows [b] to their buckets. A cell is null if the first pass did not see the id."""
        if batch["cell"].null_count():
            raise DataError("the log was changed while it was read. Read it again when nothing writes to it")
        rows = np.empty(len(batch), self.dtype)
        for name in batch.columns:
            rows[name] = batch[name].to_numpy()
        bucket = np.searchsorted(self.borders, rows["cell"], side="right").astype(np.uint16)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.held)))
        by_bucket = rows[np.argsort(bucket, kind="stable")] if len(self.borders) else rows
        for held, part in zip(self.held, np.split(by_bucket, ends[:-1]), strict=True):
            held.append(part)

    def merged(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield, per bucket, the distinct cells in ascending order, the sum of their counts, first and last times."""
        for held in self.held:
            rows = np.concatenate([np.empty(0, self.dtype), *held])
            held.clear()
            if len(rows):
                yield _merge(rows)


def _merge(rows: Records) -> dict[str, NDArray[Any]]:
    """Merge the rows of each cell. Counts are added in ascending order, so that the order of rows does not matter."""
    names = rows.dtype.names or ()
    counted = "count" in names
    rows = rows[np.lexsort((rows["count"], rows["cell"])) if counted else np.argsort(rows["cell"])]
    starts = np.flatnonzero(np.r_[True, rows["cell"][1:] != rows["cell"][:-1]])
    n_rows = np.diff(starts, append=len(rows)).astype(np.float64)
    merged = {"cell": rows["cell"][starts], "count": np.add.reduceat(rows["count"], starts) if counted else n_rows}
    if "timestamp" in names:
        merged["timestamp"] = np.minimum.reduceat(rows["timestamp"], starts)
        merged["last"] = np.maximum.reduceat(rows["timestamp"], starts)
    return merged
