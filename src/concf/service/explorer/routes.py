"""Routes of the explorer's data: the run, searches, one user as every head sees them."""

from __future__ import annotations

from concf.service.explorer import schemas
from concf.service.explorer.view import Explorer
from concf.service.http.endpoints import Endpoint, Endpoints, Parts, Threads
from concf.service.loading import Service


def data(service: Service, threads: Threads) -> list[Endpoint]:
    """Return the routes that the page requests: the served run, and the one that it is compared with."""
    routes = Endpoints("explorer", threads)

    def explorer(compared: bool = False) -> Explorer:
        return Explorer.of(service.compared_model() if compared else service.model)

    @routes("GET", "/run", schemas.Compared, schemas.Facts, "The run that is served")
    def run(_path: Parts, query: schemas.Compared) -> schemas.Facts:
        compared = None if service.compared is None else service.compared.resolve().name
        return explorer(query.compared).facts(service.limits, compared)

    @routes("GET", "/users", schemas.UserSearch, list[schemas.SearchResult], "Search for users by id")
    def users(_path: Parts, query: schemas.UserSearch) -> list[schemas.SearchResult]:
        search = explorer().users
        return search.results(search.draw(query.limit) if query.random else search.find(query.q, query.limit))

    @routes("GET", "/items", schemas.ItemSearch, list[schemas.SearchResult], "Search for items by id and title")
    def items(_path: Parts, query: schemas.ItemSearch) -> list[schemas.SearchResult]:
        search = explorer().items
        return search.results(search.find(query.q, query.limit))

    @routes("GET", "/similar-users/{user:id}", schemas.Length, schemas.SimilarUsers, "The users nearest to one")
    def similar_users(path: Parts, query: schemas.Length) -> schemas.SimilarUsers:
        service.limits.check("k", query.k, "query.k")
        return explorer().similar_users(path["user"], query.k)

    @routes("GET", "/explore/{user:id}", schemas.ViewQuery, schemas.View, "A user of the log, seen by every voter")
    def explore(path: Parts, query: schemas.ViewQuery) -> schemas.View:
        service.limits.check("k", query.k, "query.k")
        own = explorer(query.compared)
        index = own.served.user_index(own.served.user(path["user"]), "path.user")
        return own.of_user(index, query.k, query.held_out, query.where)

    @routes("POST", "/explore", schemas.HistoryView, schemas.View, "A history, seen by every voter")
    def explore_history(_path: Parts, request: schemas.HistoryView) -> schemas.View:
        service.limits.check("k", request.k, "body.k")
        service.limits.check("history", len(request.history), "body.history")
        return explorer(request.compared).of_history(request)

    return routes.all
