"""Answers to validated requests, in the ids of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.errors import ConfigError
from concf.inference.lookup import Event, Short, position_of
from concf.inference.recommender import Block, ListOptions
from concf.inference.rules import Rules
from concf.service import schemas
from concf.service.limits import Limits
from concf.service.loading import Served
from concf.service.problems import Problem
from concf.service.schemas import Id, Item

T = TypeVar("T", Id, Id | Event)
EVERYONE = object()  # the key of unknown items in lists for all users
USERS, ITEMS = 32, 3200  # largest part of an answer that is computed and sent at a time
NEW_USER = "no rankings over time exist for a new history: the consensus is by rank alone"
WITH_VIEWED = "the stored lists leave out what was trained on: the consensus is by rank alone"
AMONG_FEW = "no rankings of only these items over time are stored: the consensus is by rank alone"


def user_list(served: Served, user: Id, by: str, short: Short, note: str | None = None) -> bytes:
    """Return the list of a user of the log as JSON; `short` has item indices."""
    return to_json(schemas.UserList(user=user, by=by, note=note, items=_short_items(served, short)))


def popular_list(served: Served, user: Id, k: int) -> bytes:
    """Return the most popular items as JSON, for a user who is not in the log."""
    ids, scores = served.recommender.recommend([user], k, rules=Rules(unknown="popular"), frame="arrays")
    note = "this user is not in the log: the most popular items, scored by their number of users"
    items = items_of(served, ids[0], scores[0])
    return to_json(schemas.UserList(user=user, by="popularity", note=note, items=items))


def items_of(served: Served, ids: NDArray[Any], scores: NDArray[np.float32]) -> list[Item]:
    """Return the items of arrays [k], of which those without a finite score are padding."""
    there = np.isfinite(scores)
    return _items(served, ids[there].tolist(), scores[there].tolist())


def _short_items(served: Served, short: Short) -> list[Item]:
    indices, scores = short
    return _items(served, served.recommender.item_ids.values[indices].tolist(), scores.tolist())


def _items(served: Served, ids: list[Id], scores: list[float]) -> list[Item]:
    title = served.titles.get
    return [
        {"item": item, "rank": rank, "score": score, "title": title(item)}
        for rank, (item, score) in enumerate(zip(ids, scores, strict=True), 1)
    ]


class KnownItems:
    """Separates the items of a request that the run has from those it does not, which are refused or ignored.

    ignored: user, or `EVERYONE` for lists of all users -> the unknown items, each once
    """

    def __init__(self, served: Served, unknown: schemas.UnknownItems) -> None:
        self.served, self.refuses = served, unknown == "error"
        self.ignored: dict[object, dict[Id, None]] = {}

    def of(self, items: list[T], where: str, user: object = EVERYONE) -> list[T]:
        """Return the known items of one list of ids, or of events."""
        known = []
        for index, each in enumerate(items):
            item: Any = each["item"] if isinstance(each, dict) else each
            if position_of(self.served.recommender.item_ids, item) >= 0:
                known.append(each)
            elif self.refuses:
                self.served.item_index(item, f"{where}.{index}")
            else:
                self.ignored.setdefault(user, {})[item] = None
        return known

    def of_lists(self, items: schemas.ItemLists | None, where: str) -> list[Id] | dict[Id, list[Id]] | None:
        """Return the known items of an allow or deny list, by user id where the list is by user."""
        if not isinstance(items, dict):
            return None if items is None else self.of(items, where)
        users = {name: self.served.user(name) for name in items}
        return {user: self.of(items[name], f"{where}.{name}", user) for name, user in users.items()}

    def report(self, user: object = EVERYONE) -> list[Id]:
        """Return the first of the ignored items."""
        return list(self.ignored.get(user, {}))[: schemas.REPORTED]

    def note(self) -> str | None:
        """Return a note with the number of ignored items."""
        count = sum(map(len, self.ignored.values()))
        were = "item was" if count == 1 else "items were"
        return f"{count} unknown {were} ignored (not in the log, or left out by a filter)" if count else None


def lists(
    served: Served, limits: Limits, request: schemas.UsersRequest | schemas.HistoryRequest | schemas.HistoriesRequest
) -> Iterator[bytes]:
    """Yield the lists of users or histories as parts of one JSON object. Errors come before the first part."""
    limits.check("k", request.k, "body.k")
    by, known = served.by(request.by, "body.by"), KnownItems(served, request.unknown_items)
    rules = Rules(
        served.attributes, request.where, request.at_most, request.diversity, request.popularity_penalty,
        filter_viewed=not request.viewed, unknown="popular",
    )  # fmt: skip
    allow, deny = known.of_lists(request.items, "body.items"), known.of_lists(request.exclude, "body.exclude")
    users, histories = None, None
    if isinstance(request, schemas.UsersRequest):
        _check_users(limits, len(request.users), request.k, "body.users")
        note, users = _unknown_users(served, request), request.users
    else:
        histories = _histories(served, limits, request, known)
        note = _without_history(served, histories)
    left, size = len(users or histories or ()), max(1, min(USERS, ITEMS // request.k))
    blocks: Iterable[Block] = ()
    shortage = None
    try:
        if left:
            options: ListOptions = {"by": by, "items": allow, "exclude": deny, "rules": rules}
            _, blocks, shortage = served.recommender.blocks(users, request.k, histories, options, size)
    except ConfigError as error:  # of a rule, or of times that are not the log's
        raise Problem(409, "refused_rule", str(error), "body") from None
    notes = joined([_by_rank_alone(served, request, by), note, known.note(), shortage])
    head = to_json({"by": by, "note": notes, "unknown_items": known.report()})[:-1] + b',"lists":['
    if not left:
        yield head + b"]}"
    for names, shorts in blocks:
        answer: list[schemas.OneOfSeveral] = [
            {"user": user, "items": _short_items(served, short), "unknown_items": known.report(user)}
            for user, short in zip(names.tolist(), shorts, strict=True)
        ]
        left -= len(names)
        yield head + to_json(answer)[1:-1] + (b"" if left else b"]}")
        head = b","


def joined(notes: Iterable[str | None]) -> str | None:
    """Join notes."""
    return "; ".join(note for note in notes if note) or None


def _histories(
    served: Served, limits: Limits, request: schemas.HistoryRequest | schemas.HistoriesRequest, known: KnownItems
) -> dict[Id | None, list[Id | Event]]:
    """User -> the known items of the history; a single history has no user."""
    histories: dict[Id | None, tuple[list[Id | Event], str]]
    if isinstance(request, schemas.HistoryRequest):
        histories = {None: (request.history, "body.history")}
    else:
        _check_users(limits, len(request.histories), request.k, "body.histories")
        histories = {served.user(name): (items, f"body.histories.{name}") for name, items in request.histories.items()}
    for items, where in histories.values():
        limits.check("history", len(items), where)
    limits.check("histories", sum(len(items) for items, _ in histories.values()), "body.histories")
    return {user: known.of(items, where, user) for user, (items, where) in histories.items()}


def _check_users(limits: Limits, users: int, k: int, where: str) -> None:
    limits.check("users", users, where)
    limits.check("listed", users * k, where)


def _without_history(served: Served, histories: dict[Id | None, list[Id | Event]]) -> str | None:
    user_ids = served.recommender.user_ids
    count = sum(not history and position_of(user_ids, user) < 0 for user, history in histories.items())
    return f"{count} of {len(histories)} histories have no known item: the list of the average user" if count else None


def _unknown_users(served: Served, request: schemas.UsersRequest) -> str | None:
    """Note the number of unknown users; they are an error unless the request accepts popular items."""
    if request.popular:
        user_ids = served.recommender.user_ids
        count = sum(position_of(user_ids, user) < 0 for user in request.users)
        return f"{count} of the users are not in the log and get the most popular items" if count else None
    for index, user in enumerate(request.users):
        served.user_index(user, f"body.users.{index}")
    return None


def _by_rank_alone(served: Served, request: schemas.ListsRequest, by: str) -> str | None:
    """Note why the consensus is by rank alone, if it is."""
    if by not in (CONSENSUS, R_CONSENSUS):
        return None
    if not isinstance(request, schemas.UsersRequest) and not served.recommender.ranker.reranks:
        return NEW_USER
    return AMONG_FEW if request.items is not None else WITH_VIEWED if request.viewed else None
