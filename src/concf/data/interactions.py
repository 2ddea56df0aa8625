"""Who used what: the record that readers make, filters thin out and splits divide."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids

BLOCK_ROWS = 1 << 22  # looked at together, where a look at all of them would take as much memory as the log


@dataclass(frozen=True, eq=False)
class Interactions:
    """The distinct pairs of a log, sorted by user, then item; every user and item has at least one.

    user, item: [n] int32 positions in `user_ids` and `item_ids`
    count:      [n] float64, the events that were merged into the pair (rows, or the sum of a count column)
    timestamp:  [n] int64 or float64, the *first* time of the pair, or None where the log has no times
    """

    user_ids: Ids
    item_ids: Ids
    user: NDArray[np.int32]
    item: NDArray[np.int32]
    count: NDArray[np.float64]
    timestamp: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.user)

    @property
    def n_users(self) -> int:
        """The number of users."""
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        """The number of items."""
        return len(self.item_ids)

    @property
    def n_events(self) -> float:
        """The number of events before repeats were merged."""
        return float(self.count.sum())

    def per_user(self, *, raw: bool = False, rows: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """[n_users] distinct pairs, or with `raw` all events, of each user; of the mask `rows` [n] alone, if given."""
        return _total(self.user, self.count if raw else None, rows, self.n_users)

    def per_item(self, *, raw: bool = False, rows: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """[n_items] distinct pairs, or with `raw` all events, of each item; of the mask `rows` [n] alone, if given."""
        return _total(self.item, self.count if raw else None, rows, self.n_items)

    def matrix(self, rows: NDArray[np.bool_] | None = None) -> csr_array:
        """[n_users, n_items] float32 ones at the pairs, or at those that the mask `rows` keeps."""
        user, item = (self.user, self.item) if rows is None else (self.user[rows], self.item[rows])
        begins = np.zeros(self.n_users + 1, np.int64)
        np.cumsum(occurrences(user, self.n_users), out=begins[1:])
        ones = np.ones(len(user), np.float32)
        return csr_array((ones, item, begins), shape=(self.n_users, self.n_items))

    def keep(self, rows: NDArray[np.bool_]) -> Interactions:
        """Only the pairs of the mask `rows` [n], without the users and items that are left with none."""
        users, user = _renumber(self.user[rows], self.n_users)
        items, item = _renumber(self.item[rows], self.n_items)
        return Interactions(
            user_ids=self.user_ids.take(users),
            item_ids=self.item_ids.take(items),
            user=user,
            item=item,
            count=self.count[rows],
            timestamp=None if self.timestamp is None else self.timestamp[rows],
        )

    def fingerprint(self) -> hashlib._Hash:
        """A SHA-256 over ids and pairs (not counts and times), open for more."""
        fingerprint = hashlib.sha256(self.user_ids.digest() + self.item_ids.digest())
        for column in (self.user, self.item):
            fingerprint.update(np.ascontiguousarray(column, "<i4").data)
        return fingerprint

    def statistics(self) -> dict[str, float]:
        """The figures of a data set's table: users, items, distinct pairs, events, density."""
        cells = self.n_users * self.n_items
        return {
            "users": self.n_users,
            "items": self.n_items,
            "interactions": len(self),
            "events": int(self.n_events) if self.n_events.is_integer() else self.n_events,
            "density": len(self) / cells if cells else 0.0,
        }


def _renumber(places: NDArray[np.int32], n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The distinct places (of 0 .. n-1), ascending, and [m] where among them each one stands."""
    there = np.zeros(n, bool)
    there[places] = True
    return np.flatnonzero(there), (np.cumsum(there, dtype=np.int32) - 1)[places]


def _total(
    place: NDArray[np.int32], weights: NDArray[np.float64] | None, rows: NDArray[np.bool_] | None, n: int
) -> NDArray[np.float64]:
    """[n] how many, or how much weight, at each place; of the mask `rows` alone, if given."""
    if rows is not None:
        place, weights = place[rows], None if weights is None else weights[rows]
    return (occurrences(place, n) if weights is None else np.bincount(place, weights, minlength=n)).astype(np.float64)


def occurrences(place: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """[n] how often each place occurs. numpy counts a copy of 8 bytes a row, so it is given a block at a time."""
    total = np.zeros(n, np.int64)
    for begin in range(0, len(place), BLOCK_ROWS):
        total += np.bincount(place[begin : begin + BLOCK_ROWS], minlength=n)
    return total
