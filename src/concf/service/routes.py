"""The routes for programs, and those for whoever operates the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, unquote

import anyio.to_thread
import numpy as np
from anyio import CapacityLimiter
from fastapi import APIRouter, Query, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from concf.inference.lookup import place_of
from concf.service import answers, schemas
from concf.service.batching import Batcher
from concf.service.loading import Service
from concf.service.metrics import Metrics
from concf.service.problems import Problem

PREFIX = "/recommend/"
JSON = "application/json"
Length = Annotated[int, Query(ge=1, description="items of the list")]
Head = Annotated[str | None, Query(description="the head whose vectors are compared; the best head by default")]


class ListOfUser:
    """`GET /recommend/{user}`, which most requests are."""

    def __init__(self, service: Service) -> None:
        self.service, self.batcher = service, Batcher()

    async def __call__(self, text: str, query: schemas.ListQuery) -> Response:
        """The list of the user that a text spells."""
        self.service.limits.check("k", query.k, "query.k")
        served = self.service.model
        by, user = served.by(query.by, "query.by"), served.user(text)
        if query.popular and place_of(served.recommender.user_ids, user) < 0:
            return Response(await run_in_threadpool(answers.popular_list, served, user, query.k), media_type=JSON)
        index, note = served.user_index(user, "path.user"), None
        if query.viewed:
            compute, users = served.recommender.short, np.array([index])
            (short,) = await run_in_threadpool(compute, users, [query.k], by, filter_viewed=False)
            note = None if by in served.recommender.ranker.heads else answers.WITH_VIEWED
        else:
            short = await self.batcher.short(served, index, query.k, by)
        return Response(answers.user_list(served, user, by, short, note), media_type=JSON)


class FastPath:
    """Answers `GET /recommend/{user}` ahead of FastAPI, whose routing and validation take longer than the list.

    What fails is passed on: FastAPI's route fails in the same way and reports the error.
    """

    route = Route(f"{PREFIX}{{user:path}}", lambda: None)  # the label of metrics

    def __init__(self, app: ASGIApp, list_of_user: ListOfUser) -> None:
        self.app, self.list_of_user = app, list_of_user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request or pass it on."""
        answer = self.app
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(PREFIX):
            try:
                parameters = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
                query = schemas.ListQuery.model_validate(parameters)
                answer = await self.list_of_user(scope["path"][len(PREFIX) :], query)
                scope["route"] = self.route
            except Exception:
                pass
        await answer(scope, receive, send)


def recommending(service: Service, list_of_user: ListOfUser) -> APIRouter:
    """Lists, similar items, explanations. Plain functions run in threads, a few at a time."""
    routes = APIRouter(tags=["recommend"])

    @routes.get("/recommend/{user:path}", response_model=schemas.UserList, summary="The list of a user of the log")
    async def one(user: str, query: Annotated[schemas.ListQuery, Query()]) -> Response:
        return await list_of_user(user, query)

    @routes.post("/recommend", response_model=schemas.Lists, summary="The lists of several users, or of new users")
    def several(request: schemas.AnyListsRequest) -> Response:
        return Response(answers.lists(service.model, service.limits, request), media_type=JSON)

    @routes.get("/similar/{item:path}", summary="The items nearest to one")
    def similar(item: str, k: Length = schemas.K, head: Head = None) -> schemas.SimilarItems:
        service.limits.check("k", k, "query.k")
        served = service.model
        name, item_id = served.head(head, "query.head"), served.item(item)
        served.item_index(item_id, "path.item")
        ids, scores = served.recommender.similar_items(item_id, k, head=name, frame="arrays")
        return {"item": item_id, "head": name, "items": answers.items_of(served, ids, scores)}

    @routes.get("/explain/{user:path}/{item:path}", response_model=schemas.Explanation, summary="Why an item is listed")
    def explain(user: str, item: str, request: Request) -> dict[str, object]:
        served = service.model
        user, item = _segments(request, user, item)
        user_id, item_id = served.user(user), served.item(item)
        served.user_index(user_id, "path.user")
        served.item_index(item_id, "path.item")
        return served.recommender.explain(user_id, item_id) | {"title": served.titles.get(item_id)}

    return routes


def operating(service: Service, metrics: Metrics) -> APIRouter:
    """Health, readiness, metrics, and loading another run."""
    routes = APIRouter(tags=["run"])
    one_at_a_time = CapacityLimiter(1)

    @routes.get("/health", summary="Whether the process is alive")
    async def health() -> schemas.Status:
        return {"status": "alive"}

    @routes.get("/ready", summary="Whether a run is served")
    async def ready() -> schemas.Status:
        if service.closing:
            raise Problem(503, "not_ready", "the service is shutting down")
        return {"status": "ready", "run": service.model.name}

    @routes.get("/metrics", summary="Metrics for Prometheus", response_class=Response,
                responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})  # fmt: skip
    async def text() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @routes.post("/reload", summary="Serve another run, or the same folder again")
    async def reload(request: schemas.ReloadRequest | None = None) -> schemas.Reloaded:
        folder = None if request is None or request.run is None else Path(request.run)
        served = await anyio.to_thread.run_sync(service.reload, folder, limiter=one_at_a_time)
        return {"run": served.name, "version": served.version}

    return routes


def _segments(request: Request, user: str, item: str) -> tuple[str, str]:
    """The two ids of a path as it was sent: once decoded, a slash within an id (%2F) looks like the one between."""
    raw = request.scope.get("raw_path")
    if raw is None:
        return user, item
    *_, first, second = raw.split(b"/")
    if raw.count(b"/") != request.scope["root_path"].count("/") + 3:
        raise Problem(404, "not_found", "expected /explain/USER/ITEM; write a slash within an id as %2F", "path")
    return unquote(first), unquote(second)
