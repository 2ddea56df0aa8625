"""Ranked lists that others made: a user, an item and a score or a rank a row, in a file of any size or in a frame.

Rows go through in batches, and of each user only the best are held, so that a file may be larger than memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids
from concf.data.interactions import Interactions
from concf.data.reading.cast import plain_ids
from concf.data.reading.files import UNREADABLE
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import Reading, Table, scan_file
from concf.data.reading.sniff import ROLES
from concf.errors import DataError, note

SCORES = ("score", "prediction", "relevance", "predicted_score", "rating")
LIST_ROLES = {role: ROLES[role] for role in ("user", "item")} | {"score": SCORES, "rank": ("rank", "position")}
BATCH_ROWS = 1 << 18  # that go through together ...
HELD_ROWS = 1 << 23  # ... and that are held before all but the best of each user are dropped
SIDES = ("user", "item")


class ListReading(Reading):
    """How to read lists. A column that is not named is found by its usual names."""

    score: str | None = None
    rank: str | None = None

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """What a column may be -> the usual names of such a column."""
        return LIST_ROLES

    @property
    def takes_lines(self) -> bool:
        """A line is never a user with its items."""
        return False

    def how_to_name(self, role: str) -> str:
        """What to do where no column is one of a role."""
        return f"Rename it to {role}"


class Lists(NamedTuple):
    """The best items of each user of a log.

    items:  [users, k] int32 positions, best first, -1 where a list is shorter
    scores: [users, k] float32, 0 or more, descending: of scores what they are above the lowest of all, as a share of
            the largest, of ranks 1 / log2(1 + rank)
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]


def read_lists(source: Any, name: str, log: Interactions, seen: csr_array, k: int) -> Lists:
    """The lists of a voter, at most k items a user, equals by the lower position of the item.

    source: a file or a frame; name: of the voter, for messages; log: whose ids they have; seen: [users, items] what is
    left out of them. Notes and errors say what was found.
    """
    try:
        return _read(source, name, log, seen, k)
    except UNREADABLE as error:
        reason = str(error).strip().partition("\n")[0]
        what = source if isinstance(source, str | Path) else f"the {type(source).__name__}"
        raise DataError(
            f"voter {name!r}: {what}: cannot be read ({reason}). Expected CSV, Parquet or JSON lines"
        ) from None


def _read(source: Any, name: str, log: Interactions, seen: csr_array, k: int) -> Lists:
    is_file = isinstance(source, str | Path)
    table = scan_file(Path(source), ListReading()) if is_file else scan_object(source, ListReading())
    where = f"voter {name!r}: {table.name}"
    kind = next((role for role in ("score", "rank") if role in table.columns), None)
    if kind is None:
        raise DataError(
            f"{where}: no column of scores or ranks; found {', '.join(table.columns.values())}. Name it score (higher "
            "is better) or rank (from 1), in a header line"
        )
    best = _Best(log.n_users, log.n_items, k, seen, ascending=kind == "rank")
    ids = {side: _positions(getattr(log, f"{side}_ids"), side) for side in SIDES}
    rows = _known(table.frame, ids, kind)
    rows.sink_batches(best.add, chunk_size=BATCH_ROWS, maintain_order=False, engine="streaming")
    _refuse(best, table, where, kind)
    lists = best.lists()
    _note(best, lists, where, log)
    return lists


def _positions(ids: Ids, side: str) -> pl.LazyFrame:
    """side, at: every id of the log and its position."""
    kind = pl.Int64 if ids.are_integers else pl.String
    return pl.LazyFrame(
        {side: pl.Series(ids.values.tolist(), dtype=kind), f"at_{side}": pl.int_range(len(ids), eager=True)}
    )


def _known(frame: pl.LazyFrame, ids: dict[str, pl.LazyFrame], kind: str) -> pl.LazyFrame:
    """row, user_written, item_written, at_user, at_item, value: null where an id is not of the log, or no number."""
    kinds = frame.collect_schema()
    written = {f"{side}_written": _plain(plain_ids(side, kinds[side]), kinds[side]) for side in SIDES}
    named = {side: written[f"{side}_written"].cast(ids[side].collect_schema()[side], strict=False) for side in SIDES}
    rows = frame.select("row", **named, **written, value=pl.col(kind).cast(pl.Float64, strict=False))
    for side in SIDES:
        rows = rows.join(ids[side], on=side, how="left")
    return rows.select("row", *written, "at_user", "at_item", "value")


def _plain(ids: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Ids of a type that can be cast to the log's. Whole numbers may be floats, as pandas makes them; 4.4 is no id."""
    if kind.is_float():
        return (
            pl.when(ids == ids.floor())
            .then(ids.cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(ids.cast(pl.String))
        )
    return ids.cast(pl.String) if isinstance(kind, pl.Categorical | pl.Enum) else ids


class _Best:
    """The best k rows of each user so far, and what was seen on the way.

    ascending: whether lower values are better
    """

    def __init__(self, n_users: int, n_items: int, k: int, seen: csr_array, *, ascending: bool) -> None:
        self.shape, self.n_items, self.k, self.ascending = (n_users, k), n_items, k, ascending
        rows = np.repeat(np.arange(n_users), np.diff(seen.indptr))
        self.seen = np.sort(rows * np.int64(n_items) + seen.indices)
        self.held: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        self.unknown: dict[str, list[pl.Series]] = {side: [] for side in SIDES}
        self.rows = self.of_both = self.not_finite = self.used = self.repeated = self.pending = 0
        self.no_number: int | None = None  # the first row whose value is none
        self.fractional: int | None = None  # the first row whose value is below 0 or no integer
        self.lowest, self.highest = np.inf, -np.inf

    def add(self, batch: pl.DataFrame) -> None:
        """Take rows in any order."""
        self.rows += len(batch)
        for side, unknown in self.unknown.items():
            unknown.append(batch.filter(pl.col(f"at_{side}").is_null())[f"{side}_written"].unique())
            if len(unknown) > 64:
                unknown[:] = [pl.concat(unknown).unique()]
        bad = pl.col("value").is_null()
        self.no_number = _first(self.no_number, batch.filter(bad))
        whole = (pl.col("value") >= 0) & (pl.col("value") == pl.col("value").floor())
        self.fractional = _first(self.fractional, batch.filter(pl.col("value").is_finite() & ~whole))
        batch = batch.filter(~bad & pl.col("at_user").is_not_null() & pl.col("at_item").is_not_null())
        self.of_both += len(batch)
        finite = batch.filter(pl.col("value").is_finite())
        self.not_finite += len(batch) - len(finite)
        cell = finite["at_user"].to_numpy() * np.int64(self.n_items) + finite["at_item"].to_numpy()
        value = finite["value"].to_numpy()
        self.lowest, self.highest = (
            min(self.lowest, value.min(initial=np.inf)),
            max(self.highest, value.max(initial=-np.inf)),
        )
        place = np.searchsorted(self.seen, cell).clip(max=max(len(self.seen) - 1, 0))
        fresh = self.seen[place] != cell if len(self.seen) else np.ones(len(cell), bool)
        self.used += int((~fresh).sum())
        self.held.append((cell[fresh], value[fresh] if self.ascending else -value[fresh]))
        self.pending += int(fresh.sum())
        if self.pending > HELD_ROWS:
            self._drop()

    def _drop(self) -> None:
        """All but the best k rows of each user; of a pair that is there twice the better one."""
        cell, value = (np.concatenate([each[part] for each in self.held]) for part in (0, 1))
        order = np.lexsort((value, cell))
        cell, value = cell[order], value[order]
        first = np.r_[True, cell[1:] != cell[:-1]][: len(cell)]
        self.repeated += int((~first).sum())
        cell, value = cell[first], value[first]
        user = cell // self.n_items
        order = np.lexsort((value, user))  # which keeps equals by position
        cell, value, user = cell[order], value[order], user[order]
        kept = _place(user) < self.k
        self.held = [(cell[kept], value[kept])]
        self.pending = 0

    def lists(self) -> Lists:
        """What is left."""
        self._drop()
        cell, value = self.held[0]
        user, item = np.divmod(cell, self.n_items)
        place = _place(user)
        items, scores = np.full(self.shape, -1, np.int32), np.zeros(self.shape, np.float32)
        items[user, place] = item
        largest = max(abs(self.lowest), abs(self.highest)) or 1.0  # so that no score is too large for 32 bits
        scores[user, place] = 1 / np.log2(place + 2) if self.ascending else -value / largest - self.lowest / largest
        return Lists(items, scores)

    def strangers(self, side: str) -> int:
        """How many ids of a side are not of the log."""
        return pl.concat(self.unknown[side]).n_unique()


def _place(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] how many rows of the same user come before, of rows that are sorted by user."""
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]][: len(user)])
    return np.arange(len(user)) - np.repeat(first, np.diff(first, append=len(user)))


def _first(before: int | None, rows: pl.DataFrame) -> int | None:
    found = rows["row"].to_numpy().min() if len(rows) else None
    return min((int(each) for each in (before, found) if each is not None), default=None)


def _refuse(best: _Best, table: Table, where: str, kind: str) -> None:
    """Refuse what cannot vote."""
    column = table.columns[kind]

    def row(number: int) -> str:
        return where.replace(table.name, table.where(number))

    if not best.rows:
        raise DataError(f"{where}: has no rows. Expected a user, an item and a {kind} in each")
    if best.no_number is not None:
        raise DataError(f"{row(best.no_number)}: its {kind} (column {column!r}) is missing or no number")
    if not best.of_both:
        raise DataError(
            f"{where}: nothing in common with the log: {best.strangers('user'):,} of its users and "
            f"{best.strangers('item'):,} of its items are not in it. Write ids as they are in the log"
        )
    if kind == "rank" and best.fractional is not None:
        raise DataError(f"{row(best.fractional)}: a rank is 0, 1, 2 ... Is {column!r} a score? Name it score")
    if best.of_both == best.not_finite:
        raise DataError(f"{where}: every {kind} is infinite or not a number (NaN), so that it ranks nothing")
    if kind == "score" and best.lowest == best.highest and best.of_both - best.not_finite > 1:
        raise DataError(
            f"{where}: every score is {best.lowest:g}, so that it ranks nothing. Give scores that differ, or ranks"
        )


def _note(best: _Best, lists: Lists, where: str, log: Interactions) -> None:
    """Say what is left out, and of whom nothing is known."""
    strangers = {side: best.strangers(side) for side in SIDES}
    if any(strangers.values()):
        left, users, items = best.rows - best.of_both, strangers["user"], strangers["item"]
        found = f"{users:,} users and {items:,} items are not in the log"
        note(f"{where}: {left:,} of {best.rows:,} rows are left out: {found}")
    counts = {
        "infinite or not a number (NaN)": best.not_finite, "repeated, of which the best is taken": best.repeated,
        "of pairs that were learned from, which are not recommended": best.used,
    }  # fmt: skip
    for what, count in counts.items():
        if count:
            note(f"{where}: {count:,} rows are left out: {what}")
    listed = int((lists.items[:, 0] >= 0).sum())
    if not listed:
        raise DataError(f"{where}: nothing is left of it: it lists only pairs that were learned from")
    if listed < log.n_users / 2:
        note(f"{where}: it lists items for only {listed:,} of {log.n_users:,} users, and votes for them alone")
