"""Table of routes: the form of each request and answer, its cost, and the function that computes the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from concf.inference.rules import POOL
from concf.service import answers, schemas

if TYPE_CHECKING:
    from concf.service.explorer.view import Explorer

SHORT = 4_000_000  # cost of a request up to which it counts as short, about 40 milliseconds


class Size(NamedTuple):
    """Size of a run: numbers of users, items and voters."""

    users: int
    items: int
    voters: int


Work: TypeAlias = "Callable[[Explorer, str, Any], object]"
Cost = Callable[[Size, Any], float]


class Route:
    """Route of the API.

    path: with the name of its id in braces, if it has one
    request: form of the query (GET) or the body (POST)
    answer: form of the answer; None: not documented, as for the explorer's routes
    work: (run, id in the path or "", checked query or body) -> a value for JSON; None: the front answers
    cost: (size of the run, request) -> estimated number of scores to compute; one takes about 10 nanoseconds
    """

    def __init__(
        self, name: str, request: type[schemas.Request], answer: Any, summary: str, work: Work | None = None,
        cost: Cost = lambda _size, _request: 0.0,
    ) -> None:  # fmt: skip
        self.name, self.answer, self.summary, self.work, self.cost = name, answer, summary, work, cost
        self.method, self.path = name.split()
        self.request = request


def lists_cost(size: Size, request: schemas.ListQuery) -> float:
    """Estimate the cost of lists: a score of a user and an item is 1, and the other factors were measured.

    Voters rank all items anew for histories and allow lists.
    """
    if not isinstance(request, schemas.ListsRequest):
        return size.items * (size.voters if request.viewed else 1)
    chosen = bool(request.diversity or request.at_most or request.popularity_penalty)
    rules = chosen * request.k * (2_000 + 5 * min(POOL * request.k, size.items)) + 4_000 + 500 * request.k
    fixed = size.items * schemas.terms(request.where)
    if "users" in request.model_fields_set:
        anew = request.viewed or request.items is not None
        return float(fixed + len(request.users) * (rules + size.items * (size.voters if anew else 1)))
    histories = list(request.histories.values()) or [request.history]
    used = 400 * sum(map(len, histories))
    return float(fixed + used + 500_000 + len(histories) * (rules + 20_000 + size.items * size.voters))


def view_cost(size: Size, request: Any) -> float:
    """Estimate the cost of a view: all voters rank all items, and each listed item is explained; see `lists_cost`."""
    fixed, used = 500_000 + size.items * schemas.terms(request.where), len(getattr(request, "history", ()))
    return float(fixed + 5 * size.items * size.voters + (40_000 + 20 * used) * request.k)


COMPUTED = {each.name: each for each in (
    Route("GET /recommend/{user}", schemas.ListQuery, schemas.UserList, "The list of a user of the log",
          lambda run, user, query: answers.of_user(run.served, user, query), lists_cost),
    Route("POST /recommend", schemas.ListsRequest, schemas.Lists, "The lists of several users, or of new users",
          lambda run, _, request: answers.lists(run.served, request), lists_cost),
    Route("GET /similar/{item}", schemas.SimilarQuery, schemas.Answer, "The items nearest to one",
          lambda run, item, query: answers.similar(run.served, item, query), lambda size, _: size.items),
    Route("GET /explain/{user}", schemas.ExplainQuery, schemas.Answer, "Why an item is listed",
          lambda run, user, query: answers.explain(run.served, user, query), lambda size, _: size.items * size.voters),
    Route("GET /run", schemas.Request, None, "The run that is served", lambda run, *_: run.facts()),
    Route("GET /users", schemas.SearchQuery, None, "Search for users by id",
          lambda run, _, query: run.users.results(query), lambda size, _: 10 * size.users),
    Route("GET /items", schemas.SearchQuery, None, "Search for items by id and title",
          lambda run, _, query: run.items.results(query), lambda size, _: 10 * size.items),
    Route("GET /explore/{user}", schemas.ViewQuery, None, "A user of the log, seen by every voter",
          lambda run, user, query: run.of_user(user, query), view_cost),
    Route("POST /explore", schemas.HistoryView, None, "A history, seen by every voter",
          lambda run, _, request: run.of_history(request), view_cost),
)}  # fmt: skip
