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

from concf.data.ids import find
from concf.data.interactions import SIDES, Interactions
from concf.data.reading.cast import first_line, plain_ids
from concf.data.reading.files import UNREADABLE
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import Reading, Table, scan_file
from concf.data.reading.sniff import ROLES
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
            raise DataError(
                f"{where}: no column of scores or ranks; found {', '.join(table.columns.values())}. Name it score "
                "(higher is better) or rank (from 1), in a header line"
            )
        best = _Best(log.n_users, log.n_items, k, seen, ascending=kind == "rank")
        rows = _with_positions(table.frame, log, kind)
        rows.sink_batches(best.add, chunk_size=BATCH_ROWS, maintain_order=False, engine="streaming")
    except UNREADABLE as error:
        what = source if is_file else f"the {type(source).__name__}"
        raise DataError(
            f"voter {name!r}: {what}: cannot be read ({first_line(error)}). Expected CSV, Parquet or JSON lines"
        ) from None
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
        self.seen = np.sort(users * np.int64(n_items) + seen.indices)
        self.held: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []  # (cell, value to be minimised)
        self.unknown: dict[str, pl.Series | None] = dict.fromkeys(SIDES)
        self.n_rows = self.n_known = self.n_finite = self.n_seen = self.n_repeated = self.n_held = 0
        self.no_number: int | None = None  # first row whose value is not a number
        self.no_rank: int | None = None  # first row whose value is negative or not an integer
        self.lowest, self.highest = np.inf, -np.inf

    def add(self, batch: pl.DataFrame) -> None:
        """Add rows in any order."""
        self.n_rows += len(batch)
        for side in SIDES:
            unknown = batch.filter(pl.col(f"at_{side}").is_null())[side].unique()
            before = self.unknown[side]
            self.unknown[side] = unknown if before is None else pl.concat([before, unknown]).unique()
        value = pl.col("value")
        self.no_number = _first_row(self.no_number, batch.filter(value.is_null()))
        self.no_rank = _first_row(
            self.no_rank, batch.filter(value.is_finite() & ((value < 0) | (value != value.floor())))
        )
        known = batch.drop_nulls(["value", "at_user", "at_item"])
        finite = known.filter(value.is_finite())
        self.n_known += len(known)
        self.n_finite += len(finite)
        cell = finite["at_user"].to_numpy() * np.int64(self.n_items) + finite["at_item"].to_numpy()
        values = finite["value"].to_numpy()
        self.lowest = min(self.lowest, values.min(initial=np.inf))
        self.highest = max(self.highest, values.max(initial=-np.inf))
        fresh = find(self.seen, cell) < 0
        self.n_seen += int((~fresh).sum())
        self.held.append((cell[fresh], values[fresh] if self.ascending else -values[fresh]))
        self.n_held += int(fresh.sum())
        if self.n_held > HELD_ROWS:
            self._reduce()

    def _reduce(self) -> None:
        """Keep the best k rows of each user, and the better row of a repeated pair."""
        cell, value = (np.concatenate(column) for column in zip(*self.held, strict=True))
        order = np.lexsort((value, cell))
        cell, value = cell[order], value[order]
        first = np.r_[True, cell[1:] != cell[:-1]][: len(cell)]
        self.n_repeated += int((~first).sum())
        cell, value = cell[first], value[first]
        order = np.lexsort((value, cell // self.n_items))  # stable: ties stay in order of the item
        cell, value = cell[order], value[order]
        kept = _rank(cell // self.n_items) < self.shape[1]
        self.held = [(cell[kept], value[kept])]
        self.n_held = 0

    def lists(self) -> Lists:
        """Return the lists of all rows."""
        self._reduce()
        cell, value = self.held[0]
        user, item = np.divmod(cell, self.n_items)
        rank = _rank(user)
        items, scores = np.full(self.shape, -1, np.int32), np.zeros(self.shape, np.float32)
        items[user, rank] = item
        largest = max(abs(self.lowest), abs(self.highest)) or 1.0  # so that no score is too large for 32 bits
        scores[user, rank] = 1 / np.log2(rank + 2) if self.ascending else -value / largest - self.lowest / largest
        return Lists(items, scores)

    def n_unknown(self, side: str) -> int:
        """Number of ids of a side that are not in the log."""
        unknown = self.unknown[side]
        return 0 if unknown is None else len(unknown)


def _rank(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] rank, from 0, of each row within its user; rows are sorted by user."""
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]][: len(user)])
    return np.arange(len(user)) - np.repeat(first, np.diff(first, append=len(user)))


def _first_row(before: int | None, rows: pl.DataFrame) -> int | None:
    numbers = rows["row"].to_list() + ([] if before is None else [before])
    return min(numbers, default=None)


def _check(best: _Best, table: Table, where: str, kind: str) -> None:
    """Refuse lists that cannot vote."""
    column, bad_rank = table.columns[kind], best.no_rank if kind == "rank" else None
    if not best.n_rows:
        problem = f"has no rows. Expected a user, an item and a {kind} in each"
    elif best.no_number is not None:
        where = where.replace(table.name, table.where(best.no_number))
        problem = f"its {kind} (column {column!r}) is missing or no number"
    elif not best.n_known:
        problem = (
            f"nothing in common with the log: {best.n_unknown('user'):,} of its users and {best.n_unknown('item'):,} "
            "of its items are not in it. Write ids as they are in the log"
        )
    elif bad_rank is not None:
        where = where.replace(table.name, table.where(bad_rank))
        problem = f"a rank is 0, 1, 2 ... Is {column!r} a score? Name it score"
    elif not best.n_finite:
        problem = f"every {kind} is infinite or not a number (NaN), so that it ranks nothing"
    elif kind == "score" and best.lowest == best.highest and best.n_finite > 1:
        problem = f"every score is {best.lowest:g}, so that it ranks nothing. Give scores that differ, or ranks"
    else:
        return
    raise DataError(f"{where}: {problem}")


def _note_losses(best: _Best, lists: Lists, where: str) -> None:
    """Note rows that are left out, and lists for few users."""
    users, items = (best.n_unknown(side) for side in SIDES)
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
