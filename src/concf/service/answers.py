"""From a question to what is sent, in the ids of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic_core import to_json

from concf.deploy.ranking import Short
from concf.deploy.recommender import place_of
from concf.learning.settings import CONSENSUS, R_CONSENSUS
from concf.service.engine import Limits, Served
from concf.service.schemas import ForHistories, ForHistory, ForUsers

K = 10  # places of a list, if not said
POPULARITY = "popularity"  # what a stranger's list is by
BY_RANK = "no head has ranked for a history over time: the consensus is by rank alone"
AMONG_FEW = "no rankings of just these items are kept over time: the consensus is by rank alone"


def user_list(served: Served, user: Any, by: str, short: Short) -> bytes:
    """The list of a user of the log, from positions."""
    items, scores = short
    listed = _listed(served, served.recommender.item_ids.values[items].tolist(), scores.tolist())
    return to_json({"user": user, "by": by, "note": None, "items": listed})


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


def lists(served: Served, limits: Limits, asked: ForUsers | ForHistory | ForHistories) -> bytes:
    """The lists of several users, of a history, or of several."""
    limits.refuse_long_lists(asked.k, "body.k")
    by, model = served.by(asked.by, "body.by"), served.recommender
    options: dict[str, Any] = {
        "k": asked.k, "by": by, "filter_viewed": not asked.viewed, "frame": "arrays",
        "items": _items(served, asked.items, "body.items"), "exclude": _items(served, asked.exclude, "body.exclude"),
    }  # fmt: skip
    users: Sequence[Any]
    if isinstance(asked, ForUsers):
        limits.refuse_many_users(len(asked.users), "body.users")
        users, strangers = asked.users, _strangers(served, asked)
        ids, scores = model.recommend(users, unknown="popular", **options)
    else:
        named = {None: asked.history} if isinstance(asked, ForHistory) else _histories(served, limits, asked)
        for name, history in named.items():
            _refuse_history(served, limits, history, _part("history", name))
        users, strangers = list(named), 0
        ids, scores = model.recommend(history=named, **options)
    answer = [
        {"user": user, "items": items_of(served, mine, theirs)}
        for user, mine, theirs in zip(users, ids, scores, strict=True)
    ]
    return to_json({"by": by, "note": _note(asked, by, strangers), "lists": answer})


def _part(name: str, key: Any) -> str:
    return f"body.{name}" if key is None else f"body.histories.{key}"


def _histories(served: Served, limits: Limits, asked: ForHistories) -> dict[Any, list[Any]]:
    limits.refuse_many_users(len(asked.histories), "body.histories")
    return {served.user(name): history for name, history in asked.histories.items()}


def _refuse_history(served: Served, limits: Limits, history: list[Any], where: str) -> None:
    limits.refuse_long_history(len(history), where)
    for place, item in enumerate(history):
        served.item_place(item, f"{where}.{place}")


def _strangers(served: Served, asked: ForUsers) -> int:
    """How many the log does not have; refuses them, unless they get what is popular."""
    if asked.popular:
        known = served.recommender.user_ids
        return sum(place_of(known, user) < 0 for user in asked.users)
    for place, user in enumerate(asked.users):
        served.user_place(user, f"body.users.{place}")
    return 0


def _items(served: Served, listed: Any, where: str) -> Any:
    """An allow or deny list, its users as the log has them."""
    if listed is None:
        return None
    if not isinstance(listed, dict):
        for place, item in enumerate(listed):
            served.item_place(item, f"{where}.{place}")
        return listed
    return {served.user(user): _items(served, few, f"{where}.{user}") for user, few in listed.items()}


def _note(asked: ForUsers | ForHistory | ForHistories, by: str, strangers: int) -> str | None:
    """What there is to know about how the lists came about."""
    notes = []
    if by in (CONSENSUS, R_CONSENSUS):
        if not isinstance(asked, ForUsers):
            notes.append(BY_RANK)
        elif asked.items is not None:
            notes.append(AMONG_FEW)
    if strangers:
        notes.append(f"{strangers} of the users are not in the log and get what most others have used")
    return "; ".join(notes) or None
