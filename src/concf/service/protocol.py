"""HTTP connections that cannot be held open for nothing: late, endless and broken requests are ended.

uvicorn itself waits for the head of a request as long as it takes, and takes it however long it is.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from concf.service.problems import Kind, Problem

HEAD_BYTES = 1 << 16  # of a request's first line and headers
FAREWELL = 60.0  # seconds to take the rest of an answer in, once the connection is idle


class Careful(HttpToolsProtocol):
    """A connection whose requests must come in time and size. The settings are those of a subclass (see `careful`)."""

    head_seconds = 10.0
    most_connections = 800
    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(503, "busy", f"{self.most_connections} connections are open; try again in a moment")
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Go on, unless a head is late or too long."""
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, "too_large", f"the first line and the headers have more than {HEAD_BYTES} bytes")
        elif self._late is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more to wait for."""
        self._stop_waiting()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close; and if the caller does not even take in what was sent, without it."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(FAREWELL, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is refused in the shape of every error."""
        self._refuse(400, "bad_request", msg)

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(self.head_seconds, self._too_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._refuse(408, "too_slow", f"the request did not arrive within {self.head_seconds:g} seconds")

    def _refuse(self, status: int, kind: Kind, message: str) -> None:
        """Say why, and close."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        body = bytes(Problem(status, kind, message).response().body)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


def careful(head_seconds: float, most_connections: int) -> type[Careful]:
    """The connections of a server with these settings."""
    return type("Careful", (Careful,), {"head_seconds": head_seconds, "most_connections": most_connections})
