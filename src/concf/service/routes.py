"""Routes of the API: lists, similar items and explanations; health, metrics and reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from concf.inference.lookup import Short, position_of
from concf.service import answers, schemas
from concf.service.http.endpoints import Endpoint, Endpoints, Parts, Threads
from concf.service.http.middleware import RELOAD, Access, Metrics
from concf.service.loading import Served, Service
from concf.service.problems import Problem

MOST = 16  # requests that share a product
IN_LOOP = 1 << 26  # multiplications that the event loop does itself, a few milliseconds; more go to a thread
Waiting = tuple[int, int, asyncio.Future[Short]]  # the index of a user, k, the list to come


class Batcher:
    """Answers requests that wait for the same head together: a product costs little more than reading the items.

    No request waits for others to arrive: those present when the first is about to be answered share its product.
    """

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self._waiting: dict[tuple[Served, str], list[Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def short(self, served: Served, user: int, k: int, by: str) -> Short:
        """The items of a user and their scores: a consensus is looked up, a head's list computed."""
        if by not in served.recommender.ranker.heads:
            return served.recommender.short(np.array([user]), [k], by)[0]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Short] = loop.create_future()
        group = self._waiting.setdefault((served, by), [])
        group.append((user, k, answer))
        if len(group) == 1:
            loop.call_soon(self._start, served, by)
        return await answer

    def _start(self, served: Served, by: str) -> None:
        group = self._waiting.pop((served, by))
        for begin in range(0, len(group), MOST):
            task = asyncio.create_task(self._answer(served, by, group[begin : begin + MOST]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, served: Served, by: str, group: Sequence[Waiting]) -> None:
        users, ks, answers = zip(*group, strict=True)
        compute = partial(served.recommender.short, np.array(users), ks, by)
        size = len(group) * served.recommender.ranker.factors(by).item.numel()
        try:
            lists = compute() if size <= IN_LOOP else await self.threads.run(compute)
        except Exception as error:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, short in zip(answers, lists, strict=True):
            if not answer.done():
                answer.set_result(short)


def recommending(service: Service, threads: Threads) -> list[Endpoint]:
    """Return the routes of lists, similar items and explanations."""
    routes, batcher = Endpoints("recommend", threads), Batcher(threads)

    @routes("GET", "/recommend/{user:id}", schemas.ListQuery, schemas.UserList, "The list of a user of the log")
    async def one(path: Parts, query: schemas.ListQuery) -> bytes:
        service.limits.check("k", query.k, "query.k")
        served = service.model
        by, user = served.by(query.by, "query.by"), served.user(path["user"])
        key = (user, by, query.k)
        if not query.viewed and key in served.kept:
            return served.kept[key]
        if query.popular and position_of(served.recommender.user_ids, user) < 0:
            return await threads.run(partial(answers.popular_list, served, user, query.k))
        index, note = served.user_index(user, "path.user"), None
        if query.viewed:
            compute = partial(served.recommender.short, np.array([index]), [query.k], by, filter_viewed=False)
            (short,) = await threads.run(compute)
            note = None if by in served.recommender.ranker.heads else answers.WITH_VIEWED
        else:
            short = await batcher.short(served, index, query.k, by)
        answer = answers.user_list(served, user, by, short, note)
        if not query.viewed:
            served.keep(key, answer)
        return answer

    @routes("POST", "/recommend", schemas.AnyListsRequest, schemas.Lists, "The lists of several users, or of new users")
    def several(_path: Parts, request: Any) -> Iterator[bytes]:
        yield from answers.lists(service.model, service.limits, request)

    @routes("GET", "/similar/{item:id}", schemas.SimilarQuery, schemas.SimilarItems, "The items nearest to one")
    def similar(path: Parts, query: schemas.SimilarQuery) -> schemas.SimilarItems:
        service.limits.check("k", query.k, "query.k")
        served = service.model
        name, item_id = served.head(query.head, "query.head"), served.item(path["item"])
        served.item_index(item_id, "path.item")
        ids, scores = served.recommender.similar_items(item_id, query.k, head=name, frame="arrays")
        return {"item": item_id, "head": name, "items": answers.items_of(served, ids, scores)}

    @routes("GET", "/explain/{user:id}/{item:id}", schemas.NoQuery, schemas.Explanation, "Why an item is listed")
    def explain(path: Parts, _query: schemas.NoQuery) -> dict[str, object]:
        served = service.model
        user_id, item_id = served.user(path["user"]), served.item(path["item"])
        served.user_index(user_id, "path.user")
        served.item_index(item_id, "path.item")
        return served.recommender.explain(user_id, item_id) | {"title": served.titles.get(item_id)}

    return routes.all


def operating(service: Service, threads: Threads, metrics: Metrics, access: Access) -> list[Endpoint]:
    """Return the routes of health, readiness, metrics and reloads."""
    routes = Endpoints("run", threads)

    @routes("GET", "/health", schemas.NoQuery, schemas.Status, "Whether the process is alive")
    async def health(_path: Parts, _query: schemas.NoQuery) -> schemas.Status:
        return {"status": "alive"}

    @routes("GET", "/ready", schemas.NoQuery, schemas.Status, "Whether a run is served")
    async def ready(_path: Parts, _query: schemas.NoQuery) -> schemas.Status:
        if service.closing:
            raise Problem(503, "not_ready", "the service is shutting down")
        return {"status": "ready", "run": service.model.name}

    @routes("GET", "/metrics", schemas.NoQuery, None, "Metrics for Prometheus")
    async def text(_path: Parts, _query: schemas.NoQuery) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    if access.admin_token is not None:

        @routes("POST", RELOAD, schemas.ReloadRequest, schemas.Reloaded, "Serve another run, or the same folder again")
        async def reload(_path: Parts, request: schemas.ReloadRequest) -> schemas.Reloaded:
            return await service.reload_soon(None if request.run is None else Path(request.run))

    return routes.all
