"""HTTP connections with limits that uvicorn has no options for: their number, and the size and pace of heads.

It builds on uvicorn's own class of connections, so the extra `serve` allows only versions that were tested.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from concf.service.problems import MEDIA_TYPE, Kind, Problem

HEAD_BYTES = 1 << 16  # of a request's first line and headers
ABORT_SECONDS = 60.0  # for a caller to take in the rest of an answer, once the connection is idle


class LimitedConnection(HttpToolsProtocol):
    """A connection with limits on the duration and size of requests. A subclass has the settings (see `limited`)."""

    head_seconds: float
    send_seconds: float
    max_connections: int
    waiting: dict[LimitedConnection, None]  # those without a request, the longest first
    _timer: asyncio.TimerHandle | None = None  # runs while the head of a request is expected
    _reading: asyncio.TimerHandle | None = None  # runs while the send buffer is full
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Expect a request. If there are too many connections, close an idle one, or else refuse this one."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            other = next(iter(self.waiting), self)
            self.waiting.pop(other, None)
            if other.is_fresh:  # it has had no answer yet, so it is told why
                other._refuse(503, "busy", f"{self.max_connections} connections are open; try again in a moment")
            else:
                other.transport.close()
        if not transport.is_closing():
            self.waiting[self] = None
            self._expect_head()

    @property
    def is_fresh(self) -> bool:
        """Whether the connection has had no request yet."""
        return self.cycle is None

    def data_received(self, data: bytes) -> None:
        """Parse the data; refuse a head that is too long."""
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, "too_large", f"the first line and the headers have more than {HEAD_BYTES} bytes")
        elif self._timer is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    def on_message_begin(self) -> None:
        """The head of a request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._stop_timer()
        self.waiting.pop(self, None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The connection may be used again."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        self.waiting.pop(self, None)
        super().connection_lost(exc)  # which resumes writing

    def pause_writing(self) -> None:
        """The send buffer is full: start the timer of `send_seconds`."""
        super().pause_writing()
        self._reading = self.loop.call_later(self.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller has read: stop that timer."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, in the end also one whose caller does not read the answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(ABORT_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the shape of all errors."""
        self._refuse(400, "bad_request", msg)

    def _expect_head(self) -> None:
        message = f"the request did not arrive within {self.head_seconds:g} seconds"
        self._timer = self.loop.call_later(self.head_seconds, self._refuse, 408, "too_slow", message)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, kind: Kind, message: str) -> None:
        """Answer with an error and close."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        body = bytes(Problem(status, kind, message).response().body)
        head = f"content-type: {MEDIA_TYPE}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()


def limited(head_seconds: float, send_seconds: float, max_connections: int) -> type[LimitedConnection]:
    """The class of a server's connections."""
    settings = {"head_seconds": head_seconds, "send_seconds": send_seconds, "max_connections": max_connections}
    return type("LimitedConnection", (LimitedConnection,), settings | {"waiting": {}})
