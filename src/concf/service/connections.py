"""Connections: limits of their number, and of the size and pace of requests' heads, around uvicorn's own handling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from concf.service.problems import MEDIA_TYPE, Kind, Problem

HEAD_BYTES = 1 << 16  # of a request's first line and headers
MORE_BYTES = 16 << 20  # that may arrive while a request is answered: its body, and requests after it
STEP = 1 << 16
LOOK = 0.25  # seconds between two looks at all connections
Address = tuple[Any, ...]


class Connection:
    """A connection, which passes everything on to uvicorn.

    waiting_since: when it began to wait for the caller; None while a request is answered
    size: bytes since the last request began; answered: whether it has had one
    """

    def __init__(self, all_: Connections, inner: Any = None) -> None:
        self.all, self.inner, self.size, self.answered, self.is_busy = all_, inner, 0, False, False
        self.head_since = time.monotonic()
        self.waiting_since: float | None = self.head_since
        self.unsent = (0, 0.0)  # bytes that the caller has not read, and since when there is little progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # eof_received, pause_writing, resume_writing

    def connection_made(self, transport: Any) -> None:
        """Register the connection."""
        self.transport, self.loop = transport, asyncio.get_running_loop()
        self.inner.connection_made(transport)
        self.all.add(self)

    def begin(self) -> None:
        """A request has arrived."""
        self.is_busy, self.waiting_since, self.size = True, None, 0

    def end(self) -> None:
        """The request was answered."""
        self.is_busy, self.answered, self.waiting_since, self.size = False, True, time.monotonic(), 0

    def data_received(self, data: bytes) -> None:
        """Pass data on; refuse a head that is too long."""
        if not self.size and not self.is_busy:
            self.head_since = time.monotonic()
        self.size += len(data)
        self.inner.data_received(data)
        if self.size > HEAD_BYTES:
            self.loop.call_soon(self._check_size)  # by then a request whose head is complete has begun

    def _check_size(self) -> None:
        if self.size > (MORE_BYTES if self.is_busy else HEAD_BYTES):
            self.refuse(431, "too_large", f"the first line and the headers have more than {HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.all.remove(self)
        self.inner.connection_lost(exc)

    def reads(self, now: float, seconds: float) -> bool:
        """Return whether the caller reads what is sent, at least `STEP` bytes in these seconds."""
        size, before = self.transport.get_write_buffer_size(), self.unsent[0]
        if not size or not before or size > before or size <= before - STEP:
            self.unsent = (size, now)
        return not size or now - self.unsent[1] <= seconds

    def is_closing(self) -> bool:
        """Whether it was closed, though the caller may not have read everything."""
        return bool(self.transport.is_closing())

    def refuse(self, status: int, kind: Kind, message: str) -> None:
        """Answer with an error and close; a connection that was used before is only closed."""
        if self.is_closing():
            return
        self.all.refused[kind] += 1
        if not self.is_busy and (self.size or not self.answered):
            body = Problem(status, kind, message).body()
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            self.transport.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()
        else:
            self.transport.abort()


class Connections:
    """All connections of a server.

    most: open at a time; head_seconds: for a request's first line and headers to arrive in; send_seconds: for the
    caller to read what was sent, or a part of it
    refused: kind -> how many connections were refused; protocol: what is not HTTP
    """

    def __init__(self, most: int = 800, head_seconds: float = 10.0, send_seconds: float = 10.0) -> None:
        self.most, self.head_seconds, self.send_seconds = most, head_seconds, send_seconds
        self.refused: dict[str, int] = dict.fromkeys(("busy", "too_slow", "too_large", "protocol"), 0)
        self.make: Callable[[], Any] | None = None  # another connection of the same server
        self._by_address: dict[Address, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_address)

    def __call__(self, **words: Any) -> Connection:
        """Return the protocol of a new connection, for uvicorn's option `http`."""
        self.make = lambda: Connection(self, HttpToolsProtocol(**words))
        return self.make()

    def add(self, connection: Connection) -> None:
        """Register a connection. If there are too many, the one that has waited longest for its caller is closed."""
        self._by_address[self._address(connection)] = connection
        if len(self) > self.most:
            waiting = (each for each in self._by_address.values() if each.waiting_since and not each.is_closing())
            longest = min(waiting, key=lambda each: (each.answered, each.waiting_since))
            longest.refuse(503, "busy", f"{self.most} connections are open; try again in a moment")

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        if self._by_address.get(self._address(connection)) is connection:
            del self._by_address[self._address(connection)]

    @staticmethod
    def _address(connection: Connection) -> Address:
        peer = connection.transport.get_extra_info("peername")
        return tuple(peer[:2]) if peer else ("", id(connection))

    def of(self, client: Any) -> Connection:
        """Return the connection of an address; one of its own for a caller without a socket."""
        return self._by_address.get(tuple(client or ())) or Connection(self)

    async def watch(self) -> None:
        """Refuse connections whose heads do not arrive in time, and close those that do not read, for ever."""
        while True:
            await asyncio.sleep(min(LOOK, self.head_seconds))
            now = time.monotonic()
            for each in list(self._by_address.values()):
                late = each.head_since < now - self.head_seconds
                if not each.reads(now, self.send_seconds):
                    each.transport.abort()
                elif late and not each.is_busy and (each.size or not each.answered):
                    message = f"the request did not arrive within {self.head_seconds:g} seconds"
                    each.refuse(408, "too_slow", message)

    def note(self, record: logging.LogRecord) -> bool:
        """Count what uvicorn warns of, which is not HTTP; a filter of logs that passes everything."""
        self.refused["protocol"] += record.levelno == logging.WARNING
        return True

    def fresh(self) -> bool:
        """Whether a connection has had no request yet."""
        return any(not each.answered for each in self._by_address.values())
