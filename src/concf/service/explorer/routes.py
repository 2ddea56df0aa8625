"""Routes of the explorer's data: the run, searches, one user as every head sees them."""

from __future__ import annotations

from typing import Any

from concf.service.explorer import schemas
from concf.service.explorer.view import Explorer
from concf.service.routes import Home, Parts, Routes, Size
from concf.service.schemas import terms

routes = Routes("explorer")


def _explorer(home: Home, compared: bool = False) -> Explorer:
    explorer = Explorer.of(home.run(compared))
    if not compared:
        explorer.standing = home.standing.allowed
    return explorer


def _view_cost(size: Size, request: Any) -> float:
    """All voters rank all items, and each listed item is explained; see `several_cost`."""
    history = len(request.history) if isinstance(request, schemas.HistoryView) else 0
    fixed = 500_000 + size.items * terms(request.where or "")
    return float(fixed + 5 * size.items * size.voters + 40_000 * request.k + 20 * history * request.k)


@routes("GET", "/run", schemas.Compared, schemas.Facts, "The run that is served")
def run(home: Home, _path: Parts, query: schemas.Compared) -> object:
    """Describe the run."""
    folder = home.loader.compared
    name = None if folder is None else folder.resolve().name
    return _explorer(home, query.compared).facts(home.loader.limits, name)


@routes("GET", "/users", schemas.UserSearch, list[schemas.SearchResult], "Search for users by id",
        lambda size, _: 10 * size.users)  # fmt: skip
def users(home: Home, _path: Parts, query: schemas.UserSearch) -> object:
    """Search for users."""
    search = _explorer(home).users
    return search.results(search.draw(query.limit) if query.random else search.find(query.q, query.limit))


@routes("GET", "/items", schemas.ItemSearch, list[schemas.SearchResult], "Search for items by id and title",
        lambda size, _: 10 * size.items)  # fmt: skip
def items(home: Home, _path: Parts, query: schemas.ItemSearch) -> object:
    """Search for items."""
    search = _explorer(home).items
    return search.results(search.find(query.q, query.limit))


@routes("GET", "/similar-users/{user:id}", schemas.Length, schemas.SimilarUsers, "The users nearest to one",
        lambda size, _: size.users)  # fmt: skip
def similar_users(home: Home, path: Parts, query: schemas.Length) -> object:
    """Return the nearest users."""
    return _explorer(home).similar_users(path["user"], query.k)


@routes("GET", "/explore/{user:id}", schemas.ViewQuery, schemas.View, "A user of the log, seen by every voter",
        _view_cost)  # fmt: skip
def explore(home: Home, path: Parts, query: schemas.ViewQuery) -> object:
    """Return the view of a user."""
    own = _explorer(home, query.compared)
    index = own.served.user_index(own.served.user(path["user"]), "path.user")
    return own.of_user(index, query.k, query.held_out, query.where)


@routes("POST", "/explore", schemas.HistoryView, schemas.View, "A history, seen by every voter", _view_cost)
def explore_history(home: Home, _path: Parts, request: schemas.HistoryView) -> object:
    """Return the view of a history."""
    return _explorer(home, request.compared).of_history(request)
