"""Answers to validated requests, in the ids of the log."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from concf.errors import ConcfWarning, ConfigError
from concf.inference.lookup import Short
from concf.service import schemas
from concf.service.loading import Served, ServedRules, unknown
from concf.service.problems import Problem
from concf.service.schemas import Id, Item

BY_RANK = "the consensus is by rank alone, since no rankings over time are stored for such a list"


def as_items(served: Served, short: Short) -> list[Item]:
    """Return the items of a list of item indices and scores."""
    indices, scores = short
    ids, title = served.recommender.item_ids.values[indices].tolist(), served.titles.get
    return [
        {"item": item, "rank": rank, "score": score, "title": title(item)}
        for rank, (item, score) in enumerate(zip(ids, scores.tolist(), strict=True), 1)
    ]


def unknown_items(served: Served, items: Iterable[Id | schemas.Event]) -> list[Id]:
    """Return the first unknown items, each once."""
    given: Iterable[Any] = (each["item"] if isinstance(each, dict) else each for each in items)
    ids = served.recommender.item_ids
    return list(dict.fromkeys(item for item in given if ids.place(item) < 0))[: schemas.REPORTED]


def lists(served: Served, request: schemas.ListsRequest) -> schemas.Lists:
    """Return the lists of users or histories; warnings of the library become notes.

    An unknown user has an error in place of a list, unless the request accepts popular items.
    """
    recommender, errors, notes = served.recommender, dict[Id | None, str](), list[str | None]()
    by = served.chosen(request.by, recommender.default, recommender.ranker.names, "by")
    rules = ServedRules(
        served.attributes, request.where, request.at_most, request.diversity, request.popularity_penalty,
        filter_viewed=not request.viewed, unknown="popular", allowed=served.allowed(),
    )  # fmt: skip
    users, histories = None, None
    wanted: Iterable[Id | None]
    if "users" in request.model_fields_set:
        strangers = [user for user in request.users if recommender.user_ids.place(user) < 0]
        if strangers:
            notes.append(f"{len(strangers)} of the users are not in the log" + ": popular items" * request.popular)
        if not request.popular:
            errors = {user: unknown("user", recommender.user_ids, user) for user in strangers}
        wanted, users = request.users, [user for user in request.users if user not in errors]
    else:
        named = {served.user(name): events for name, events in request.histories.items()}
        wanted = histories = named if "histories" in request.model_fields_set else {None: request.history}
    allow, deny = _by_user(served, request.items), _by_user(served, request.exclude)
    ranked = list[Short]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConcfWarning)
        try:
            if users or histories:
                _, blocks = recommender.blocks(
                    users, request.k, histories, by=by, items=allow, exclude=deny, rules=rules, at=request.at
                )
                ranked = [short for _, block in blocks for short in block]
        except ConfigError as error:  # of a rule, or of times that are not the log's
            raise Problem(409, "refused_rule", str(error), "body") from None
    anew = request.viewed or request.items is not None or (users is None and not recommender.ranker.reranks)
    if anew and by not in recommender.ranker.heads:
        notes.append(BY_RANK)
    notes += [str(each.message) for each in caught]
    shared = [item for given in (allow, deny) if isinstance(given, list) for item in given]
    own: list[Any] = [given for given in (histories, allow, deny) if isinstance(given, dict)]
    rest = iter(ranked)
    return {
        "by": by,
        "note": "; ".join(filter(None, notes)) or None,
        "unknown_items": unknown_items(served, shared),
        "lists": [
            {"user": user, "items": [] if user in errors else as_items(served, next(rest)),
             "unknown_items": unknown_items(served, [item for given in own for item in given.get(user, ())]),
             "error": errors.get(user)}
            for user in wanted
        ],
    }  # fmt: skip


def _by_user(served: Served, items: schemas.ItemLists | None) -> Any:
    """Convert an allow or deny list by user to user ids; a list for all users stays."""
    return {served.user(name): own for name, own in items.items()} if isinstance(items, dict) else items


def of_user(served: Served, text: str, query: schemas.ListQuery) -> schemas.UserList:
    """Return the list of one user."""
    answer = lists(served, schemas.ListsRequest(users=[served.user(text)], **query.model_dump()))
    (own,) = answer["lists"]
    if own["error"] is not None:
        raise Problem(404, "unknown_user", own["error"], "path.user")
    return {"user": own["user"], "by": answer["by"], "note": answer["note"], "items": own["items"]}  # type: ignore[typeddict-item]


def similar(served: Served, text: str, query: schemas.SimilarQuery) -> schemas.Answer:
    """Return the most similar items that the standing rule allows."""
    recommender, ranker = served.recommender, served.recommender.ranker
    head = served.chosen(query.head, recommender.run.best_head(), ranker.heads, "query.head")
    item, _ = served.known("item", text, "path.item")
    allowed = served.allowed()
    most = query.k if allowed is None else ranker.n_items
    ids, scores = recommender.similar_items(item, most, head=head, frame="arrays")
    indices = np.array([recommender.item_ids.place(each) for each in ids.tolist()], np.int64)
    shown = np.isfinite(scores) & (True if allowed is None else allowed[indices])
    return {
        "item": item,
        "head": head,
        "items": as_items(served, (indices[shown][: query.k], scores[shown][: query.k])),
    }


def explain(served: Served, text: str, query: schemas.ExplainQuery) -> Any:
    """Return the reasons of an item's rank."""
    user, _ = served.known("user", text, "path.user")
    item, _ = served.known("item", query.item, "query.item")
    return served.recommender.explain(user, item) | {"title": served.titles.get(item)}
