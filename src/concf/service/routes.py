"""The questions that programs ask, and those of whoever runs the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import anyio.to_thread
import numpy as np
from anyio import CapacityLimiter
from fastapi import APIRouter, Query, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from concf.inference.lookup import place_of
from concf.inference.ranker import Short
from concf.service import answers, schemas
from concf.service.engine import Served, Service
from concf.service.metrics import Metrics
from concf.service.problems import Problem
from concf.service.swift import Gathering, one_list

Length = Annotated[int, Query(ge=1, description="places of the list")]
By = Annotated[str | None, Query(description="consensus, R-consensus or a head; the consensus, if not said")]
Head = Annotated[str | None, Query(description="whose vectors; the best head's, if not said")]
Viewed = Annotated[bool, Query(description="also what the user has used")]
Popular = Annotated[bool, Query(description="give a user whom the log does not have what is used most")]


def recommending(service: Service, gathering: Gathering) -> APIRouter:
    """Lists, similar items, explanations. Plain functions run in threads; of them a few at a time."""
    routes = APIRouter(tags=["recommend"])

    @routes.get("/recommend/{user:path}", response_model=schemas.UserList, summary="The list of a user of the log")
    async def one(
        user: str, k: Length = answers.K, by: By = None, viewed: Viewed = False, popular: Popular = False
    ) -> Any:
        service.limits.refuse_long_lists(k, "query.k")
        served = service.model
        chosen, who = served.by(by, "query.by"), served.user(user)
        if popular and place_of(served.recommender.user_ids, who) < 0:
            return _json(await run_in_threadpool(answers.stranger_list, served, who, k))
        place = served.user_place(who, "path.user")
        if viewed:
            short = await run_in_threadpool(_with_viewed, served, place, k, chosen)
            note = None if chosen in served.recommender.ranker.heads else answers.WITH_VIEWED
            return _json(answers.user_list(served, who, chosen, short, note))
        short = await one_list(served, place, k, chosen, gathering)
        return _json(answers.user_list(served, who, chosen, short))

    @routes.post("/recommend", response_model=schemas.Lists, summary="The lists of several users, or of new ones")
    def several(asked: schemas.Asked) -> Any:
        return _json(answers.lists(service.model, service.limits, asked))

    @routes.get("/similar/{item:path}", response_model=schemas.SimilarItems, summary="The items nearest to one")
    def similar(item: str, k: Length = answers.K, head: Head = None) -> Any:
        service.limits.refuse_long_lists(k, "query.k")
        served = service.model
        chosen, what = served.head(head, "query.head"), served.item(item)
        served.item_place(what, "path.item")
        ids, scores = served.recommender.similar_items(what, k, head=chosen, frame="arrays")
        return {"item": what, "head": chosen, "items": answers.items_of(served, ids, scores)}

    @routes.get("/explain/{user:path}/{item:path}", response_model=schemas.Explanation, summary="Why an item is there")
    def explain(user: str, item: str, request: Request) -> Any:
        served = service.model
        user, item = _segments(request, user, item)
        who, what = served.user(user), served.item(item)
        served.user_place(who, "path.user")
        served.item_place(what, "path.item")
        return served.recommender.explain(who, what) | {"title": served.titles.get(what)}

    return routes


def running(service: Service, metrics: Metrics) -> APIRouter:
    """Is it alive, is it ready, what does it count; another run, please."""
    routes = APIRouter(tags=["run"])
    one_at_a_time = CapacityLimiter(1)

    @routes.get("/health", response_model=schemas.Alive, summary="Whether the process lives")
    async def health() -> Any:
        return {"status": "alive"}

    @routes.get("/ready", response_model=schemas.Ready, summary="Whether a run is served")
    async def ready() -> Any:
        if service.closing:
            raise Problem(503, "not_ready", "the service is shutting down")
        return {"status": "ready", "run": service.model.name}

    @routes.get("/metrics", summary="What the service counts, for Prometheus", response_class=Response,
                responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})  # fmt: skip
    async def counted() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @routes.post("/reload", response_model=schemas.Reloaded, summary="Serve another run, or the same folder's again")
    async def reload(asked: schemas.Reload | None = None) -> Any:
        folder = None if asked is None or asked.run is None else Path(asked.run)
        served = await anyio.to_thread.run_sync(service.reload, folder, limiter=one_at_a_time)
        return {"run": served.name, "version": served.version}

    return routes


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _with_viewed(served: Served, place: int, k: int, by: str) -> Short:
    return served.recommender.short(np.array([place]), [k], by, filter_viewed=False)[0]


def _segments(request: Request, user: str, item: str) -> tuple[str, str]:
    """The two ids of a path as it was sent: once decoded, a slash within an id (%2F) looks like the one between."""
    raw = request.scope.get("raw_path")
    if raw is None:
        return user, item
    *_, first, second = raw.split(b"/")
    if raw.count(b"/") != request.scope["root_path"].count("/") + 3:
        raise Problem(404, "not_found", "expected /explain/USER/ITEM; write a slash within an id as %2F", "path")
    return unquote(first), unquote(second)
