"""The run that is served now, and how another takes its place without a request being lost."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from concf.data.ids import Ids
from concf.errors import ConcfError
from concf.inference.lookup import place_of
from concf.inference.recommender import Recommender
from concf.service.problems import Kind, Problem

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one spelling for each: 05 is none
LONGEST_SAID = 200  # characters of an id in a message


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    k: places of a list; users: of a batch; history: items of one; body: bytes; in_flight: requests at a time;
    body_seconds: to send the body in
    """

    k: int = 200
    users: int = 1000
    history: int = 10_000
    body: int = 1 << 20
    in_flight: int = 512
    body_seconds: float = 10.0

    def refuse_long_lists(self, k: int, where: str) -> None:
        """Lists of more places than there may be."""
        if k > self.k:
            raise Problem(422, "bad_request", f"k = {k}: lists have at most {self.k} places here", where)

    def refuse_long_history(self, items: int, where: str) -> None:
        """A history of more items than there may be."""
        if items > self.history:
            raise Problem(413, "too_large", f"a history of {items} items; at most {self.history} may be one", where)

    def refuse_many_users(self, users: int, where: str) -> None:
        """A batch of more users than there may be."""
        if users > self.users:
            raise Problem(413, "too_large", f"{users} users; at most {self.users} may be asked for at a time", where)


@dataclass(frozen=True, eq=False)
class Served:
    """A run, ready to be asked.

    titles:  item id -> title, of some or none of them
    version: 1 for the first run of the process, one more with each that took its place
    loaded:  seconds since 1970
    """

    recommender: Recommender
    folder: Path
    titles: Mapping[Any, str] = field(default_factory=dict)
    version: int = 1
    loaded: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """Of the run: its folder's."""
        return self.folder.resolve().name

    def user(self, text: str) -> Any:
        """The id of a user that a text spells: an integer in a log of integers, if it can be one."""
        return spelt(self.recommender.user_ids, text)

    def item(self, text: str) -> Any:
        """The id of an item that a text spells."""
        return spelt(self.recommender.item_ids, text)

    def user_place(self, user: Any, where: str) -> int:
        """Its position; refuses a user whom the log does not have."""
        return _place("user", self.recommender.user_ids, user, where)

    def item_place(self, item: Any, where: str) -> int:
        """Its position; refuses an item that the log does not have."""
        return _place("item", self.recommender.item_ids, item, where)

    def by(self, name: str | None, where: str) -> str:
        """The recommender of that name, or the one that is asked if none is named."""
        return _named(name, self.recommender.default, self.recommender.ranker.names, where)

    def head(self, name: str | None, where: str) -> str:
        """The head of that name, or the best one if none is named."""
        return _named(name, self.recommender.run.best_head(), self.recommender.ranker.heads, where)


def _place(role: Literal["user", "item"], ids: Ids, asked: Any, where: str) -> int:
    place = place_of(ids, asked)
    if place < 0:
        kind = "integers" if ids.are_integers else "text"
        problem: Kind = "unknown_user" if role == "user" else "unknown_item"
        raise Problem(
            404, problem, f"no {role} is called {_short(asked)} in the prepared log (its ids are {kind})", where
        )
    return place


def _named(name: str | None, default: str, names: list[str], where: str) -> str:
    if name is not None and name not in names:
        words = f"nothing is called {_short(name)} in this run; choose from {', '.join(names)}"
        raise Problem(404, "unknown_head", words, where)
    return name or default


def _short(asked: Any) -> str:
    """For a message; an integer of thousands of digits would be refused by Python itself."""
    if isinstance(asked, int) and abs(asked) >= 1 << 64:
        return "an integer of more than 64 bits"
    text = repr(asked)
    return text if len(text) <= LONGEST_SAID else text[:LONGEST_SAID] + "..."


def spelt(ids: Ids, text: str) -> Any:
    """The id that a text spells in such a log."""
    return int(text) if ids.are_integers and INTEGER.fullmatch(text) else text


class Service:
    """Holds the run that is served.

    load: (folder, version) -> the run in a folder, ready; it raises a ConcfError that says why it cannot be served
    """

    def __init__(self, load: Callable[[Path, int], Served], folder: Path, limits: Limits | None = None) -> None:
        self.folder, self.limits = folder, limits or Limits()
        self.closing = False
        self._load, self._loading = load, threading.Lock()
        self._model: Served | None = None
        self.beside: dict[str, Any] = {}  # what is kept about the run that is served, and goes with it

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return self._model is not None and not self.closing

    @property
    def version(self) -> int:
        """Of the run; 0 before the first."""
        return 0 if self._model is None else self._model.version

    @property
    def loaded(self) -> float:
        """When the run was loaded, in seconds since 1970; 0 before the first."""
        return 0.0 if self._model is None else self._model.loaded

    @property
    def model(self) -> Served:
        """The run that is served now. A request takes it once and stays with it to its end."""
        if self._model is None:
            raise Problem(503, "not_ready", "the run is being loaded; ask again in a moment")
        return self._model

    def reload(self, folder: Path | None = None) -> Served:
        """Serve the run in a folder, or the same folder's again; one that cannot be served is refused.

        One at a time, in the caller's thread; requests go on being answered by the old run until the new one is ready.
        """
        with self._loading:
            wanted = folder or self.folder
            try:
                fresh = self._load(wanted, self.version + 1)
            except Exception as error:  # whatever is wrong with it, the old one goes on
                reason = str(error) if isinstance(error, ConcfError) else f"{type(error).__name__}: {error}"
                raise Problem(409, "refused_run", reason, str(wanted)) from error
            self._model, self.folder, self.beside = fresh, wanted, {}
            return fresh
