"""Answers to validated requests, in the ids of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.errors import ConfigError
from concf.inference.lookup import Event, Short, position_of
from concf.inference.recommender import Block, ListOptions
from concf.service import schemas
from concf.service.loading import Served, unknown
from concf.service.problems import Problem
from concf.service.schemas import Id, Item
from concf.service.standing import Mask, ServedRules

T = TypeVar("T", Id, Id | Event)
EVERYONE = object()  # the key of unknown items in lists for all users
NEW_USER = "no rankings over time exist for a new history: the consensus is by rank alone"
WITH_VIEWED = "the stored lists leave out what was trained on: the consensus is by rank alone"
AMONG_FEW = "no rankings of only these items over time are stored: the consensus is by rank alone"


def popular_list(served: Served, user: Id, k: int, allowed: Mask | None) -> schemas.UserList:
    """Return the most popular items, for a user who is not in the log."""
    rules = ServedRules(unknown="popular", allowed=allowed)
    ids, scores = served.recommender.recommend([user], k, rules=rules, frame="arrays")
    note = "this user is not in the log: the most popular items, scored by their number of users"
    items = items_of(served, ids[0], scores[0])
    return schemas.UserList(user=user, by="popularity", note=note, items=items)


def items_of(served: Served, ids: NDArray[Any], scores: NDArray[np.float32], allowed: Mask | None = None) -> list[Item]:
    """Return the items of arrays [k], of which those without a finite score are padding; only allowed ones [items]."""
    there = np.isfinite(scores)
    if allowed is not None:
        there &= np.isin(ids, served.recommender.item_ids.values[allowed])
    return _items(served, ids[there].tolist(), scores[there].tolist())


def short_items(served: Served, short: Short) -> list[Item]:
    """Return the items of a list of item indices and scores."""
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

    def __init__(self, served: Served, handling: schemas.UnknownItems) -> None:
        self.served, self.refuses = served, handling == "error"
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
    served: Served, request: schemas.UsersRequest | schemas.HistoryRequest | schemas.HistoriesRequest,
    allowed: Mask | None = None,
) -> schemas.Lists:  # fmt: skip
    """Return the lists of users or histories. An unknown user has an error in place of a list.

    allowed: [items] by the standing rule; None: all
    """
    by, known = served.by(request.by, "body.by"), KnownItems(served, request.unknown_items)
    rules = ServedRules(
        served.attributes, request.where, request.at_most, request.diversity, request.popularity_penalty,
        filter_viewed=not request.viewed, unknown="popular", allowed=allowed,
    )  # fmt: skip
    allow, deny = known.of_lists(request.items, "body.items"), known.of_lists(request.exclude, "body.exclude")
    users, histories, errors = None, None, dict[Id | None, str]()
    if isinstance(request, schemas.UsersRequest):
        note, errors = _unknown_users(served, request)
        users = [user for user in request.users if user not in errors]
    else:
        histories = _histories(served, request, known)
        note = _without_history(served, histories)
    blocks: Iterable[Block] = ()
    shortage = None
    try:
        if users or histories:
            options: ListOptions = {"by": by, "items": allow, "exclude": deny, "rules": rules}
            _, blocks, shortage = served.recommender.blocks(users, request.k, histories, options)
    except ConfigError as error:  # of a rule, or of times that are not the log's
        raise Problem(409, "refused_rule", str(error), "body") from None
    ranked = (short_items(served, short) for _, shorts in blocks for short in shorts)
    wanted: Iterable[Id | None] = request.users if isinstance(request, schemas.UsersRequest) else histories or ()
    return {
        "by": by,
        "note": joined([_by_rank_alone(served, request, by), note, known.note(), shortage]),
        "unknown_items": known.report(),
        "lists": [
            {"user": user, "items": [] if user in errors else next(ranked), "unknown_items": known.report(user),
             "error": errors.get(user)}
            for user in wanted
        ],
    }  # fmt: skip


def joined(notes: Iterable[str | None]) -> str | None:
    """Join notes."""
    return "; ".join(note for note in notes if note) or None


def _histories(
    served: Served, request: schemas.HistoryRequest | schemas.HistoriesRequest, known: KnownItems
) -> dict[Id | None, list[Id | Event]]:
    """User -> the known items of the history; a single history has no user."""
    if isinstance(request, schemas.HistoryRequest):
        return {None: known.of(request.history, "body.history", None)}
    users = {name: served.user(name) for name in request.histories}
    return {
        users[name]: known.of(items, f"body.histories.{name}", users[name]) for name, items in request.histories.items()
    }


def _without_history(served: Served, histories: dict[Id | None, list[Id | Event]]) -> str | None:
    user_ids = served.recommender.user_ids
    count = sum(not history and position_of(user_ids, user) < 0 for user, history in histories.items())
    return f"{count} of {len(histories)} histories have no known item: the list of the average user" if count else None


def _unknown_users(served: Served, request: schemas.UsersRequest) -> tuple[str | None, dict[Id | None, str]]:
    """Note the number of unknown users; unless the request accepts popular items, each has an error."""
    user_ids = served.recommender.user_ids
    strangers = [user for user in request.users if position_of(user_ids, user) < 0]
    if not strangers:
        return None, {}
    if request.popular:
        return f"{len(strangers)} of the users are not in the log and get the most popular items", {}
    return f"{len(strangers)} of the users are not in the log", {
        user: unknown("user", user_ids, user) for user in strangers
    }


def _by_rank_alone(served: Served, request: schemas.ListsRequest, by: str) -> str | None:
    """Note why the consensus is by rank alone, if it is."""
    if by not in (CONSENSUS, R_CONSENSUS):
        return None
    if not isinstance(request, schemas.UsersRequest) and not served.recommender.ranker.reranks:
        return NEW_USER
    return AMONG_FEW if request.items is not None else WITH_VIEWED if request.viewed else None
