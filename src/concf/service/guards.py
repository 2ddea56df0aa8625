"""What stands before the routes: a token, a limit on requests at a time, and on the size and slowness of bodies."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.engine import Limits
from concf.service.problems import Problem

OPEN = ("/health", "/ready", "/", "/docs", "/openapi.json")  # ... and the explorer's assets need no token
ASSETS = "/explorer/"
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")
PATIENCE_BYTES, PATIENCE_SECONDS = 8 << 20, 1.0  # of a body too large that is read and thrown away: a caller who is
# still sending would not see the answer


class Guarded:
    """Lets pass who has the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.expected = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        if scope["type"] != "http" or scope["path"] in OPEN or scope["path"].startswith(ASSETS):
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if hmac.compare_digest(token, self.expected) and scheme.lower() == b"bearer":
            await self.app(scope, receive, send)
            return
        problem = Problem(401, "unauthorised", "say who you are: Authorization: Bearer TOKEN", "header.authorization")
        await problem.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)


class Bounded:
    """Refuses what is too much: requests at a time, bytes of a body, seconds that it takes to arrive."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits, self.in_flight = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the whole body, or refuse."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.in_flight >= self.limits.in_flight:
            busy = f"{self.limits.in_flight} requests are being answered; ask again in a moment"
            await Problem(503, "busy", busy).response({"Retry-After": "1"})(scope, receive, send)
        else:
            self.in_flight += 1
            try:
                await self._pass(scope, receive, send)
            finally:
                self.in_flight -= 1

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        """The whole body, or None from a caller who left."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while len(body) <= self.limits.body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            slow = f"the body did not arrive within {self.limits.body_seconds:g} seconds"
            raise Problem(408, "too_slow", slow, "body") from None
        if len(body) > self.limits.body:
            await _throw_away(receive)
            raise Problem(413, "too_large", f"the body has more than {self.limits.body} bytes", "body")
        return bytes(body)


async def _throw_away(receive: Receive) -> None:
    """The rest of a body, to some extent."""
    read = 0
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while read < PATIENCE_BYTES:
                message = await receive()
                read += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand the body out once, then listen to the caller again."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def replayed() -> Any:
        nonlocal message
        if message is None:
            return await receive()
        given, message = message, None
        return given

    return replayed
