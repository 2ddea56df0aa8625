"""The limits of requests, and the checks ahead of the routes: token, concurrency, size and pace of bodies."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.problems import Kind, Problem

OPEN = ("/health", "/ready", "/", "/docs", "/openapi.json")  # paths that need no token, besides the explorer's assets
ASSETS = "/explorer/"
STATUSES: dict[str, tuple[int, Kind]] = {
    "k": (422, "bad_request"), "users": (413, "too_large"), "history": (413, "too_large"),
}  # fmt: skip
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
DRAIN_BYTES, DRAIN_SECONDS = 8 << 20, 1.0  # of a body that is too large: who is still sending would not see the answer


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    k: items of a list; users: of a batch; history: items of one; body: bytes; in_flight: requests at a time;
    body_seconds: for the body to arrive in
    """

    k: int = 200
    users: int = 1000
    history: int = 10_000
    body: int = 1 << 20
    in_flight: int = 512
    body_seconds: float = 10.0

    def check(self, name: Literal["k", "users", "history"], size: int, where: str) -> None:
        """Refuse a list, a batch or a history that is too long."""
        most = getattr(self, name)
        if size > most:
            status, kind = STATUSES[name]
            raise Problem(status, kind, f"{name}: {size}, but this service allows at most {most}", where)


class TokenGuard:
    """Lets only requests with the token pass."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN or scope["path"].startswith(ASSETS) or self._allows(scope):
            await self.app(scope, receive, send)
            return
        message = "a token is needed; send the header Authorization: Bearer TOKEN"
        problem = Problem(401, "unauthorised", message, "header.authorization")
        await problem.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.partition(b" ")
        return hmac.compare_digest(token, self.token) and scheme.lower() == b"bearer"


class RequestLimits:
    """Refuses too many requests at a time, and bodies that are too large or too slow."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits, self.in_flight = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.in_flight >= self.limits.in_flight:
            message = f"{self.limits.in_flight} requests are being answered; try again in a moment"
            await Problem(503, "busy", message).response({"Retry-After": "1"})(scope, receive, send)
        else:
            self.in_flight += 1
            try:
                await self._pass_on(scope, receive, send)
            finally:
                self.in_flight -= 1

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in WITHOUT_BODY:
            await self.app(scope, receive, send)
            return
        try:
            body = await self._body(receive)
        except Problem as problem:
            await problem.response({"Connection": "close"})(scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None if the caller left. Some of what is too much is read and dropped."""
        body, size, most = bytearray(), 0, self.limits.body
        try:
            async with asyncio.timeout(self.limits.body_seconds) as deadline:
                more = True
                while more and size <= most + DRAIN_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size <= most:
                        body += part
                    elif size - len(part) <= most:
                        deadline.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
        except TimeoutError:
            if size <= most:
                late = f"the body did not arrive within {self.limits.body_seconds:g} seconds"
                raise Problem(408, "too_slow", late, "body") from None
        if size > most:
            raise Problem(413, "too_large", f"the body has more than {most} bytes", "body")
        return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once, then what the caller sends."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(messages, None) or await receive()

    return replayed
