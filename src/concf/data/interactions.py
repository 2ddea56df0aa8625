"""The interactions of users with items, as readers make them, filters reduce them and protocols split them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids

BLOCK_ROWS = 1 << 22  # rows at a time, where an operation on all would need as much memory as the log


@dataclass(frozen=True, eq=False)
class Interactions:
    """The distinct pairs of a log, sorted by user, then item; every user and item has at least one.

    user, item: [n] int32 positions in `user_ids` and `item_ids`
    count:      [n] float64, the events of the pair (its rows, or the sum of its count column)
    timestamp:  [n] int64 or float64, the *first* time of the pair, or None if the log has no times
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
        return self._per(self.user, self.n_users, raw, rows)

    def per_item(self, *, raw: bool = False, rows: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """[n_items] distinct pairs, or with `raw` all events, of each item; of the mask `rows` [n] alone, if given."""
        return self._per(self.item, self.n_items, raw, rows)

    def _per(
        self, position: NDArray[np.int32], n: int, raw: bool, rows: NDArray[np.bool_] | None
    ) -> NDArray[np.float64]:
        position = position if rows is None else position[rows]
        if not raw:
            return occurrences(position, n).astype(np.float64)
        return np.bincount(position, self.count if rows is None else self.count[rows], n).astype(np.float64)

    def matrix(self, rows: NDArray[np.bool_] | None = None) -> csr_array:
        """[n_users, n_items] float32 ones at the pairs, or at those of the mask `rows` [n]."""
        user, item = (self.user, self.item) if rows is None else (self.user[rows], self.item[rows])
        starts = np.r_[0, np.cumsum(occurrences(user, self.n_users))]
        return csr_array((np.ones(len(user), np.float32), item, starts), shape=(self.n_users, self.n_items))

    def keep(self, rows: NDArray[np.bool_]) -> Interactions:
        """Only the pairs of the mask `rows` [n], without the users and items that have none of them."""
        users, user = _renumber(self.user[rows], self.n_users)
        items, item = _renumber(self.item[rows], self.n_items)
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        return Interactions(
            self.user_ids.take(users), self.item_ids.take(items), user, item, self.count[rows], timestamp
        )

    def of_users(self, users: NDArray[np.int64]) -> Interactions:
        """Only the pairs of the users [m], ascending; every item stays, with the position that it has."""
        there = np.zeros(self.n_users, bool)
        there[users] = True
        rows, new = there[self.user], (np.cumsum(there, dtype=np.int32) - 1)[self.user]
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        return Interactions(
            self.user_ids.take(users), self.item_ids, new[rows], self.item[rows], self.count[rows], timestamp
        )

    def fingerprint(self) -> hashlib._Hash:
        """A SHA-256 over ids and pairs (not counts and times), open for more."""
        fingerprint = hashlib.sha256(self.user_ids.digest() + self.item_ids.digest())
        for column in (self.user, self.item):
            fingerprint.update(np.ascontiguousarray(column, "<i4").data)
        return fingerprint

    def statistics(self) -> dict[str, float]:
        """Users, items, distinct pairs, events and density."""
        cells = self.n_users * self.n_items
        return {
            "users": self.n_users,
            "items": self.n_items,
            "interactions": len(self),
            "events": int(self.n_events) if self.n_events.is_integer() else self.n_events,
            "density": len(self) / cells if cells else 0.0,
        }


def _renumber(positions: NDArray[np.int32], n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The distinct positions (of 0 .. n-1), ascending, and [m] the index of each position among them."""
    present = np.zeros(n, bool)
    present[positions] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - 1)[positions]


def occurrences(positions: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """[n] how often each position occurs, counted in blocks because numpy makes an int64 copy."""
    total = np.zeros(n, np.int64)
    for start in range(0, len(positions), BLOCK_ROWS):
        total += np.bincount(positions[start : start + BLOCK_ROWS], minlength=n)
    return total
