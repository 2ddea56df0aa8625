"""Routes whose answers a worker computes: lists, similar items and explanations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from concf.inference.lookup import position_of
from concf.inference.rules import POOL
from concf.service import answers, schemas
from concf.service.loading import Loader, Served
from concf.service.problems import Problem
from concf.service.standing import ServedRules, Standing

Parts = dict[str, str]  # of a path
MANY = 1 << 20  # items, of which a standing rule may leave only some


class Size(NamedTuple):
    """Size of a run: numbers of users, items and voters."""

    users: int
    items: int
    voters: int


class Home:
    """The run of a worker, the one that it is compared with, and the standing rule."""

    def __init__(self, served: Served, loader: Loader) -> None:
        self.served, self.loader, self.standing = served, loader, Standing(loader.rules, served)
        self._compared: Served | None = None

    def run(self, compared: bool = False) -> Served:
        """Return the served run, or that of --compare, which is loaded when it is first needed."""
        if not compared:
            return self.served
        if self.loader.compared is None:
            raise Problem(404, "not_found", "this service compares no runs; start it with --compare RUN", "compared")
        if self._compared is None:
            self._compared = self.loader(self.loader.compared)
        return self._compared


Work = Callable[[Home, Parts, Any], object]
Cost = Callable[[Size, Any], float]


@dataclass(frozen=True)
class Route:
    """One route.

    request: the form of the query (GET) or the body (POST); answer: that of the answer, None if it is not JSON
    work: (run, parts of the path, checked query or body) -> bytes of JSON or a value for JSON; None: the front answers
    cost: (size of the run, request) -> estimated number of scores to compute
    """

    method: Literal["GET", "POST"]
    path: str
    request: TypeAdapter[Any]
    answer: Any
    summary: str
    tag: str
    work: Work | None = None
    cost: Cost = lambda _size, _request: 0.0

    @property
    def template(self) -> str:
        """The path as documents and metrics have it."""
        return self.path.replace(":id}", "}")

    @property
    def name(self) -> str:
        """The method and the template."""
        return f"{self.method} {self.template}"


class Routes(list[Route]):
    """The routes of one subject."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __call__(
        self, method: Literal["GET", "POST"], path: str, request: Any, answer: Any, summary: str,
        cost: Cost = lambda _size, _request: 0.0,
    ) -> Callable[[Work], Work]:  # fmt: skip
        """Declare a route; see `Route`."""

        def add(work: Work) -> Work:
            self.append(Route(method, path, TypeAdapter(request), answer, summary, self.tag, work, cost))
            return work

        return add


routes = Routes("recommend")


def _one_cost(size: Size, query: schemas.ListQuery) -> float:
    return size.items * (size.voters if query.viewed else 1)


def several_cost(size: Size, request: Any) -> float:
    """Estimate the cost of a batch: one score of a user and an item, about 10 nanoseconds, is 1.

    Voters rank all items anew for histories and allow lists. The other factors were measured.
    """
    chosen = bool(request.diversity or request.at_most or request.popularity_penalty)
    rules = chosen * request.k * (2_000 + 5 * min(POOL * request.k, size.items)) + 4_000
    fixed = 0.0 if request.where is None else size.items * schemas.terms(request.where)
    if isinstance(request, schemas.UsersRequest):
        anew = request.viewed or request.items is not None
        return float(fixed + len(request.users) * (rules + size.items * (size.voters if anew else 1)))
    histories = [request.history] if isinstance(request, schemas.HistoryRequest) else request.histories.values()
    used = 400 * sum(map(len, histories))
    return float(fixed + used + 500_000 + len(histories) * (rules + 20_000 + size.items * size.voters))


@routes("GET", "/recommend/{user:id}", schemas.ListQuery, schemas.UserList, "The list of a user of the log", _one_cost)
def one(home: Home, path: Parts, query: schemas.ListQuery) -> object:
    """Return the list of one user."""
    served = home.served
    by, user = served.by(query.by, "query.by"), served.user(path["user"])
    if query.popular and position_of(served.recommender.user_ids, user) < 0:
        return answers.popular_list(served, user, query.k, home.standing.allowed())
    users, allowed = np.array([served.user_index(user, "path.user")]), home.standing.allowed()
    if allowed is None:
        (short,) = served.recommender.short(users, [query.k], by, filter_viewed=not query.viewed)
    else:
        rules = ServedRules(filter_viewed=not query.viewed, allowed=allowed)
        ((_, (short,)),) = served.recommender.blocks([user], query.k, None, {"by": by, "rules": rules})[1]
    note = answers.WITH_VIEWED if query.viewed and by not in served.recommender.ranker.heads else None
    return schemas.UserList(user=user, by=by, note=note, items=answers.short_items(served, short))


@routes("POST", "/recommend", schemas.AnyListsRequest, schemas.Lists, "The lists of several users, or of new users",
        several_cost)  # fmt: skip
def several(home: Home, _path: Parts, request: Any) -> object:
    """Return the lists of users or histories."""
    return answers.lists(home.served, request, home.standing.allowed())


@routes("GET", "/similar/{item:id}", schemas.SimilarQuery, schemas.SimilarItems, "The items nearest to one",
        lambda size, _: size.items)  # fmt: skip
def similar(home: Home, path: Parts, query: schemas.SimilarQuery) -> object:
    """Return the nearest items."""
    served = home.served
    name, item = served.head(query.head, "query.head"), served.item(path["item"])
    served.item_index(item, "path.item")
    allowed = home.standing.allowed()
    ids, scores = served.recommender.similar_items(
        item, query.k if allowed is None else MANY, head=name, frame="arrays"
    )
    items = answers.items_of(served, ids, scores, allowed)[: query.k]
    return schemas.SimilarItems(item=item, head=name, items=items)


@routes("GET", "/explain/{user:id}/{item:id}", schemas.NoQuery, schemas.Explanation, "Why an item is listed",
        lambda size, _: size.items * size.voters)  # fmt: skip
def explain(home: Home, path: Parts, _query: schemas.NoQuery) -> object:
    """Return the reasons of an item's rank."""
    served = home.served
    user, item = served.user(path["user"]), served.item(path["item"])
    served.user_index(user, "path.user")
    served.item_index(item, "path.item")
    return served.recommender.explain(user, item) | {"title": served.titles.get(item)}
