"""Ids that callers give: where they stand in the run, and what becomes of those that it does not have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.errors import ConfigError, DataError, note
from concf.inference.ranker import Places

Id = int | str | np.integer[Any]
UserIds = Id | Iterable[Id]  # one, or several: a list, an array, a column of a frame
ItemIds = Id | Iterable[Id]
ItemsByUser = ItemIds | Mapping[Any, ItemIds]  # for everyone, or by user
Histories = ItemIds | Mapping[Any, ItemIds]  # one user's, or several by name
UnknownUsers = Literal["raise", "popular"]
UnknownItems = Literal["ignore", "error"]
NAMED = 5  # unknown items that a note names


class ItemLookup:
    """Where the items of one call stand. Those that the run does not have are refused, or left out and reported."""

    def __init__(self, ids: Ids, unknown: UnknownItems) -> None:
        if unknown not in ("ignore", "error"):
            raise ConfigError(f"unknown_items = {unknown!r}: choose ignore or error")
        self.ids, self.unknown = ids, unknown
        self._left_out: dict[str, list[Any]] = {}
        self._given: dict[str, int] = {}

    def places(self, items: ItemIds, argument: str) -> Places:
        """[n] the position of each item, -1 of one that is left out."""
        asked = as_array(items)
        places = positions(self.ids, asked)
        strangers = asked[places < 0].tolist()
        if strangers and self.unknown == "error":
            raise DataError(
                f"{argument}: no item is called {strangers[0]!r} in the log (its ids are {kind_in_words(self.ids)}), "
                "or a filter left it out"
            )
        self._left_out.setdefault(argument, []).extend(strangers)
        self._given[argument] = self._given.get(argument, 0) + len(asked)
        return places

    def known(self, items: ItemIds, argument: str) -> Places:
        """The positions of the items that the run has."""
        places = self.places(items, argument)
        return places[places >= 0]

    def by_user(
        self, users: NDArray[Any], items: ItemsByUser | None, argument: str
    ) -> Places | dict[Any, Places] | None:
        """The same of a list for everyone, or of the lists of those users who have one."""
        if items is None:
            return None
        if not isinstance(items, Mapping):
            return self.known(items, argument)
        return {user: self.known(items[user], argument) for user in users.tolist() if user in items}

    def report(self) -> None:
        """Note what was left out, once for each argument."""
        for argument, strangers in self._left_out.items():
            names = list(dict.fromkeys(map(repr, strangers)))
            if names:
                more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
                note(
                    f"{argument}: {len(strangers)} of {self._given[argument]} items are not in the log, or a filter "
                    f"left them out; they are ignored: {', '.join(names[:NAMED])}{more}"
                )


def is_one(value: Any) -> bool:
    """Whether it is an id, not several."""
    return isinstance(value, str) or not hasattr(value, "__iter__")


def as_array(ids: UserIds) -> NDArray[Any]:
    """[n] one id or several, each as it was given."""
    several = [ids] if is_one(ids) else list(ids)  # type: ignore[arg-type]
    asked = np.empty(len(several), object)
    asked[:] = several
    return asked


def is_integer(value: Any) -> bool:
    """Whether it can be an id of a log of integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def kind_in_words(ids: Ids) -> str:
    """For messages."""
    return "integers" if ids.are_integers else "text"


def positions(ids: Ids, asked: NDArray[Any]) -> Places:
    """[n] where the asked ids stand, -1 where they do not; a number and its text are not the same id."""
    fits = int if ids.are_integers else str
    known = np.array([is_integer(each) if fits is int else isinstance(each, str) for each in asked.tolist()], bool)
    places = np.full(len(asked), -1, np.int64)
    if known.any():
        wanted = np.array([fits(value) for value in asked[known]], ids.values.dtype)
        at = np.searchsorted(ids.values, wanted).clip(max=len(ids) - 1)
        places[known] = np.where(ids.values[at] == wanted, at, -1)
    return places


def place_of(ids: Ids, asked: Any) -> int:
    """Where one id stands, -1 if it does not."""
    if not (is_integer(asked) if ids.are_integers else isinstance(asked, str)):
        return -1
    at = bisect_left(ids.values, asked)
    return at if at < len(ids) and ids.values[at] == asked else -1


def named(ids: Ids, places: NDArray[np.int32]) -> NDArray[Any]:
    """[b, k] the caller's ids; -1, or None for text, at an empty place."""
    found: NDArray[Any] = ids.values[np.maximum(places, 0)]
    found[places < 0] = -1 if ids.are_integers else None
    return found
