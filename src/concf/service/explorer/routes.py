"""The explorer's data (the run, searches, one user seen by every head), its page and its assets."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import cache
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic_core import to_json
from starlette.responses import Response

from concf.service.explorer.compared import Comparison
from concf.service.explorer.schemas import Facts, HistoryView, SearchResult, SimilarUsers, View
from concf.service.explorer.view import Explorer
from concf.service.loading import Service
from concf.service.problems import Problem
from concf.service.schemas import K

RESULTS, MOST_RESULTS = 20, 100  # of a search
SearchText = Annotated[str, Query(max_length=1000, description="empty: those that are used most")]
ResultCount = Annotated[int, Query(ge=1, le=MOST_RESULTS, description="how many results at most")]
Length = Annotated[int, Query(ge=1, description="items of each list")]
Compared = Annotated[bool, Query(description="whether the run that --compare names is asked")]
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}  # fmt: skip
mimetypes.add_type("text/javascript", ".js")  # some systems have another


def data(service: Service) -> APIRouter:
    """The routes that the page asks, about the run that is served now, or the one that it is compared with."""
    routes = APIRouter(tags=["explorer"])
    comparison = Comparison(service)

    @routes.get("/run", summary="The run that is served")
    def run(compared: Compared = False) -> Facts:
        return comparison.explorer(compared).facts(service.limits, comparison.name)

    @routes.get("/users", summary="Search for users by id")
    def users(
        q: SearchText = "",
        limit: ResultCount = RESULTS,
        random: Annotated[bool, Query(description="random users instead")] = False,
    ) -> list[SearchResult]:
        search = Explorer.of(service.model).users
        return search.results(search.draw(limit) if random else search.find(q, limit))

    @routes.get("/items", summary="Search for items by id and title")
    def items(q: SearchText = "", limit: ResultCount = RESULTS) -> list[SearchResult]:
        search = Explorer.of(service.model).items
        return search.results(search.find(q, limit))

    @routes.get("/similar-users/{user:path}", summary="The users nearest to one")
    def similar_users(user: str, k: Length = K) -> SimilarUsers:
        service.limits.check("k", k, "query.k")
        return Explorer.of(service.model).similar_users(user, k)

    @routes.get("/explore/{user:path}", response_model=View, summary="A user of the log, seen by every voter")
    def explore(
        user: str,
        k: Length = K,
        held_out: Annotated[bool, Query(description="whether held-out items may be listed")] = False,
        compared: Compared = False,
    ) -> Response:
        service.limits.check("k", k, "query.k")
        explorer = comparison.explorer(compared)
        index = explorer.served.user_index(explorer.served.user(user), "path.user")
        return _json(explorer.of_user(index, k, held_out))

    @routes.post("/explore", response_model=View, summary="A history, seen by every voter")
    def explore_history(request: HistoryView) -> Response:
        service.limits.check("k", request.k, "body.k")
        service.limits.check("history", len(request.history), "body.history")
        return _json(comparison.explorer(request.compared).of_ids(request))

    return routes


def _json(view: View) -> Response:
    """A view as it is: validating hundreds of votes made here would take longer than making them."""
    return Response(to_json(view), media_type="application/json")


def pages() -> APIRouter:
    """/, /docs and /explorer/{file}: files of the package, no others."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def index(request: Request) -> Response:
        return _file("index.html", request)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        return _file("docs.html", request)

    @routes.get("/explorer/{file}")
    async def asset(file: str, request: Request) -> Response:
        return _file(file, request)

    return routes


def _file(name: str, request: Request) -> Response:
    """A file of the explorer, compressed for callers who accept that; 304 for callers who have it."""
    if name not in _files():
        raise Problem(404, "not_found", f"the explorer has no file {name!r}")
    body, compressed, kind, tag = _files()[name]
    headers = HEADERS | {"ETag": f'"{tag}"'}
    if _accepts_gzip(request.headers.get("accept-encoding", "")):
        body, headers = compressed, headers | {"ETag": f'"{tag}-gzip"', "Content-Encoding": "gzip"}
    tags = request.headers.get("if-none-match", "").split(",")
    if headers["ETag"] in (each.strip().removeprefix("W/") for each in tags):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


def _accepts_gzip(header: str) -> bool:
    """Whether a list of encodings names gzip, or any, with another weight than 0."""
    parts = (part.partition(";") for part in header.lower().replace(" ", "").split(","))
    weights = {coding: weight for coding, _, weight in parts}
    return not re.fullmatch(r"q=0(\.0*)?", weights.get("gzip", weights.get("*", "q=0")))


@cache
def _files() -> dict[str, tuple[bytes, bytes, str, str]]:
    """File -> its bytes, the same compressed, its type, its tag."""
    assets = {}
    for file in (files("concf.service.explorer") / "assets").iterdir():
        body, kind = file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        assets[file.name] = body, gzip.compress(body, mtime=0), kind, hashlib.sha256(body).hexdigest()[:32]
    return assets
