"""The explorer's data: the run, searches, one user seen by every head."""

from __future__ import annotations

import threading

from concf.errors import ConcfError
from concf.service.explorer.schemas import (
    Compared,
    Facts,
    HistoryView,
    ItemSearch,
    Length,
    SearchResult,
    SimilarUsers,
    UserSearch,
    View,
    ViewQuery,
)
from concf.service.explorer.view import Explorer
from concf.service.http.endpoints import Endpoint, Endpoints, Threads
from concf.service.loading import Served, Service
from concf.service.problems import Problem

Parts = dict[str, str]  # of a path


class Comparison:
    """Explorers of the run that is served and of the one in `service.compared`, which is loaded when it is needed."""

    def __init__(self, service: Service) -> None:
        self.service, self._lock = service, threading.Lock()
        self._other: Served | None = None

    @property
    def name(self) -> str | None:
        """The name of the other run's folder."""
        return None if self.service.compared is None else self.service.compared.resolve().name

    def explorer(self, compared: bool = False) -> Explorer:
        """Of the run that is served, or of the other."""
        return Explorer.of(self._loaded() if compared else self.service.model)

    def _loaded(self) -> Served:
        folder = self.service.compared
        if folder is None:
            raise Problem(404, "not_found", "this service compares no runs; start it with --compare RUN", "compared")
        with self._lock:
            try:
                self._other = self._other or self.service.load(folder, 0)
            except ConcfError as error:
                raise Problem(409, "refused_run", str(error), str(folder)) from error
            return self._other


def data(service: Service, threads: Threads) -> list[Endpoint]:
    """The routes that the page asks, about the run that is served now, or the one that it is compared with."""
    routes = Endpoints("explorer", threads)
    comparison = Comparison(service)

    @routes.get("/run", Compared, Facts, "The run that is served")
    def run(_path: Parts, query: Compared) -> Facts:
        return comparison.explorer(query.compared).facts(service.limits, comparison.name)

    @routes.get("/users", UserSearch, list[SearchResult], "Search for users by id")
    def users(_path: Parts, query: UserSearch) -> list[SearchResult]:
        search = Explorer.of(service.model).users
        return search.results(search.draw(query.limit) if query.random else search.find(query.q, query.limit))

    @routes.get("/items", ItemSearch, list[SearchResult], "Search for items by id and title")
    def items(_path: Parts, query: ItemSearch) -> list[SearchResult]:
        search = Explorer.of(service.model).items
        return search.results(search.find(query.q, query.limit))

    @routes.get("/similar-users/{user:id}", Length, SimilarUsers, "The users nearest to one")
    def similar_users(path: Parts, query: Length) -> SimilarUsers:
        service.limits.check("k", query.k, "query.k")
        return Explorer.of(service.model).similar_users(path["user"], query.k)

    @routes.get("/explore/{user:id}", ViewQuery, View, "A user of the log, seen by every voter")
    def explore(path: Parts, query: ViewQuery) -> View:
        service.limits.check("k", query.k, "query.k")
        explorer = comparison.explorer(query.compared)
        index = explorer.served.user_index(explorer.served.user(path["user"]), "path.user")
        return explorer.of_user(index, query.k, query.held_out, query.where)

    @routes.post("/explore", HistoryView, View, "A history, seen by every voter")
    def explore_history(_path: Parts, request: HistoryView) -> View:
        service.limits.check("k", request.k, "body.k")
        service.limits.check("history", len(request.history), "body.history")
        return comparison.explorer(request.compared).of_ids(request)

    return routes.all
