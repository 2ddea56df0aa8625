"""Interactions of users with items, and filters by minimum counts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from concf.data.ids import Ids
from concf.errors import DataError
from concf.runtime.settings import Settings

BLOCK_ROWS = 1 << 22  # rows of a block in operations that would need as much memory as the log
SIDES = ("user", "item")


class Dislikes(NamedTuple):
    """Dislikes: pairs of known users and items that are negative feedback, not interactions."""

    user: NDArray[np.int32]  # [m] positions
    item: NDArray[np.int32]  # [m]
    timestamp: NDArray[Any] | None = None  # [m] first time of each, or None

    def select(self, rows: NDArray[np.bool_]) -> Dislikes:
        """Select the rows of a mask [m]."""
        return Dislikes(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Interactions:
    """Distinct pairs of a log, sorted by user, then item; every user and item has at least one.

    user, item: [n] int32 positions in `user_ids` and `item_ids`
    count:      [n] float64, the events of the pair (its rows, or the sum of its count column)
    timestamp:  [n] int64 or float64, the *first* time of the pair, or None if the log has no times
    last:       [n] its last time; the array `timestamp` itself if no pair has a later one
    dislikes:   negative feedback, or None if the log has none
    """

    user_ids: Ids
    item_ids: Ids
    user: NDArray[np.int32]
    item: NDArray[np.int32]
    count: NDArray[np.float64]
    timestamp: NDArray[Any] | None = None
    last: NDArray[Any] | None = None
    dislikes: Dislikes | None = None

    def __post_init__(self) -> None:
        if self.timestamp is None or self.last is None:
            object.__setattr__(self, "last", self.timestamp)

    def __len__(self) -> int:
        return len(self.user)

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_ids)

    @property
    def n_events(self) -> float:
        """Number of events before repeats were merged."""
        return float(self.count.sum())

    @property
    def later(self) -> NDArray[Any] | None:
        """[n] last times; None if they equal the first ones, or the log has no times."""
        return None if self.last is self.timestamp else self.last

    @property
    def cells(self) -> NDArray[np.int64]:
        """[n] user * n_items + item, ascending."""
        return self.user.astype(np.int64) * self.n_items + self.item

    def per_user(self, *, raw: bool = False, rows: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """[n_users] pairs, or with `raw` events, per user, counted over the mask `rows` [n] if given."""
        return self._per("user", raw, rows)

    def per_item(self, *, raw: bool = False, rows: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """[n_items] pairs, or with `raw` events, per item, counted over the mask `rows` [n] if given."""
        return self._per("item", raw, rows)

    def _per(self, side: str, raw: bool, rows: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        n, selected = len(getattr(self, f"{side}_ids")), slice(None) if rows is None else rows
        position, count = getattr(self, side)[selected], self.count[selected]
        return (np.bincount(position, count, n) if raw else occurrences(position, n)).astype(np.float64)

    def matrix(self, rows: NDArray[np.bool_] | None = None, weights: NDArray[np.float32] | None = None) -> csr_array:
        """[n_users, n_items] float32 ones, or weights, at the pairs, or at those of the mask `rows` [n]."""
        user, item = (self.user, self.item) if rows is None else (self.user[rows], self.item[rows])
        starts = np.r_[0, np.cumsum(occurrences(user, self.n_users))]
        cells = np.ones(len(user), np.float32) if weights is None else weights
        return csr_array((cells, item, starts), shape=(self.n_users, self.n_items))

    def disliked(self, rows: NDArray[np.bool_] | None = None) -> csr_array:
        """[n_users, n_items] float32 ones at the dislikes, or at those of the mask `rows` [m]."""
        user, item, _ = self.dislikes or Dislikes(np.empty(0, np.int32), np.empty(0, np.int32))
        user, item = (user, item) if rows is None else (user[rows], item[rows])
        return csr_array((np.ones(len(user), np.float32), (user, item)), shape=(self.n_users, self.n_items))

    def keep(self, rows: NDArray[np.bool_], *, all_items: bool = False) -> Interactions:
        """Select the pairs of the mask `rows` [n], with their users and with their items or `all_items`."""
        users, items = np.zeros(self.n_users, bool), np.full(self.n_items, all_items)
        users[self.user[rows]] = items[self.item[rows]] = True
        user_position, item_position = (np.cumsum(kept, dtype=np.int32) - 1 for kept in (users, items))
        timestamp, last = (None if column is None else column[rows] for column in (self.timestamp, self.later))
        dislikes = self.dislikes
        if dislikes is not None:
            dislikes = dislikes.select(users[dislikes.user] & items[dislikes.item])
            dislikes = dislikes._replace(user=user_position[dislikes.user], item=item_position[dislikes.item])
        return Interactions(
            Ids(self.user_ids.values[users]),
            self.item_ids if all_items else Ids(self.item_ids.values[items]),
            user_position[self.user[rows]],
            item_position[self.item[rows]],
            self.count[rows],
            timestamp,
            last,
            dislikes,
        )

    def disliking(self, dislikes: Dislikes) -> Interactions:
        """Return a copy with these dislikes, except for pairs that are interactions."""
        disliked = dislikes.user.astype(np.int64) * self.n_items + dislikes.item
        return replace(self, dislikes=dislikes.select(~np.isin(disliked, self.cells)))

    def with_text_ids(self, side: str) -> Interactions:
        """Convert the integer ids of a side (user, item) to text, and sort everything by their new order."""
        text = np.array([str(one) for one in getattr(self, f"{side}_ids").values.tolist()], dtype=object)
        order = np.argsort(text)
        position = np.argsort(order).astype(np.int32)
        columns = {**vars(self), "last": self.later, f"{side}_ids": Ids(text[order])}
        columns[side] = position[columns[side]]
        if self.dislikes is not None:
            columns["dislikes"] = self.dislikes._replace(**{side: position[getattr(self.dislikes, side)]})
        rows = np.lexsort((columns["item"], columns["user"]))
        for name in ("user", "item", "count", "timestamp", "last"):
            columns[name] = None if columns[name] is None else columns[name][rows]
        return Interactions(**columns)

    def fingerprint(self) -> hashlib._Hash:
        """SHA-256 over ids and pairs (not counts and times), to which the caller may add."""
        fingerprint = hashlib.sha256(self.user_ids.digest() + self.item_ids.digest())
        for column in (self.user, self.item):
            fingerprint.update(np.ascontiguousarray(column, "<i4").data)
        return fingerprint

    def statistics(self) -> dict[str, float]:
        """Users, items, distinct pairs, events and density."""
        cells = self.n_users * self.n_items
        dislikes = {} if self.dislikes is None else {"dislikes": len(self.dislikes.user)}
        return {
            "users": self.n_users, "items": self.n_items, "interactions": len(self),
            "events": int(self.n_events) if self.n_events.is_integer() else self.n_events,
            "density": len(self) / cells if cells else 0.0, **dislikes,
        }  # fmt: skip


def merge(logs: Sequence[Interactions]) -> tuple[Interactions, NDArray[np.int64]]:
    """Merge logs whose ids have the same types: pairs with the sum of their counts, their first and last times.

    Dislikes are merged too, except for pairs that are interactions. Also returns the position of each row's pair:
    [rows of all logs, one after the other].
    """
    ids = [[getattr(log, f"{side}_ids").values for log in logs] for side in SIDES]
    users, items = (Ids(np.unique(np.concatenate(each))) for each in ids)
    positions = [(users.positions(log.user_ids), items.positions(log.item_ids)) for log in logs]
    user, item, pair = _distinct(list(zip(logs, positions, strict=True)), len(items))
    count = np.bincount(pair, np.concatenate([log.count for log in logs])).astype(np.float64)
    first = _reduce(np.minimum, [log.timestamp for log in logs], pair)
    last = _reduce(np.maximum, [log.last for log in logs], pair)
    later = None if first is None or last is None or np.array_equal(first, last) else last
    merged = Interactions(users, items, user, item, count, first, later)
    disliked = [(log.dislikes, at) for log, at in zip(logs, positions, strict=True) if log.dislikes is not None]
    if disliked:
        user, item, cell = _distinct(disliked, len(items))
        times = None if first is None else _reduce(np.minimum, [each.timestamp for each, _ in disliked], cell)
        merged = merged.disliking(Dislikes(user, item, times))
    return merged, pair


def _distinct(
    tables: Sequence[tuple[Any, tuple[NDArray[np.int64], NDArray[np.int64]]]], n_items: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """([n], [n], [rows]) user and item of the distinct pairs, and the pair of each row.

    tables: rows of users and items, and the positions of both in the merged log
    """
    cells = [users[table.user] * n_items + items[table.item] for table, (users, items) in tables]
    distinct, pair = np.unique(np.concatenate(cells), return_inverse=True)
    user, item = (position.astype(np.int32) for position in np.divmod(distinct, n_items))
    return user, item, pair


def _reduce(function: np.ufunc, columns: Sequence[NDArray[Any] | None], pair: NDArray[np.int64]) -> NDArray[Any] | None:
    """[n] least or greatest time of each pair; None if a table has no times. columns: times of each table"""
    times = [column for column in columns if column is not None]
    if len(times) < len(columns):
        return None
    joined = np.concatenate(times)
    reduced = np.empty(pair.max(initial=-1) + 1, joined.dtype)
    reduced[pair] = joined
    function.at(reduced, pair, joined)
    return reduced


def occurrences(positions: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """[n] number of occurrences of each position, counted in blocks because numpy makes an int64 copy."""
    total = np.zeros(n, np.int64)
    for start in range(0, len(positions), BLOCK_ROWS):
        total += np.bincount(positions[start : start + BLOCK_ROWS], minlength=n)
    return total


class Filter(Settings):
    """Keep a pair if its user and its item both have enough interactions.

    Both are counted on the same data, before either removes anything ("one pass"). With `core` the pass is repeated
    until nothing changes, which leaves the k-core.
    """

    min_user: int = Field(0, ge=0)  # users with fewer interactions are removed
    min_item: int = Field(0, ge=0)  # items with fewer interactions are removed
    counts: Literal["raw", "distinct"] = "distinct"  # all events, or each pair once
    core: bool = False  # repeat until nothing changes
    before_test: bool = False  # count and remove only what lies before the test part, which is left alone

    def apply(self, interactions: Interactions) -> Interactions:
        """Return the interactions that remain; an error if there are none."""
        remaining = self.remaining(interactions)
        return interactions if remaining.all() else interactions.keep(remaining)

    def remaining(self, log: Interactions, test: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """[n] whether each pair remains. test: [n] pairs that are neither counted nor removed; None: no pair"""
        raw, counted = self.counts == "raw", np.ones(len(log), bool) if test is None else ~test
        while True:
            per_user, per_item = log.per_user(raw=raw, rows=counted), log.per_item(raw=raw, rows=counted)
            enough = counted & (per_user >= self.min_user)[log.user] & (per_item >= self.min_item)[log.item]
            if not enough.any():
                most = f"at most {per_user.max():g} per user and {per_item.max():g} per item"
                raise DataError(f"the filter ({self.describe()}) leaves nothing of {most}. Lower the minimum counts")
            if not self.core or np.array_equal(counted, enough):
                return enough if test is None else enough | test
            counted = enough

    def describe(self) -> str:
        """Describe the filter in words."""
        passes = "k-core" if self.core else "one pass"
        before = ", before the test part" * self.before_test
        return f"user >= {self.min_user}, item >= {self.min_item}, {self.counts} counts, {passes}{before}"
