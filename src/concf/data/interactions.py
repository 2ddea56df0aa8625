"""The interactions of users with items, as readers make them, filters reduce them and protocols split them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids

BLOCK_ROWS = 1 << 22  # rows at a time, where an operation on all would need as much memory as the log


class Dislikes(NamedTuple):
    """Pairs of known users and items that are no interactions, because the user said no.

    user, item: [m] int32 positions; timestamp: [m] their first times, or None
    """

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    timestamp: NDArray[Any] | None = None

    def some(self, rows: NDArray[np.bool_]) -> Dislikes:
        """Those of the mask [m]."""
        return Dislikes(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Interactions:
    """The distinct pairs of a log, sorted by user, then item; every user and item has at least one.

    user, item: [n] int32 positions in `user_ids` and `item_ids`
    count:      [n] float64, the events of the pair (its rows, or the sum of its count column)
    timestamp:  [n] int64 or float64, the *first* time of the pair, or None if the log has no times
    dislikes:   pairs that are none of these, or None if the log says nothing of them
    """

    user_ids: Ids
    item_ids: Ids
    user: NDArray[np.int32]
    item: NDArray[np.int32]
    count: NDArray[np.float64]
    timestamp: NDArray[Any] | None = None
    dislikes: Dislikes | None = None

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

    def keep(self, rows: NDArray[np.bool_]) -> Interactions:
        """Only the pairs of the mask `rows` [n], without the users and items that have none of them."""
        users, user = _renumber(self.user[rows], self.n_users)
        items, item = _renumber(self.item[rows], self.n_items)
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        dislikes = self.dislikes
        if dislikes is not None:
            dislikes = dislikes.some(np.isin(dislikes.user, users) & np.isin(dislikes.item, items))
            places = np.searchsorted(users, dislikes.user), np.searchsorted(items, dislikes.item)
            dislikes = dislikes._replace(user=places[0].astype(np.int32), item=places[1].astype(np.int32))
        return Interactions(
            self.user_ids.take(users), self.item_ids.take(items), user, item, self.count[rows], timestamp, dislikes
        )

    def disliking(self, dislikes: Dislikes) -> Interactions:
        """The same with dislikes, but for those of pairs that are liked, too."""
        liked, pairs = (side.user.astype(np.int64) * self.n_items + side.item for side in (self, dislikes))
        return replace(self, dislikes=dislikes.some(~np.isin(pairs, liked)))

    def of_users(self, users: NDArray[np.int64]) -> Interactions:
        """Only the pairs of the users [m], ascending; every item stays, with the position that it has."""
        there = np.zeros(self.n_users, bool)
        there[users] = True
        place = np.cumsum(there, dtype=np.int32) - 1
        rows = there[self.user]
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        dislikes = self.dislikes
        if dislikes is not None:
            dislikes = dislikes.some(there[dislikes.user])
            dislikes = dislikes._replace(user=place[dislikes.user])
        return Interactions(
            self.user_ids.take(users), self.item_ids, place[self.user[rows]], self.item[rows], self.count[rows],
            timestamp, dislikes,
        )  # fmt: skip

    def fingerprint(self) -> hashlib._Hash:
        """A SHA-256 over ids and pairs (not counts and times), open for more."""
        fingerprint = hashlib.sha256(self.user_ids.digest() + self.item_ids.digest())
        for column in (self.user, self.item):
            fingerprint.update(np.ascontiguousarray(column, "<i4").data)
        return fingerprint

    def statistics(self) -> dict[str, float]:
        """Users, items, distinct pairs, events and density."""
        cells = self.n_users * self.n_items
        dislikes = {} if self.dislikes is None else {"dislikes": len(self.dislikes.user)}
        return {
            "users": self.n_users,
            "items": self.n_items,
            "interactions": len(self),
            "events": int(self.n_events) if self.n_events.is_integer() else self.n_events,
            "density": len(self) / cells if cells else 0.0,
            **dislikes,
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
