"""Load and check the run that a process serves."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open

from concf.consensus.consensus import CONSENSUS
from concf.data.ids import Ids
from concf.errors import ConcfError, ConcfWarning, DataError
from concf.inference.lookup import kind_in_words, position_of
from concf.inference.recommender import Recommender
from concf.inference.titles import Catalogue
from concf.models import load_run
from concf.runs.checkpoint import CHECKPOINT
from concf.runtime.files import FIELD
from concf.service.problems import Problem
from concf.service.schemas import Id

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one spelling for each: 05 is none
LONGEST = 200  # characters of an id in a message
LOG = logging.getLogger("concf.service")


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON; `extra={"fields": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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


@dataclass(frozen=True, eq=False)
class Served:
    """A run that is ready to answer.

    titles:  item id -> title, of some or none of the items
    attributes: of the items, from the same file
    run_id:  the beginning of its checkpoint's SHA-256
    cache:   objects that depend on this run, such as its explorer
    """

    recommender: Recommender
    folder: Path
    titles: Mapping[Id, str] = field(default_factory=dict)
    attributes: Catalogue | None = None
    run_id: str = ""
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.resolve().name

    def user(self, text: str) -> Id:
        """Parse a user id: an integer in a log of integers, if the text is one."""
        return spelt(self.recommender.user_ids, text)

    def item(self, text: str) -> Id:
        """Parse an item id."""
        return spelt(self.recommender.item_ids, text)

    def user_index(self, user: Id, where: str) -> int:
        """Return the index of a user; an unknown one is an error."""
        return known_index("user", self.recommender.user_ids, user, where)

    def item_index(self, item: Id, where: str) -> int:
        """Return the index of an item; an unknown one is an error."""
        return known_index("item", self.recommender.item_ids, item, where)

    def by(self, name: str | None, where: str) -> str:
        """Check the name of a head or consensus; None: the default."""
        return _known(name, self.recommender.default, self.recommender.ranker.names, where)

    def head(self, name: str | None, where: str) -> str:
        """Check the name of a head; None: the best head."""
        return _known(name, self.recommender.run.best_head(), self.recommender.ranker.heads, where)


def spelt(ids: Ids, text: str) -> int | str:
    """Parse an id of a path as the log has it."""
    return int(text) if ids.are_integers and INTEGER.fullmatch(text) else text


def known_index(role: Literal["user", "item"], ids: Ids, wanted: int | str, where: str) -> int:
    """Return the index of an id; an unknown one is a 404."""
    index = position_of(ids, wanted)
    if index < 0:
        raise Problem(404, "unknown_user" if role == "user" else "unknown_item", unknown(role, ids, wanted), where)
    return index


def unknown(role: Literal["user", "item"], ids: Ids, wanted: int | str) -> str:
    """Say that an id is unknown."""
    return f"no {role} is called {shortened(wanted)} in the prepared log (its ids are {kind_in_words(ids)})"


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


@dataclass(frozen=True)
class Loader:
    """Loads runs. data: the run's data set, if it has moved; catalogue: a file of titles and attributes

    new_items: whether items of the catalogue that the log does not have are recommended
    compared: the folder of a run that the explorer shows beside the served one
    limits: of k and of a history, for the explorer; rules: a file, see `standing.Standing`
    """

    data: Path | None = None
    catalogue: Catalogue | None = None
    new_items: bool = False
    compared: Path | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    rules: Path | None = None

    def to_json(self, folder: Path) -> bytes:
        """Return what `from_json` reads in another process. folder: of the run to load"""
        names = ("path", "item", "title", "image", "image_sources")
        catalogue = self.catalogue and {name: getattr(self.catalogue, name) for name in names}
        return json.dumps(vars(self) | {"folder": folder, "catalogue": catalogue}, default=str).encode()

    @classmethod
    def from_json(cls, text: bytes) -> tuple[Loader, Path]:
        """Return a loader and the folder to load."""
        about = json.loads(text)
        about |= {name: about[name] and Path(about[name]) for name in ("folder", "data", "compared", "rules")}
        if about["catalogue"]:
            about["catalogue"] = Catalogue(Path(about["catalogue"].pop("path")), **about["catalogue"])
        return cls(**{name: value for name, value in about.items() if name != "folder"}), about["folder"]

    def __call__(self, folder: Path) -> Served:
        """The run in a folder, ready."""
        try:
            return self._load(folder)
        except (ConcfError, OSError):
            raise
        except Exception as error:  # of damaged files
            raise DataError(f"{folder}: cannot be read ({type(error).__name__}: {error})") from error

    def _load(self, folder: Path) -> Served:
        run = load_run(folder, self.data)
        for best in run.best.values():  # copy what is mapped: a file that is overwritten would end the process
            best.state = {name: tensor.clone() for name, tensor in best.state.items()}
            best.votes = {name: tensor.clone() for name, tensor in best.votes.items()}
            best.lists = None if best.lists is None else best.lists.clone()
        with safe_open(folder / CHECKPOINT, "pt") as checkpoint:
            run_id = checkpoint.metadata()[FIELD][:16]
        recommender = Recommender(run, frame="arrays")
        if self.new_items:
            recommender.add_items(self.catalogue)
        _prepare(recommender)
        if self.catalogue is None:
            return Served(recommender, folder, run_id=run_id)
        self.catalogue.roles()  # refuses columns that are not there
        titles, note = self.catalogue.read(recommender.item_ids)
        LOG.info(note)
        attributes = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConcfWarning)  # the note about titles has the counts
                attributes = self.catalogue.joined_to(recommender.item_ids)
        except DataError as error:  # rows that contradict each other
            LOG.warning("rules on attributes are off: %s", error)
        return Served(recommender, folder, titles, attributes, run_id)


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
