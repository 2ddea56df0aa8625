"""Endpoints: validation of requests, threads, deadlines and responses."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeVar, cast
from urllib.parse import parse_qsl, unquote

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from concf.service.http.middleware import header
from concf.service.limits import SOON, Limits
from concf.service.problems import Problem, invalid

JSON = "application/json"
Parts = dict[str, str]  # of a path
Handler = Callable[[Parts, Any], object]
H = TypeVar("H", bound=Handler)
T = TypeVar("T")


class IdConvertor(PathConvertor):
    """The rest of a path, of any characters, line breaks too."""

    regex = r"[\s\S]*"


register_url_convertor("id", IdConvertor())


class Threads:
    """Thread limits. Batches have few threads of their own, so that other requests need not wait for them."""

    def __init__(self, limits: Limits) -> None:
        cores = os.cpu_count() or 1
        self.limits, self.batches = limits, 0
        self.quick, self.slow = anyio.CapacityLimiter(max(2, cores)), anyio.CapacityLimiter(max(1, cores - 1))

    async def run(self, work: Callable[[], T], slow: bool = False) -> T:
        """Return the result of `work`, computed as soon as a thread is free."""
        return await anyio.to_thread.run_sync(work, limiter=self.slow if slow else self.quick)


class Endpoint:
    """One route, an ASGI application.

    handler: (parts of the path, checked query or body) -> bytes of JSON, parts of them, a value for JSON or a
             response. A coroutine is answered in the event loop, a plain function in a thread: within the deadline,
             and not if the caller has left. An iterator is a batch: its parts are computed one by one as they are sent
    request: the form of the query (GET) or the body (POST); answer: that of the answer, None if it is not JSON
    """

    def __init__(
        self, method: Literal["GET", "POST"], path: str, handler: Handler, threads: Threads, request: Any, answer: Any,
        summary: str, tag: str,
    ) -> None:  # fmt: skip
        self.method, self.path, self.handler, self.threads = method, path, handler, threads
        self.request, self.answer, self.summary, self.tag = TypeAdapter(request), answer, summary, tag
        self.template, self.ids = path.replace(":id}", "}"), re.findall(r"{(\w+):id}", path)
        self.in_loop = inspect.iscoroutinefunction(handler)
        self.is_batch = inspect.isgeneratorfunction(handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope["path_params"]
        if len(self.ids) > 1:  # once decoded, a slash within an id (%2F) looks like a separator
            segments = scope["raw_path"].split(b"/")
            if len(segments) != self.path.count("/") + 1:
                raise Problem(404, "not_found", f"expected {self.template}; write a slash within an id as %2F", "path")
            path = dict(zip(self.ids, map(unquote, segments[-len(self.ids) :]), strict=True))
        if self.method == "GET":
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            try:
                work = partial(self.handler, path, self.request.validate_python(query))
            except ValidationError as error:
                raise invalid(error, "query") from None
            if self.in_loop:
                await _response(await cast("Awaitable[object]", work()))(scope, receive, send)
                return
        else:
            body = await self.threads.limits.read_body(receive)
            if body is None:
                return
            if header(scope, b"content-type").partition(b";")[0].strip().lower() != JSON.encode():
                message = "the body is not declared as JSON; send the header Content-Type: application/json"
                raise Problem(422, "bad_request", message, "header.content-type")
            work = partial(self._with_body, path, body)
        await self._attended(work, scope, receive, send)

    def _with_body(self, path: dict[str, str], body: bytes) -> object:
        try:
            body_form = self.request.validate_json(body)
        except ValidationError as error:
            raise invalid(error, "body") from None
        return self.handler(path, body_form)

    async def _attended(self, work: Callable[[], object], scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send the answer within the deadline; cancel when the caller disconnects."""
        if self.is_batch and self.threads.batches >= self.threads.limits.batches:
            message = f"{self.threads.batches} batches are being answered; try again in a moment"
            raise Problem(503, "busy", message, headers=SOON)
        answer, problem = _Answer(scope, send, self.threads), None
        seconds = math.inf if self.in_loop else self.threads.limits.seconds
        self.threads.batches += self.is_batch
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
                with anyio.move_on_after(seconds) as deadline:
                    try:
                        if self.is_batch:
                            await answer.in_parts(work)
                        elif self.in_loop:
                            await answer.at_once(_response(await cast("Awaitable[object]", work())))
                        else:
                            await answer.at_once(await self.threads.run(lambda: _response(work())))
                    except Exception as error:  # re-raised alone, not as an exception group
                        problem = error
                group.cancel_scope.cancel()
        finally:
            self.threads.batches -= self.is_batch
        if deadline.cancelled_caught and not answer.started:  # else the connection is closed
            problem = Problem(503, "deadline", f"the answer was not ready within {seconds:g} seconds", headers=SOON)
        if problem is not None:
            raise problem


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class _Answer:
    """An answer that is computed in threads. started: whether some of it was sent"""

    def __init__(self, scope: Scope, send: Send, threads: Threads) -> None:
        self.scope, self.send, self.threads, self.started = scope, send, threads, False

    async def at_once(self, response: Response) -> None:
        """Send all of it."""
        self.started = True
        await response(self.scope, cast("Receive", anyio.sleep_forever), self.send)

    async def in_parts(self, work: Callable[[], object]) -> None:
        """Compute a part when the one before is taken; an answer of one part is sent with its length."""
        parts = cast("Iterator[bytes]", await self.threads.run(work, slow=True))
        following = partial(next, parts, None)
        part, second = await self.threads.run(following, slow=True), await self.threads.run(following, slow=True)
        if second is None:
            await self.at_once(_response(part))
            return
        await anyio.lowlevel.checkpoint()  # the deadline has passed, or the caller has left
        self.started = True
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", JSON.encode())]}
        await self.send(start)
        while part is not None:
            await self.send({"type": "http.response.body", "body": part, "more_body": True})
            part, second = second, None if second is None else await self.threads.run(following, slow=True)
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def _response(answer: object) -> Response:
    if isinstance(answer, Response):
        return answer
    return Response(answer if isinstance(answer, bytes) else to_json(answer), media_type=JSON)


class Endpoints:
    """Collects the routes of one subject."""

    def __init__(self, tag: str, threads: Threads) -> None:
        self.tag, self.threads = tag, threads
        self.all: list[Endpoint] = []

    def __call__(
        self, method: Literal["GET", "POST"], path: str, request: Any, answer: Any, summary: str
    ) -> Callable[[H], H]:
        """Declare a route; see `Endpoint`."""

        def add(handler: H) -> H:
            self.all.append(Endpoint(method, path, handler, self.threads, request, answer, summary, self.tag))
            return handler

        return add
