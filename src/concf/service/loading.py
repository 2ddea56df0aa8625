"""Load and check the run that is served, and replace it by another without losing a request."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import torch
import typer

from concf.consensus.consensus import CONSENSUS
from concf.data.ids import Ids
from concf.errors import ConcfError, ConcfWarning, DataError
from concf.inference.lookup import kind_in_words, position_of
from concf.inference.recommender import Recommender
from concf.inference.titles import Catalogue
from concf.models import load_run
from concf.service.limits import Limits
from concf.service.problems import Problem
from concf.service.schemas import Id, Reloaded

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one spelling for each: 05 is none
LONGEST = 200  # characters of an id in a message
KEPT_LISTS, KEPT_BYTES = 1 << 13, 1 << 12  # of a run: how many, how long at most


@dataclass(frozen=True, eq=False)
class Served:
    """A run that is ready to answer.

    titles:  item id -> title, of some or none of the items
    attributes: of the items, from the same file
    version: 1 for the first run of the process, one more for each that replaced it
    cache:   objects that depend on this run, such as its explorer
    kept:    (user, by, k) -> list as JSON, a cache of the newest requests
    """

    recommender: Recommender
    folder: Path
    titles: Mapping[Id, str] = field(default_factory=dict)
    version: int = 1
    attributes: Catalogue | None = None
    cache: dict[str, Any] = field(default_factory=dict)
    kept: dict[tuple[Id, str, int], bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.resolve().name

    def keep(self, key: tuple[Id, str, int], answer: bytes) -> None:
        """Cache a list of usual size; evict the oldest if the cache is full."""
        if len(answer) <= KEPT_BYTES:
            if len(self.kept) >= KEPT_LISTS:
                del self.kept[next(iter(self.kept))]
            self.kept[key] = answer

    def user(self, text: str) -> Id:
        """Parse a user id: an integer in a log of integers, if the text is one."""
        return _spelt(self.recommender.user_ids, text)

    def item(self, text: str) -> Id:
        """Parse an item id."""
        return _spelt(self.recommender.item_ids, text)

    def user_index(self, user: Id, where: str) -> int:
        """Return the index of a user; an unknown one is an error."""
        return _index("user", self.recommender.user_ids, user, where)

    def item_index(self, item: Id, where: str) -> int:
        """Return the index of an item; an unknown one is an error."""
        return _index("item", self.recommender.item_ids, item, where)

    def by(self, name: str | None, where: str) -> str:
        """Check the name of a head or consensus; None: the default."""
        return _known(name, self.recommender.default, self.recommender.ranker.names, where)

    def head(self, name: str | None, where: str) -> str:
        """Check the name of a head; None: the best head."""
        return _known(name, self.recommender.run.best_head(), self.recommender.ranker.heads, where)


def _spelt(ids: Ids, text: str) -> int | str:
    return int(text) if ids.are_integers and INTEGER.fullmatch(text) else text


def _index(role: Literal["user", "item"], ids: Ids, wanted: int | str, where: str) -> int:
    index = position_of(ids, wanted)
    if index < 0:
        message = f"no {role} is called {shortened(wanted)} in the prepared log (its ids are {kind_in_words(ids)})"
        raise Problem(404, "unknown_user" if role == "user" else "unknown_item", message, where)
    return index


def _known(name: str | None, default: str, names: list[str], where: str) -> str:
    if name is not None and name not in names:
        message = f"unknown recommender {shortened(name)}; choose from {', '.join(names)}"
        raise Problem(404, "unknown_head", message, where)
    return name or default


def shortened(name: int | str) -> str:
    """Shorten an id for a message. (Python refuses to print an integer of thousands of digits.)"""
    if isinstance(name, int) and abs(name) >= 1 << 64:
        return "an integer of more than 64 bits"
    text = repr(name)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


class Service:
    """Holds the run that is served.

    load: (folder, version) -> the run in a folder, ready; raises a ConcfError that says why it cannot be served
    root: the folder below which a reload over HTTP may name runs; without one it names none
    version, loaded: of the run, and when it was loaded, in seconds since 1970; 0 before the first
    """

    def __init__(
        self, load: Callable[[Path, int], Served], folder: Path, limits: Limits | None = None, root: Path | None = None,
        compared: Path | None = None,
    ) -> None:  # fmt: skip
        self.load, self.folder, self.limits, self.root = load, folder, limits or Limits(), root
        self.compared = compared
        self._compared: Served | None = None
        self.version, self.loaded, self.closing = 0, 0.0, False
        self._loading = threading.Lock()
        self._model: Served | None = None
        self.when_reloaded: Callable[[Path], None] | None = None  # for other workers
        self._turn, self._asked, self._answered = asyncio.Lock(), 0, 0  # reloads, and how many the last load answers
        self._wanted: Path | None = None  # the folder of the last one
        self._outcome: Reloaded | Problem | None = None

    @property
    def model(self) -> Served:
        """The run that is served now. A request reads this once and keeps that run to its end."""
        if self._model is None:
            raise Problem(503, "not_ready", "the run is being loaded; try again in a moment")
        return self._model

    def compared_model(self) -> Served:
        """Return the run of --compare, which is loaded when it is first needed."""
        folder = self.compared
        if folder is None:
            raise Problem(404, "not_found", "this service compares no runs; start it with --compare RUN", "compared")
        with self._loading:
            try:
                self._compared = self._compared or self.load(folder, 0)
            except ConcfError as error:
                raise Problem(409, "refused_run", str(error), str(folder)) from error
            return self._compared

    def reload(self, folder: Path | None = None) -> Served:
        """Serve the run in another folder, or in the same one again; a run that cannot be served is refused.

        One reload at a time, in the caller's thread. The old run answers until the new one is ready.
        """
        with self._loading:
            source = folder or self.folder
            try:
                fresh = self.load(source, self.version + 1)
            except Exception as error:  # whatever is wrong with the new run, the old one stays
                reason = str(error) if isinstance(error, ConcfError) else f"{type(error).__name__}: {error}"
                raise Problem(409, "refused_run", reason, str(source)) from error
            self._model, self.folder, self.version, self.loaded = fresh, source, fresh.version, time.time()
            return fresh

    async def reload_soon(self, folder: Path | None = None, is_own: bool = True) -> Reloaded:
        """Reload in a thread. Requests that arrive during a load share the next one, of the folder named last."""
        if folder is not None:
            try:  # it must be below the root, wherever links lead
                allowed = self.root is not None and folder.resolve().is_relative_to(self.root.resolve())
            except (OSError, ValueError):  # not a valid path
                allowed = False
            if not allowed:
                reason = (
                    "this service was started without --run-root" if self.root is None else f"not below {self.root}"
                )
                raise Problem(409, "refused_run", f"{shortened(str(folder))}: {reason}", "body.run")
        self._asked, self._wanted = self._asked + 1, folder
        request = self._asked
        async with self._turn:
            if self._answered < request:
                if self.closing:
                    raise Problem(503, "not_ready", "the service is shutting down")
                self._answered = self._asked
                load = partial(self.reload_and_say, self._wanted, is_own)
                await anyio.to_thread.run_sync(load, limiter=anyio.CapacityLimiter(1))
            outcome = self._outcome
        if isinstance(outcome, Problem):
            raise outcome
        assert outcome is not None
        return outcome

    def reload_and_say(self, folder: Path | None, is_own: bool = False) -> None:
        """Reload, and print the outcome. is_own: whether other workers should reload too"""
        try:
            served = self.reload(folder)
        except Problem as problem:
            self._outcome = problem
            typer.echo(f"concf: reload refused, still serving the old run: {problem}", err=True)
        else:
            self._outcome = {"run": served.name, "version": served.version}
            typer.echo(f"concf: serving {served.folder}, version {served.version}", err=True)
            if is_own and self.when_reloaded is not None:
                self.when_reloaded(served.folder)


@dataclass(frozen=True)
class Loader:
    """Loads runs. data: the run's data set, if it has moved; catalogue: a file of titles and attributes

    new_items: whether items of the catalogue that the log does not have are recommended
    """

    data: Path | None = None
    catalogue: Catalogue | None = None
    new_items: bool = False

    def __call__(self, folder: Path, version: int) -> Served:
        """The run in a folder, ready."""
        run = load_run(folder, self.data)
        for (
            best
        ) in run.best.values():  # copy what is read from the file when used: an overwritten file ends the process
            best.state = {name: tensor.clone() for name, tensor in best.state.items()}
            best.votes = {name: tensor.clone() for name, tensor in best.votes.items()}
            best.lists = None if best.lists is None else best.lists.clone()
        recommender = Recommender(run, frame="arrays")
        if self.new_items:
            recommender.add_items(self.catalogue)
        _prepare(recommender)
        if self.catalogue is None:
            return Served(recommender, folder, version=version)
        self.catalogue.roles()  # refuses columns that are not there
        titles, note = self.catalogue.read(recommender.item_ids)
        typer.echo(f"note: {note}", err=True)
        attributes = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConcfWarning)  # the note about titles has the counts
                attributes = self.catalogue.joined_to(recommender.item_ids)
        except DataError as error:  # rows that contradict each other
            typer.echo(f"note: rules on attributes are off: {error}", err=True)
        return Served(recommender, folder, titles, version, attributes)


def _prepare(recommender: Recommender) -> None:
    """Compute what all requests share, so that the first does not wait for it; refuse vectors that are not finite."""
    ranker = recommender.ranker
    if not ranker.names:
        raise DataError("the run has no epoch yet; wait for its first validation")
    _ = recommender.viewed, ranker.contributions
    vectors = {name: ranker.factors(name) for name in ranker.heads}
    if CONSENSUS in ranker.names:
        vectors |= {f"{name} at the best epoch of the consensus": each for name, each in ranker.voters.items()}
    for name, factors in vectors.items():
        parts = (factors.user, factors.item, *(() if factors.bias is None else (factors.bias,)))
        if not all(bool(torch.isfinite(part).all()) for part in parts):
            raise DataError(f"the vectors of {name} are not finite: the run diverged. Train it again")
    for name in ranker.names:  # solves for the fold-in of new users
        recommender.recommend(history=[], k=1, by=name)
