"""The limits of requests: their number at a time, their sizes, and the size and pace of bodies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from concf.service.problems import Problem

WORDS = {"listed": "users x k", "histories": "items of all histories"}
DRAIN_BYTES, DRAIN_SECONDS = 8 << 20, 1.0  # of a body that is too large: who is still sending would not see the answer
CLOSE, SOON = {"Connection": "close"}, {"Retry-After": "1"}


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of those at a time.

    k: items of a list; users: of a batch; listed: users x k; history: items of one; histories: of all of a batch;
    body: bytes; in_flight, batches: requests, and batches among them, being answered at a time
    body_seconds: for the body to arrive in; seconds: until an answer that is computed in a thread is complete
    """

    k: int = 200
    users: int = 1000
    listed: int = 50_000
    history: int = 10_000
    histories: int = 20_000
    body: int = 1 << 20
    in_flight: int = 512
    batches: int = 16
    body_seconds: float = 10.0
    seconds: float = 30.0

    def check(self, name: Literal["k", "users", "listed", "history", "histories"], size: int, where: str) -> None:
        """Refuse a list, a batch or a history that is too long."""
        most = getattr(self, name)
        if size > most:
            message = f"{WORDS.get(name, name)}: {size}, but this service allows at most {most}"
            if name == "k":
                raise Problem(422, "bad_request", message, where)
            raise Problem(413, "too_large", message, where)

    async def read_body(self, receive: Receive) -> bytes | None:
        """Read the whole body; None if the caller left. Part of a body that is too large is read and dropped."""
        body, size, most = bytearray(), 0, self.body
        try:
            async with asyncio.timeout(self.body_seconds) as deadline:
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
                late = f"the body did not arrive within {self.body_seconds:g} seconds"
                raise Problem(408, "too_slow", late, "body", CLOSE) from None
        if size > most:
            raise Problem(413, "too_large", f"the body has more than {most} bytes", "body", CLOSE)
        return bytes(body)


class InFlight:
    """Refuses more requests at a time than the limits allow."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most, self.count = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        if scope["type"] == "http" and self.count >= self.most:
            message = f"{self.most} requests are being answered; try again in a moment"
            await Problem(503, "busy", message, headers=SOON).response()(scope, receive, send)
            return
        self.count += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.count -= 1
