"""Read ranked lists of other models: rows of a user, an item and a score or a rank, in a file of any size or a frame.

Rows are read in batches and only the best of each user are held, so that a file may be larger than memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.interactions import SIDES, Interactions
from concf.data.reading.cast import plain_ids
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import UNREADABLE, Reading, Table, scan_file
from concf.data.reading.sniff import ROLES, first_line
from concf.errors import DataError, note

SCORES = ("score", "prediction", "relevance", "predicted_score", "rating")
LIST_ROLES = {role: ROLES[role] for role in SIDES} | {"score": SCORES, "rank": ("rank", "position")}
BATCH_ROWS = 1 << 18
HELD_ROWS = 1 << 23  # rows held before all but the best of each user are dropped


class ListReading(Reading):
    """Settings for reading lists. A column that is not named is found by its usual names."""

    roles: ClassVar[dict[str, tuple[str, ...]]] = LIST_ROLES
    is_log: ClassVar[bool] = False

    score: str | None = None
    rank: str | None = None


class Lists(NamedTuple):
    """Best items of each user of a log.

    items:  [users, k] int32 positions, best first, -1 where a list is shorter
    scores: [users, k] float32, 0 or more, descending: (score - lowest of all) / largest absolute score, or for ranks
            1 / log2(1 + rank)
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]


def read_lists(source: Any, name: str, log: Interactions, seen: csr_array, k: int) -> Lists:
    """Read the lists of a voter, at most k items a user; ties go to the lower position of the item.

    source: a file or a frame; name: of the voter, for messages; log: whose ids the lists have; seen: [users, items]
    pairs to leave out
    """
    is_file = isinstance(source, str | Path)
    try:
        table = scan_file(Path(source), ListReading()) if is_file else scan_object(source, ListReading())
        where = f"voter {name!r}: {table.name}"
        kind = next((role for role in ("score", "rank") if role in table.columns), None)
        if kind is None:
            found = ", ".join(table.columns.values())
            raise DataError(f"{where}: no column score (higher is better) or rank (from 1) beside {found}. Add one")
        best = _Best(log.n_users, log.n_items, k, seen, ascending=kind == "rank")
        rows = _with_positions(table.frame, log, kind)
        rows.sink_batches(best.add, chunk_size=BATCH_ROWS, maintain_order=False, engine="streaming")
    except UNREADABLE as error:
        problem = f"{source if is_file else f'the {type(source).__name__}'}: cannot be read ({first_line(error)})"
        raise DataError(f"voter {name!r}: {problem}. Expected CSV, Parquet or JSON lines") from None
    _check(best, table, where, kind)
    lists = best.lists()
    _note_losses(best, lists, where)
    return lists


def _with_positions(frame: pl.LazyFrame, log: Interactions, kind: str) -> pl.LazyFrame:
    """row, user, item, at_user, at_item, value: a position is null for an unknown id, the value if it is no number."""
    schema = frame.collect_schema()
    plain = {side: _plain(plain_ids(side, schema[side]), schema[side]) for side in SIDES}
    rows = frame.select("row", **plain, value=pl.col(kind).cast(pl.Float64, strict=False))
    for side in SIDES:
        ids = getattr(log, f"{side}_ids")
        known = pl.Series("key", ids.values.tolist(), dtype=pl.Int64 if ids.are_integers else pl.String)
        positions = pl.LazyFrame([known, pl.int_range(len(ids), eager=True).alias(f"at_{side}")])
        keyed = rows.with_columns(key=pl.col(side).cast(known.dtype, strict=False))
        rows = keyed.join(positions, on="key", how="left").drop("key")
    return rows


def _plain(ids: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Cast ids to a type that can be cast to the log's. Whole numbers may be floats, as in pandas; 4.4 is no id."""
    if dtype.is_float():
        whole = ids.cast(pl.Int64, strict=False).cast(pl.String)
        return pl.when(ids == ids.floor()).then(whole).otherwise(ids.cast(pl.String))
    return ids.cast(pl.String) if isinstance(dtype, pl.Categorical | pl.Enum) else ids


class _Best:
    """Best k rows of each user so far, and counts of the rows that are left out.

    ascending: whether lower values are better
    """

    def __init__(self, n_users: int, n_items: int, k: int, seen: csr_array, *, ascending: bool) -> None:
        self.shape, self.n_items, self.ascending = (n_users, k), n_items, ascending
        users = np.repeat(np.arange(n_users), np.diff(seen.indptr))
        self.seen = pl.DataFrame({"cell": users * np.int64(n_items) + seen.indices})
        self.held: list[pl.DataFrame] = []  # cell, value; lower values are better
        self.unknown = {side: pl.Series(dtype=pl.Null) for side in SIDES}
        self.n_rows = self.n_known = self.n_finite = self.n_seen = self.n_repeated = self.n_held = 0
        self.no_number: int | None = None  # first row whose value is not a number
        self.no_rank: int | None = None  # first row whose value is negative or not an integer
        self.lowest, self.highest = np.inf, -np.inf

    def add(self, batch: pl.DataFrame) -> None:
        """Add rows in any order."""
        self.n_rows += len(batch)
        for side, unknown in self.unknown.items():
            more = batch.filter(pl.col(f"at_{side}").is_null())[side].unique()
            self.unknown[side] = pl.concat([unknown.cast(more.dtype), more]).unique()
        value = pl.col("value")
        no_rank = value.is_finite() & ((value < 0) | (value != value.floor()))
        self.no_number = _first_row(self.no_number, batch.filter(value.is_null()))
        self.no_rank = _first_row(self.no_rank, batch.filter(no_rank))
        known = batch.drop_nulls(["value", "at_user", "at_item"])
        finite = known.filter(value.is_finite())
        self.n_known += len(known)
        self.n_finite += len(finite)
        self.lowest = min(self.lowest, finite["value"].to_numpy().min(initial=np.inf))
        self.highest = max(self.highest, finite["value"].to_numpy().max(initial=-np.inf))
        cell = pl.col("at_user").cast(pl.Int64) * self.n_items + pl.col("at_item")
        ranked = finite.select(cell=cell, value=value if self.ascending else -value)
        fresh = ranked.join(self.seen, on="cell", how="anti")
        self.n_seen += len(finite) - len(fresh)
        self.n_held += len(fresh)
        self.held.append(fresh)
        if self.n_held > HELD_ROWS:
            self._reduce()

    def _reduce(self) -> None:
        """Keep the best k rows of each user, and the better row of a repeated pair; ties go to the lower item."""
        rows = pl.concat(self.held).sort("value", "cell")
        best = rows.unique("cell", keep="first", maintain_order=True)
        self.n_repeated += len(rows) - len(best)
        ranked = best.with_columns(rank=pl.int_range(pl.len()).over(pl.col("cell") // self.n_items))
        self.best = ranked.filter(pl.col("rank") < self.shape[1])
        self.held, self.n_held = [self.best.drop("rank")], 0

    def lists(self) -> Lists:
        """Return the lists of all rows."""
        self._reduce()
        cell, value, rank = (column.to_numpy() for column in self.best)
        user, item = np.divmod(cell, self.n_items)
        items, scores = np.full(self.shape, -1, np.int32), np.zeros(self.shape, np.float32)
        items[user, rank] = item
        largest = max(abs(self.lowest), abs(self.highest)) or 1.0  # so that no score is too large for 32 bits
        scores[user, rank] = 1 / np.log2(rank + 2) if self.ascending else -value / largest - self.lowest / largest
        return Lists(items, scores)


def _first_row(before: int | None, rows: pl.DataFrame) -> int | None:
    return min([*rows["row"], *([] if before is None else [before])], default=None)


def _check(best: _Best, table: Table, where: str, kind: str) -> None:
    """Refuse lists that cannot vote."""
    column, row = table.columns[kind], None
    if not best.n_rows:
        problem = f"has no rows. Expected a user, an item and a {kind} in each"
    elif best.no_number is not None:
        problem, row = f"its {kind} (column {column!r}) is missing or no number", best.no_number
    elif not best.n_known:
        users, items = map(len, best.unknown.values())
        problem = f"nothing in common with the log: {users:,} users and {items:,} items are not in it. Are ids alike?"
    elif kind == "rank" and best.no_rank is not None:
        problem, row = f"a rank is 0, 1, 2 ... Is {column!r} a score? Name it score", best.no_rank
    elif not best.n_finite:
        problem = f"every {kind} is infinite or not a number (NaN), so that it ranks nothing"
    elif kind == "score" and best.lowest == best.highest and best.n_finite > 1:
        problem = f"every score is {best.lowest:g}, so that it ranks nothing. Give scores that differ, or ranks"
    else:
        return
    raise DataError(f"{where if row is None else where.replace(table.name, table.where(row))}: {problem}")


def _note_losses(best: _Best, lists: Lists, where: str) -> None:
    """Note rows that are left out, and lists for few users."""
    users, items = map(len, best.unknown.values())
    counts = {
        f"{users:,} users and {items:,} items are not in the log": best.n_rows - best.n_known,
        "infinite or not a number (NaN)": best.n_known - best.n_finite,
        "repeated, of which the best is taken": best.n_repeated,
        "of pairs that were learned from, which are not recommended": best.n_seen,
    }
    for what, count in counts.items():
        if count:
            note(f"{where}: {count:,} of {best.n_rows:,} rows are left out: {what}")
    n_users, listed = len(lists.items), int((lists.items[:, 0] >= 0).sum())
    if not listed:
        raise DataError(f"{where}: nothing is left of it: it lists only pairs that were learned from")
    if listed < n_users / 2:
        note(f"{where}: it lists items for only {listed:,} of {n_users:,} users, and votes for them alone")
