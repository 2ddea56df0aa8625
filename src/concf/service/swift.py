"""The short way to one user's list, which most requests ask for.

`GET /recommend/{user}` with nothing but k and by is answered here, without the machinery of the routes. Whatever is
unusual or wrong goes the long way: it does the same, with every check and every word of an error.
"""

from __future__ import annotations

import asyncio
from functools import partial

import anyio.to_thread
import numpy as np
from starlette.types import ASGIApp, Receive, Scope, Send

from concf.inference.lookup import place_of
from concf.inference.ranker import Short
from concf.service.answers import K, user_list
from concf.service.engine import Served, Service
from concf.service.metrics import ROUTE

PREFIX, TEMPLATE = "/recommend/", "/recommend/{user}"
LONGEST_NUMBER = 6  # digits of k
TOGETHER = 16  # requests that share a product
AT_ONCE = 1 << 26  # multiplications that the event loop does itself, a few milliseconds; a thread does more
Waiting = list[tuple[int, int, asyncio.Future[Short]]]  # of a user's position and k


class Gathering:
    """Requests of one moment by the same head share one product, which costs little more than reading the items.

    None waits for others to come: those that are there when the first is to be answered go together.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[Served, str], Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, served: Served, user: int, k: int, by: str) -> Short:
        """The items of the user at a position, and their scores."""
        loop, key = asyncio.get_running_loop(), (served, by)
        answer: asyncio.Future[Short] = loop.create_future()
        group = self._waiting.setdefault(key, [])
        group.append((user, k, answer))
        if len(group) == 1:
            loop.call_soon(self._begin, served, by)
        return await answer

    def _begin(self, served: Served, by: str) -> None:
        group = self._waiting.pop((served, by))
        for at in range(0, len(group), TOGETHER):
            task = asyncio.create_task(_answer(served, by, group[at : at + TOGETHER]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _answer(served: Served, by: str, group: Waiting) -> None:
    users, ks, answers = zip(*group, strict=True)
    work = partial(served.recommender.short, np.array(users), ks, by)
    size = len(group) * served.recommender.ranker.factors(by).item.numel()
    try:
        found = work() if size <= AT_ONCE else await anyio.to_thread.run_sync(work)
    except Exception as error:  # whoever waits is told
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
        return
    for answer, each in zip(answers, found, strict=True):
        if not answer.done():
            answer.set_result(each)


class Swift:
    """Answers the plain questions for one list, and passes everything else on."""

    def __init__(self, app: ASGIApp, service: Service, gathering: Gathering) -> None:
        self.app, self.service, self.gathering = app, service, gathering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        body = None
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(PREFIX):
            body = await self._answer(scope["path"][len(PREFIX) :], scope["query_string"])
        if body is None:
            await self.app(scope, receive, send)
            return
        scope[ROUTE] = TEMPLATE
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, text: str, query: bytes) -> bytes | None:
        """The answer, or None for a question that is not plain."""
        asked = plain(query)
        if asked is None or not self.service.ready:
            return None
        served, (k, named) = self.service.model, asked
        model = served.recommender
        user, by = served.user(text), named or model.default
        place = place_of(model.user_ids, user)
        if place < 0 or by not in model.ranker.names or not 1 <= k <= self.service.limits.k:
            return None
        try:
            return user_list(served, user, by, await one_list(served, place, k, by, self.gathering))
        except Exception:  # the long way will meet it too, and say it
            return None


async def one_list(served: Served, place: int, k: int, by: str, gathering: Gathering) -> Short:
    """The list of the user at a position: the consensus' is looked up, a head's worked out."""
    if by in served.recommender.ranker.heads:
        return await gathering.ask(served, place, k, by)
    return served.recommender.short(np.array([place]), [k], by)[0]


def plain(query: bytes) -> tuple[int, str | None] | None:
    """(k, by) of a query that names these alone, each at most once, in plain letters; else None."""
    if not query:
        return K, None
    found: dict[str, str] = {}
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if name not in ("k", "by") or name in found or not value or "%" in value or "+" in value:
            return None
        found[name] = value
    k = found.get("k", str(K))
    return (int(k), found.get("by")) if k.isascii() and k.isdigit() and len(k) <= LONGEST_NUMBER else None
