"""The explorer's data: the run, searches, one user seen by every head."""

from __future__ import annotations

import numpy as np

from concf.service.answers import KnownItems, joined
from concf.service.explorer.schemas import (
    Facts,
    HistoryView,
    ItemSearch,
    SearchResult,
    UserSearch,
    View,
    ViewQuery,
)
from concf.service.explorer.view import Explorer
from concf.service.http.endpoints import Endpoint, Endpoints, Threads
from concf.service.loading import Service
from concf.service.schemas import NoQuery

Parts = dict[str, str]  # of a path


def data(service: Service, threads: Threads) -> list[Endpoint]:
    """The routes that the page asks, about the run that is served now."""
    routes = Endpoints("explorer", threads)

    @routes.get("/run", NoQuery, Facts, "The run that is served")
    def run(_path: Parts, _query: NoQuery) -> Facts:
        return Explorer.of(service.model).facts(service.limits)

    @routes.get("/users", UserSearch, list[SearchResult], "Search for users by id")
    def users(_path: Parts, query: UserSearch) -> list[SearchResult]:
        search = Explorer.of(service.model).users
        return search.results(search.draw(query.limit) if query.random else search.find(query.q, query.limit))

    @routes.get("/items", ItemSearch, list[SearchResult], "Search for items by id and title")
    def items(_path: Parts, query: ItemSearch) -> list[SearchResult]:
        search = Explorer.of(service.model).items
        return search.results(search.find(query.q, query.limit))

    @routes.get("/explore/{user:id}", ViewQuery, View, "A user of the log, seen by every head")
    def explore(path: Parts, query: ViewQuery) -> View:
        service.limits.check("k", query.k, "query.k")
        explorer = Explorer.of(service.model)
        index = explorer.served.user_index(explorer.served.user(path["user"]), "path.user")
        return explorer.of_user(index, query.k, query.held_out)

    @routes.post("/explore", HistoryView, View, "A history, seen by every head")
    def explore_history(_path: Parts, request: HistoryView) -> View:
        service.limits.check("k", request.k, "body.k")
        service.limits.check("history", len(request.history), "body.history")
        explorer = Explorer.of(service.model)
        known = KnownItems(explorer.served, request.unknown_items)
        items = known.of(request.history, "body.history")
        indices = [explorer.served.item_index(item, "body.history") for item in items]
        view = explorer.of_history(np.array(indices, np.int64), request.k)
        view["note"], view["unknown_items"] = joined([view["note"], known.note()]), known.report()
        return view

    return routes.all
