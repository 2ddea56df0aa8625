"""From a question to what is sent, in the ids of the log."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic_core import to_json

from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.inference.lookup import place_of
from concf.inference.ranker import Short
from concf.service.engine import Limits, Served
from concf.service.schemas import IGNORED, ForHistories, ForHistory, ForUsers, UnknownItems

EVERYONE = object()  # whose lists are for everyone
K = 10  # places of a list, if not said
POPULARITY = "popularity"  # what a stranger's list is by
BY_RANK = "no head has ranked for a history over time: the consensus is by rank alone"
WITH_VIEWED = "the kept lists do not have what was trained on: the consensus is by rank alone"
AMONG_FEW = "no rankings of just these items are kept over time: the consensus is by rank alone"


def user_list(served: Served, user: Any, by: str, short: Short, note: str | None = None) -> bytes:
    """The list of a user of the log, from positions."""
    items, scores = short
    listed = _listed(served, served.recommender.item_ids.values[items].tolist(), scores.tolist())
    return to_json({"user": user, "by": by, "note": note, "items": listed})


def stranger_list(served: Served, user: Any, k: int) -> bytes:
    """The list of a user whom the log does not have."""
    ids, scores = served.recommender.recommend([user], k, unknown="popular", frame="arrays")
    note = "the log does not have this user: what most others have used, and how many they are"
    return to_json({"user": user, "by": POPULARITY, "note": note, "items": items_of(served, ids[0], scores[0])})


def items_of(served: Served, ids: Any, scores: Any) -> list[dict[str, Any]]:
    """The items of arrays [k]; the score of an empty place is not finite."""
    there = np.isfinite(scores)
    return _listed(served, ids[there].tolist(), scores[there].tolist())


def _listed(served: Served, items: list[Any], scores: list[float]) -> list[dict[str, Any]]:
    title = served.titles.get
    return [
        {"item": item, "rank": rank, "score": score, "title": title(item)}
        for rank, (item, score) in enumerate(zip(items, scores, strict=True), 1)
    ]


class KnownItems:
    """The items of a question that the run has. The others are refused, or ignored and reported.

    ignored: whose list -> the unknown items in it, each once; `EVERYONE` for lists that are no single user's
    """

    def __init__(self, served: Served, unknown: UnknownItems) -> None:
        self.served, self.refuses = served, unknown == "error"
        self.ignored: dict[Any, dict[Any, None]] = {}

    def of(self, items: list[Any], where: str, user: Any = EVERYONE) -> list[Any]:
        """Those of one list."""
        known = []
        for place, item in enumerate(items):
            if place_of(self.served.recommender.item_ids, item) >= 0:
                known.append(item)
            elif self.refuses:
                self.served.item_place(item, f"{where}.{place}")
            else:
                self.ignored.setdefault(user, {})[item] = None
        return known

    def of_lists(self, listed: Any, where: str) -> Any:
        """Those of an allow or deny list, its users as the log has them."""
        if not isinstance(listed, dict):
            return None if listed is None else self.of(listed, where)
        named = {name: self.served.user(name) for name in listed}
        return {user: self.of(listed[name], f"{where}.{name}", user) for name, user in named.items()}

    def report(self, user: Any = EVERYONE) -> list[Any]:
        """The first that were ignored."""
        return list(self.ignored.get(user, {}))[:IGNORED]

    def note(self) -> str | None:
        """How many were ignored."""
        count = sum(map(len, self.ignored.values()))
        were = "item was" if count == 1 else "items were"
        return f"{count} unknown {were} ignored (not in the log, or left out by a filter)" if count else None


def lists(served: Served, limits: Limits, asked: ForUsers | ForHistory | ForHistories) -> bytes:
    """The lists of several users, of a history, or of several."""
    limits.refuse_long_lists(asked.k, "body.k")
    by, known = served.by(asked.by, "body.by"), KnownItems(served, asked.unknown_items)
    options: dict[str, Any] = {
        "k": asked.k, "by": by, "filter_viewed": not asked.viewed, "frame": "arrays",
        "items": known.of_lists(asked.items, "body.items"), "exclude": known.of_lists(asked.exclude, "body.exclude"),
    }  # fmt: skip
    if isinstance(asked, ForUsers):
        limits.refuse_many_users(len(asked.users), "body.users")
        users, notes = asked.users, [_strangers(served, asked)]
        options |= {"users": users, "unknown": "popular"}
    else:
        histories = _histories(served, limits, asked, known)
        users, notes = list(histories), [_without_history(served, histories)]
        options |= {"history": histories}
    ids, scores = served.recommender.recommend(**options) if users else ((), ())
    answer = [
        {"user": user, "items": items_of(served, mine, theirs), "unknown_items": known.report(user)}
        for user, mine, theirs in zip(users, ids, scores, strict=True)
    ]
    note = "; ".join(filter(None, [_by_rank_alone(asked, by), *notes, known.note()])) or None
    return to_json({"by": by, "note": note, "unknown_items": known.report(), "lists": answer})


def _histories(
    served: Served, limits: Limits, asked: ForHistory | ForHistories, known: KnownItems
) -> dict[Any, list[Any]]:
    """User -> the known items of the history; a single history is nobody's."""
    if isinstance(asked, ForHistory):
        given = {None: (asked.history, "body.history")}
    else:
        limits.refuse_many_users(len(asked.histories), "body.histories")
        given = {served.user(name): (history, f"body.histories.{name}") for name, history in asked.histories.items()}
    for history, where in given.values():
        limits.refuse_long_history(len(history), where)
    return {user: known.of(history, where, user) for user, (history, where) in given.items()}


def _without_history(served: Served, histories: dict[Any, list[Any]]) -> str | None:
    logged = served.recommender.user_ids
    count = sum(not history and place_of(logged, user) < 0 for user, history in histories.items())
    return f"{count} of {len(histories)} histories have no known item: the list of the average user" if count else None


def _strangers(served: Served, asked: ForUsers) -> str | None:
    """How many the log does not have; refuses them, unless they get what is popular."""
    if asked.popular:
        known = served.recommender.user_ids
        count = sum(place_of(known, user) < 0 for user in asked.users)
        return f"{count} of the users are not in the log and get what most others have used" if count else None
    for place, user in enumerate(asked.users):
        served.user_place(user, f"body.users.{place}")
    return None


def _by_rank_alone(asked: ForUsers | ForHistory | ForHistories, by: str) -> str | None:
    """Why a consensus is not the one that is kept."""
    if by not in (CONSENSUS, R_CONSENSUS):
        return None
    if not isinstance(asked, ForUsers):
        return BY_RANK
    return AMONG_FEW if asked.items is not None else WITH_VIEWED if asked.viewed else None
