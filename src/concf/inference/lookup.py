"""Positions of the ids that a caller gives. Unknown items are ignored and reported; a single one is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Required, TypeAlias, cast
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # which the service's documents need before Python 3.12

from concf.data.ids import Ids
from concf.data.reading.times import When, in_unit_of
from concf.errors import ConfigError, DataError, note

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    Column: TypeAlias = "Iterable[Id] | NDArray[Any] | pl.Series | pd.Series[Any] | pa.Array | pa.ChunkedArray"
    OneOrMany: TypeAlias = "Id | Column"
    Users: TypeAlias = "OneOrMany | None"  # None: everyone
    ByUser: TypeAlias = "Mapping[int, OneOrMany] | Mapping[str, OneOrMany] | Mapping[UUID, OneOrMany]"
    ItemsByUser: TypeAlias = "OneOrMany | ByUser"  # for everyone, or by user
    Events: TypeAlias = "OneOrMany | Iterable[Id | Event]"  # of one user, oldest first
    EventsByUser: TypeAlias = "Mapping[int, Events] | Mapping[str, Events] | Mapping[UUID, Events]"

Id = int | str | np.integer[Any] | UUID
Positions = NDArray[np.int64]
Short = tuple[NDArray[Any], NDArray[np.float32]]  # one user's item positions, best first, and their scores
UnknownUsers = Literal["raise", "popular"]
NAMED = 5  # unknown items named by a warning
LEAST_WEIGHT = 1e-6  # least weight of an item of a history; the largest is its inverse
NONE: Positions = np.empty(0, np.int64)


class Event(TypedDict, total=False):
    """An item of a history. time: a date, or a time in the log's unit; weight: 1 for an average interaction"""

    item: Required[Id]
    time: When | None
    weight: float


class History(NamedTuple):
    """One user's items: [n] positions, ascending; [n] times in the log's unit; [n] weights."""

    items: Positions
    times: NDArray[np.float64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, items: Positions) -> History:
        """Make a set of items at one time, each with weight 1."""
        return cls(items, np.zeros(len(items)), np.ones(len(items), np.float32))

    def then(self, later: History) -> History:
        """Append another history; of a repeated item its first event counts, as in a log."""
        times = np.concatenate([self.times, later.times])
        order = np.argsort(times, kind="stable")
        items, first = np.unique(np.concatenate([self.items, later.items])[order], return_index=True)
        return History(items, times[order][first], np.concatenate([self.weights, later.weights])[order][first])


class ItemLookup:
    """Positions of the items of one call. Unknown items are ignored and reported."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self._given: dict[str, int] = {}
        self._unknown: dict[str, list[Any]] = {}

    def positions(self, items: OneOrMany, argument: str) -> Positions:
        """[n] positions of the items, -1 for an unknown one."""
        given = as_array(items)
        positions = np.array([self.ids.place(item) for item in given.tolist()], np.int64)
        self._unknown.setdefault(argument, []).extend(given[positions < 0].tolist())
        self._given[argument] = self._given.get(argument, 0) + len(given)
        return positions

    def known(self, items: OneOrMany, argument: str) -> Positions:
        """Positions of the known items."""
        positions = self.positions(items, argument)
        return positions[positions >= 0]

    def history(self, events: Events, newest: float | None, now: float = 0.0) -> History:
        """Known items of a user's events. Without times they follow one another after the log; a Python set is one set.

        newest: newest time of the log, whose unit times have; None: times are ignored. now: used if it is later
        """
        rows = as_events(events)
        given = [each.get("time") for each in rows]
        if len({time is None for time in given}) > 1:
            raise ConfigError("history: some items have a time and others have none. Give each a time, or none")
        order = np.zeros(len(rows)) if isinstance(events, set | frozenset) else np.arange(len(rows))
        now = max(newest or 0.0, now)
        times = now + 2 * abs(np.spacing(now)) * (1 + order)
        if newest is not None and given and given[0] is not None:
            times = np.array([in_unit_of(newest, cast(When, time), f"history: time {time!r}") for time in given])
        items = self.positions([each["item"] for each in rows], "history")
        weights, known = np.array([each.get("weight", 1.0) for each in rows], np.float32), items >= 0
        return History(items[known], times[known], weights[known])

    def by_user(
        self, users: NDArray[Any], items: ItemsByUser | None, argument: str
    ) -> Positions | dict[Any, Positions] | None:
        """Positions of the known items for everyone, or by user for the users who have a list."""
        if items is None:
            return None
        if not isinstance(items, Mapping):
            return self.known(items, argument)
        lists: Mapping[Any, OneOrMany] = {plain(user): own for user, own in items.items()}
        return {user: self.known(lists[user], argument) for user in users.tolist() if user in lists}

    def report(self) -> None:
        """Warn of unknown items, once for each argument."""
        for argument, unknown in self._unknown.items():
            names = list(dict.fromkeys(map(repr, unknown)))
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                count = f"{argument}: {len(unknown)} of {self._given[argument]} items"
                note(f"{count} are unknown or filtered out, and ignored: {', '.join(names[:NAMED])}{more}")


def is_one(ids: object) -> bool:
    """Return whether `ids` is a single id."""
    return isinstance(ids, str | bytes) or not hasattr(ids, "__iter__")


def plain(one: Any) -> Any:
    """Return an id as in a log: a UUID becomes its text; bytes are an error."""
    if isinstance(one, bytes):
        raise DataError(f"{one!r} is of type bytes; ids are integers or text. Decode it: {one!r}.decode()")
    return str(one) if isinstance(one, UUID) else one


def as_array(ids: OneOrMany) -> NDArray[Any]:
    """[n] one id or several, as an array of Python objects."""
    to_list = getattr(ids, "to_pylist", None)  # Arrow's columns iterate over scalars of their own
    several = [ids] if is_one(ids) else to_list() if to_list else list(cast("Iterable[Id]", ids))
    array = np.empty(len(several), object)
    array[:] = [plain(each) for each in several]
    return array


def as_events(events: Events) -> list[Event]:
    """[n] one item or several, with or without time and weight."""
    several = [events] if isinstance(events, Mapping) else as_array(cast("OneOrMany", events)).tolist()
    rows = [cast(Event, each) if isinstance(each, Mapping) else Event(item=each) for each in several]
    for each in rows:
        weight = each.get("weight", 1.0)
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        fits = number and LEAST_WEIGHT <= weight <= 1 / LEAST_WEIGHT
        if "item" not in each or each.keys() - Event.__annotations__ or not fits:
            form = "{'item': id, 'time': date or number, 'weight': number from 1e-6 to 1e6}"
            raise ConfigError(f"history: found {each!r:.100}; expected an item, or {form}; item alone is needed")
    return rows


def kind_in_words(ids: Ids) -> str:
    """Type of the ids, for messages."""
    return "integers" if ids.are_integers else "text"


def item_index(ids: Ids, item: Any, argument: str) -> int:
    """Return the position of a single item; an unknown one is an error."""
    index = ids.place(plain(item))
    if index < 0:
        where = f"the log (its ids are {kind_in_words(ids)}), or a filter left it out"
        raise DataError(f"{argument}: no item is called {item!r} in {where}")
    return index


def user_rows(ids: Ids, names: NDArray[Any], unknown: UnknownUsers = "raise") -> Positions:
    """[n] positions of the users; an unknown user is an error, or -1 if unknown users get popular items."""
    if names is ids.values:
        return np.arange(len(names))
    rows = np.array([ids.place(each) for each in names.tolist()], np.int64)
    if unknown == "raise" and (rows < 0).any():
        where = f"in the log (its ids are {kind_in_words(ids)})"
        fix = "With --popular, in Python rules=concf.Rules(unknown='popular'), unknown users get the most popular items"
        raise DataError(f"no user is called {names[rows < 0][0]!r} {where}. {fix}")
    return rows


def hidden_items(
    names: list[Any], seen: list[Positions], allow: Positions | dict[Any, Positions] | None,
    deny: Positions | dict[Any, Positions] | None, n_items: int,
) -> tuple[list[Positions], Positions | None]:  # fmt: skip
    """Return the hidden items of each user, and the items allowed to at least one user (None: all).

    names, seen: users, and the items that each has seen; allow, deny: items for everyone, or by user
    """

    def listed(items: Positions | dict[Any, Positions] | None, user: Any) -> Positions:
        return items.get(user, NONE) if isinstance(items, dict) else NONE if items is None else items

    hidden = [np.concatenate([own, listed(deny, name)]) for own, name in zip(seen, names, strict=True)]
    if allow is None:
        return hidden, None
    allowed = np.zeros(n_items, bool)
    for row, name in enumerate(names):
        mask = np.ones(n_items, bool)
        mask[listed(allow, name)] = False
        allowed |= ~mask
        mask[hidden[row]] = True
        hidden[row] = np.flatnonzero(mask)
    return hidden, np.flatnonzero(allowed)
