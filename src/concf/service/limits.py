"""The limits of requests: sizes, estimated cost, number at a time, and the size and pace of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.types import Receive

from concf.service.problems import Problem

FIELDS = 32  # of a query or a body
QUERY_BYTES = 1 << 14
DRAIN_BYTES, DRAIN_SECONDS = 8 << 20, 1.0  # of a body that is too large: who is still sending would not see the answer
CLOSE, SOON = {"Connection": "close"}, {"Retry-After": "1"}
SHORT = 4_000_000  # cost of a request up to which it counts as short, about 40 milliseconds


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of those at a time.

    k: items of a list; users: of a batch; listed: users x k; history: items of one; histories: of all of a batch, and
    of an allow or deny list; body: bytes; cost: estimated number of scores (users x items) to compute
    waiting, batches: short requests, and long ones, that wait for a process at a time
    body_seconds: for the body to arrive in; seconds: until an answer is computed, and again until it is sent
    """

    k: int = 200
    users: int = 1000
    listed: int = 50_000
    history: int = 10_000
    histories: int = 20_000
    body: int = 1 << 20
    cost: int = 100_000_000
    waiting: int = 512
    batches: int = 16
    body_seconds: float = 10.0
    seconds: float = 30.0

    def check(self, what: str, size: float, most: float, where: str, status: int = 413) -> None:
        """Refuse a size above its limit."""
        if size > most:
            found = f"{size:,.0f}" if size < 1e15 else "far too many"
            message = f"{what}: {found}, but this service allows at most {most:,.0f}"
            raise Problem(status, "too_large" if status == 413 else "bad_request", message, where)

    def check_cost(self, cost: float) -> None:
        """Refuse a request that would compute too much."""
        if cost > self.cost:
            message = f"about {cost:,.0f} scores (users x items) to compute, but this service allows at most"
            raise Problem(422, "too_costly", f"{message} {self.cost:,}; send fewer users or a smaller k")

    def parse(self, body: bytes) -> Any:
        """Parse JSON whose numbers of fields and elements are within the limits, before any element is validated."""
        self.check("values", body.count(b","), 4 * self.histories + self.users, "body")  # so parsing takes milliseconds
        try:
            parsed = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise Problem(400, "bad_request", f"not JSON: {error}", "body") from None
        if isinstance(parsed, dict):
            self.check("fields", len(parsed), FIELDS, "body", 422)
            self._check_lists(parsed)
        return parsed

    def _check_lists(self, body: dict[str, Any]) -> None:
        for name, value in body.items():
            size = len(value) if isinstance(value, list | dict) else 0
            lists = list(value.values()) if isinstance(value, dict) else []
            items = sum(len(each) for each in lists if isinstance(each, Sized))
            most = {"history": self.history, "items": self.histories, "exclude": self.histories, "at_most": FIELDS}
            self.check(f"length of {name[:40]}", size, most.get(name, self.users), f"body.{name[:40]}")
            self.check(f"items of all {name[:40]}", items, self.histories, f"body.{name[:40]}")
            for each in lists if name == "histories" else ():
                self.check("items of a history", len(each) if isinstance(each, list) else 0, self.history, "body")
            k = body.get("k", 10)
            if name in ("users", "histories") and isinstance(k, int | float):
                self.check("users x k", size * k, self.listed, f"body.{name}")

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
