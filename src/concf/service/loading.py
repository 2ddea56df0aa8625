"""Load and check the run that a process serves, with its titles and the standing rule."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors import safe_open

from concf.data.ids import Ids
from concf.errors import ConcfError, ConcfWarning, ConfigError, DataError
from concf.inference.lookup import kind_in_words
from concf.inference.rules import AppliedRules, Rules, catalogue_of, matching
from concf.inference.titles import Catalogue
from concf.runtime.files import FIELD
from concf.runtime.settings import read_toml
from concf.service.problems import Problem
from concf.service.schemas import Id

if TYPE_CHECKING:
    from concf.inference.ranker import Ranker
    from concf.inference.recommender import Recommender

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # each has one spelling: 05 is no integer
LOG = logging.getLogger("concf.service")
Mask = NDArray[np.bool_]


class JsonLines(logging.Formatter):
    """Formatter of records as lines of JSON; `extra={"fields": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage(), **getattr(record, "fields", {})}
        return json.dumps(line | ({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}))


def log_as_json() -> None:
    """Write the logs and warnings of all libraries to standard error as lines of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("concf").setLevel(logging.INFO)
    logging.captureWarnings(True)


class Standing:
    """Standing rule: the items that may be shown to anyone, by a file that is read again when it changes.

    path: a TOML file with `exclude`, a list of item ids, and `where`, a condition on the catalogue; both are optional
    """

    def __init__(self, path: Path, ids: Ids, attributes: Catalogue | None) -> None:
        self.path, self.ids, self.attributes = path, ids, attributes
        self._allowed, self._changed = self._read(), path.stat().st_mtime_ns

    def allowed(self) -> Mask:
        """[items] whether an item may be shown. An invalid file changes nothing."""
        changed = self.path.stat().st_mtime_ns if self.path.exists() else 0
        if changed != self._changed:
            self._changed = changed
            try:
                self._allowed = self._read()
            except ConcfError as error:
                LOG.error("the rules stay as they were: %s", error)
        return self._allowed

    def _read(self) -> Mask:
        rule = read_toml(self.path)
        exclude, where = rule.pop("exclude", []), rule.pop("where", None)
        if rule or not isinstance(exclude, list):
            found = [*rule] or exclude
            raise DataError(f"{self.path}: expected exclude = [item ids] and where = 'condition', found {found}")
        mask = np.ones(len(self.ids), bool)
        if where is not None:
            try:
                mask = matching(catalogue_of(self.attributes).attributes(self.ids), where).copy()
            except ConfigError as error:
                raise ConfigError(f"{self.path}: {error}") from None
        indices = {repr(item): self.ids.place(item) for item in exclude}
        if unknown := [item for item, index in indices.items() if index < 0]:
            LOG.warning("%s: items of exclude that the log does not have: %s", self.path, ", ".join(unknown[:20]))
        mask[[index for index in indices.values() if index >= 0]] = False
        if not mask.any():
            raise DataError(f"{self.path}: no item is left to show")
        return mask


@dataclass(frozen=True)
class ServedRules(Rules):
    """Rules of a request and the standing rule. allowed: [items] whether an item may be shown; None: all items"""

    allowed: Mask | None = None

    def applied(self, ranker: Ranker, head: str) -> AppliedRules | None:
        """Apply both to a ranker's items."""
        applied = super().applied(ranker, head)
        if self.allowed is None:
            return applied
        if applied is None:
            applied = AppliedRules(None, [], ranker.directions(head), ranker.popularity.astype(np.float64))
        return replace(applied, shown=self.allowed if applied.shown is None else applied.shown & self.allowed)


@dataclass(frozen=True, eq=False)
class Served:
    """Run that is ready to answer.

    titles: item id -> title, for items that have one; attributes: attributes of the items, from the same file
    run_id: beginning of its checkpoint's SHA-256
    """

    recommender: Recommender
    folder: Path
    titles: Mapping[Id, str] = field(default_factory=dict)
    attributes: Catalogue | None = None
    run_id: str = ""
    standing: Standing | None = None

    def allowed(self) -> Mask | None:
        """[items] whether the standing rule allows an item; None without one."""
        return None if self.standing is None else self.standing.allowed()

    def user(self, text: str) -> Id:
        """Parse a user id: an integer in a log of integers, if the text is one."""
        return _spelt(self.recommender.user_ids, text)

    def known(self, role: Literal["user", "item"], text: str, where: str) -> tuple[Id, int]:
        """Parse an id, and return its index too; an unknown one is a 404."""
        ids = self.recommender.user_ids if role == "user" else self.recommender.item_ids
        wanted = _spelt(ids, text)
        if (index := ids.place(wanted)) < 0:
            raise Problem(404, "unknown_user" if role == "user" else "unknown_item", unknown(role, ids, wanted), where)
        return wanted, index

    def chosen(self, name: str | None, default: str, names: list[str], where: str) -> str:
        """Check the name of a head or consensus; None: the default."""
        if name is not None and name not in names:
            text = f"unknown recommender {name!r:.200}; choose from {', '.join(names)}"
            raise Problem(404, "unknown_head", text, where)
        return name or default


def _spelt(ids: Ids, text: str) -> int | str:
    return int(text) if ids.are_integers and INTEGER.fullmatch(text) else text


def unknown(role: Literal["user", "item"], ids: Ids, wanted: int | str) -> str:
    """Word the error for an unknown id."""
    return f"no {role} is called {wanted!r:.200} in the prepared log (its ids are {kind_in_words(ids)})"


class Loader(BaseModel, frozen=True):
    """Loads runs. data: the run's data set, if it has moved; catalogue: a file of titles and attributes, with the names
    of its columns; new_items: whether items of the catalogue that the log does not have are recommended
    rules: the file of the standing rule
    """

    data: Path | None = None
    catalogue: Path | None = None
    item: str | None = None
    title: str | None = None
    new_items: bool = False
    rules: Path | None = None

    def __call__(self, folder: Path) -> Served:
        """Load the run in a folder, and compute what all requests share; only this imports PyTorch."""
        from concf.inference.recommender import Recommender
        from concf.loading import load_run
        from concf.runs.checkpoint import CHECKPOINT

        run = load_run(folder, self.data)
        run.best = deepcopy(run.best)  # copy what is mapped: a file that is overwritten would end the process
        with safe_open(folder / CHECKPOINT, "pt") as checkpoint:
            run_id = checkpoint.metadata()[FIELD][:16]
        recommender, titles, attributes = Recommender(run, frame="arrays"), dict[Id, str](), None
        catalogue = self.catalogue and Catalogue(self.catalogue, self.item, self.title)
        if catalogue and self.new_items:
            recommender.add_items(catalogue)
        _prepare(recommender)
        ids = recommender.item_ids
        if catalogue:
            titles, note = catalogue.read(ids)
            LOG.info(note)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConcfWarning)  # the note about titles has the counts
                    attributes = catalogue.joined_to(ids)
            except DataError as error:  # rows that contradict each other
                LOG.warning("rules on attributes are off: %s", error)
        standing = None if self.rules is None else Standing(self.rules, ids, attributes)
        return Served(recommender, folder, titles, attributes, run_id, standing)


def _prepare(recommender: Recommender) -> None:
    """Compute what all requests share, so that the first does not wait for it; refuse vectors that are not finite."""
    import torch

    from concf.runs.settings import CONSENSUS

    ranker = recommender.ranker
    if not ranker.names:
        raise DataError("the run has no epoch yet; wait for its first validation")
    vectors = {name: ranker.factors(name) for name in ranker.heads}
    if CONSENSUS in ranker.names:
        vectors |= {f"{name} at the best epoch of the consensus": each for name, each in ranker.voters.items()}
    for name, factors in vectors.items():
        parts = (factors.user, factors.item, *(() if factors.bias is None else (factors.bias,)))
        if not all(bool(torch.isfinite(part).all()) for part in parts):
            raise DataError(f"the vectors of {name} are not finite: the run diverged. Train it again")
    for name in ranker.names:  # solves for the fold-in of new users
        recommender.recommend(history=[], k=1, by=name)
