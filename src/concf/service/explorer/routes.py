"""What the explorer page asks for: the run's facts, searches, and one user seen by every head."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.responses import Response

from concf.service.answers import K, KnownItems
from concf.service.engine import Service
from concf.service.explorer.view import Explorer
from concf.service.schemas import Id, Ignored, UnknownItems, Whole

FOUND, MOST_FOUND = 20, 100  # of a search
EXPLORER = "explorer"
Words = Annotated[str, Query(max_length=1000, description="nothing: those that are used most")]
AtMost = Annotated[int, Query(ge=1, le=MOST_FOUND, description="how many to find at most")]


class FoundUser(BaseModel):
    """used: how many items"""

    user: Id
    used: int


class FoundUsers(BaseModel):
    """The first of a search."""

    users: list[FoundUser]


class FoundItem(BaseModel):
    """users: how many have used it"""

    item: Id
    title: str | None
    users: int


class FoundItems(BaseModel):
    """The first of a search."""

    items: list[FoundItem]


class UsedItem(BaseModel):
    """held_out: in the log, but not learned from"""

    item: Id
    title: str | None
    held_out: bool


class ListedItem(UsedItem):
    """rank: from 1; score: the head's own"""

    rank: int
    score: float


class Vote(BaseModel):
    """rank: from 1, training items left out; R (Eq. 10) and C (Eq. 11): 0 for a head that does not vote for the item"""

    head: str
    rank: int | None
    R: float
    C: float
    vote: float


class AgreedItem(UsedItem):
    """score: the importance, the mean of the votes (Eq. 12)"""

    rank: int
    score: float
    votes: list[Vote]


class OtherItem(BaseModel):
    """The votes for an item that a head lists and the consensus does not."""

    item: Id
    votes: list[Vote]


class HeadList(BaseModel):
    """A head's first items, at the epoch of its own best."""

    by: str
    items: list[ListedItem]


class Agreed(BaseModel):
    """The consensus' first items."""

    by: str
    items: list[AgreedItem]


class Explored(BaseModel):
    """One user seen by every head. consensus: null for a run of one head

    unknown_items: of the history that was asked for, what the run does not have
    """

    user: Id | None
    note: str | None
    unknown_items: Ignored
    history: list[UsedItem]
    lists: list[HeadList]
    consensus: Agreed | None
    others: list[OtherItem]


class Facts(BaseModel):
    """The run. places: how many of its first items a head votes for, null for all; temperature, consistency: T, T_c"""

    name: str
    users: int
    items: int
    interactions: int
    user_ids: str
    item_ids: str
    titles: bool
    heads: list[str]
    fixed_voters: list[str]
    voters: list[str]
    best_head: str
    default: str
    has_consensus: bool
    places: int | None
    temperature: float
    consistency: float | None
    metric: str
    validation: dict[str, float]
    limits: dict[str, int]
    version: str


class AskedHistory(BaseModel):
    """What someone has used."""

    model_config = ConfigDict(extra="forbid")

    history: list[Id]
    k: Whole = Field(K, ge=1)
    unknown_items: UnknownItems = "ignore"


def router(service: Service) -> APIRouter:
    """The routes of the explorer's data, of whichever run is served now."""
    routes = APIRouter(tags=["explorer"])

    def explorer() -> Explorer:
        """Of the run that is served now; another takes its place when that does."""
        served, beside = service.model, service.beside
        current: Explorer | None = beside.get(EXPLORER)
        if current is None or current.served is not served:
            current = beside[EXPLORER] = Explorer(served)
        return current

    @routes.get("/run", response_model=Facts, summary="The run that is served")
    def run() -> Any:
        limits = {"k": service.limits.k, "history": service.limits.history}
        return explorer().facts() | {"limits": limits}

    @routes.get("/users", response_model=FoundUsers, summary="Search for users by id")
    def users(
        q: Words = "",
        limit: AtMost = FOUND,
        random: Annotated[bool, Query(description="some by chance instead")] = False,
    ) -> Any:
        found = explorer()
        places = found.users.draw(limit) if random else found.users.find(q, limit)
        ids = found.recommender.user_ids.values[places].tolist()
        return {"users": [{"user": user, "used": n} for user, n in zip(ids, found.used[places].tolist(), strict=True)]}

    @routes.get("/items", response_model=FoundItems, summary="Search for items by id and title")
    def items(q: Words = "", limit: AtMost = FOUND) -> Any:
        found = explorer()
        places = found.items.find(q, limit)
        ids = found.recommender.item_ids.values[places].tolist()
        return {
            "items": [
                {"item": item, "title": found.served.titles.get(item), "users": n}
                for item, n in zip(ids, found.popularity[places].tolist(), strict=True)
            ]
        }

    @routes.get("/explore/{user:path}", response_model=Explored, summary="A user of the log, seen by every head")
    def explore(
        user: str,
        k: Annotated[int, Query(ge=1, description="places of each list")] = K,
        held_out: Annotated[bool, Query(description="whether items that were held out may be listed")] = False,
    ) -> Any:
        service.limits.refuse_long_lists(k, "query.k")
        found = explorer()
        place = found.served.user_place(found.served.user(user), "path.user")
        return _json(found.of_user(place, k, held_out) | {"unknown_items": []})

    @routes.post("/explore", response_model=Explored, summary="A history, seen by every head")
    def explore_history(asked: AskedHistory) -> Any:
        service.limits.refuse_long_lists(asked.k, "body.k")
        service.limits.refuse_long_history(len(asked.history), "body.history")
        found = explorer()
        known = KnownItems(found.served, asked.unknown_items)
        items = known.of(asked.history, "body.history")
        places = [found.served.item_place(item, "body.history") for item in items]
        view = found.of_history(np.array(places, np.int64), asked.k)
        note = "; ".join(filter(None, [view["note"], known.note()])) or None
        return _json(view | {"note": note, "unknown_items": known.report()})

    return routes


def _json(view: dict[str, Any]) -> Response:
    """As it is: of hundreds of votes there is nothing to check that was not made here."""
    return Response(to_json(view), media_type="application/json")
