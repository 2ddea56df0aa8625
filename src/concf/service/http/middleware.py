"""Middleware: checks of host, origin and token; metrics, the access log and traces."""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import count
from secrets import token_hex
from typing import Literal
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.loading import Service
from concf.service.problems import Problem
from concf.service.workers import METRICS

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health", "/ready", "/", "/docs", "/openapi.json")  # paths that need no token, besides the explorer's assets
ASSETS, RELOAD = "/explorer/", "/reload"
KNOWN_HOSTS = 64  # names that were allowed, as they were written
METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
NO_ROUTE, OTHER_METHOD = "unmatched", "other"
CLIENT_LEFT = 499  # the usual status for a caller who left before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")  # of a caller; any other is replaced


@dataclass(frozen=True)
class Access:
    """Tokens, host names and image origins that the service accepts.

    token: what callers must send, if anything; admin_token: what `POST /reload` needs, which is off without one
    hosts: the names that a request may be addressed to besides the loopback's; "*": any
    images: the origins that the pages may load pictures from, besides this one
    """

    token: str | None = None
    admin_token: str | None = None
    hosts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def header(scope: Scope, name: bytes) -> bytes:
    """Return the first header of that name; empty if there is none."""
    return next((value for each, value in scope["headers"] if each == name), b"")


class Guard(ABC):
    """Passes a request on if `refusal` finds nothing against it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        problem = await self.refusal(scope) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)

    @abstractmethod
    async def refusal(self, scope: Scope) -> Problem | None:
        """Return the reason to refuse the request, if any."""


class HostGuard(Guard):
    """Refuses names that others may own: a page whose name is made to lead here would be allowed to read answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(app, access)
        names = [f"[{name}]" if ":" in name else name for name in (*LOOPBACK, *access.hosts)]
        self.known: set[bytes] = set()
        self.check = TrustedHostMiddleware(_allowed, names, www_redirect=False)

    async def refusal(self, scope: Scope) -> Problem | None:
        """Run Starlette's check, once for each name that it allows."""
        host, sent = header(scope, b"host"), list[Message]()
        if host in self.known:
            return None

        async def keep(message: Message) -> None:
            sent.append(message)

        await self.check(scope, _nothing, keep)
        if not sent and len(self.known) < KNOWN_HOSTS:
            self.known.add(host)
        message = "this service is not known by the name in the header Host; start it with --allow-host NAME"
        return Problem(400, "bad_host", message, "header.host") if sent else None


async def _allowed(_scope: Scope, _receive: Receive, _send: Send) -> None:
    pass


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class OriginGuard(Guard):
    """Refuses what a page of another site sends; reading its answer is prevented by the browser."""

    async def refusal(self, scope: Scope) -> Problem | None:
        """Refuse a request of another origin that may change or cost something."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None
        origin = header(scope, b"origin").decode("latin-1")
        if header(scope, b"sec-fetch-site") != b"cross-site" and (not origin or self._own(origin, scope)):
            return None
        message = "a page of another site sent this; if it is your own proxy's, start with --allow-host NAME"
        return Problem(403, "foreign_origin", message, "header.origin")

    def _own(self, origin: str, scope: Scope) -> bool:
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        return parts.netloc.encode("latin-1") == header(scope, b"host") or name in self.access.hosts


class TokenGuard(Guard):
    """Lets only requests with the token pass; a reload has a token of its own."""

    async def refusal(self, scope: Scope) -> Problem | None:
        """Refuse a request without its token."""
        path, admin = scope["path"], scope["path"] == RELOAD and self.access.admin_token is not None
        token = self.access.admin_token if admin else self.access.token
        scheme, _, given = header(scope, b"authorization").partition(b" ")
        if token is None or path in OPEN or path.startswith(ASSETS):
            return None
        if hmac.compare_digest(given, token.encode()) and scheme.lower() == b"bearer":
            return None
        which = "the admin token" if admin else "a token"
        message = f"{which} is needed; send the header Authorization: Bearer TOKEN"
        return Problem(401, "unauthorised", message, "header.authorization", {"WWW-Authenticate": "Bearer"})


class Metrics:
    """Prometheus metrics of one service, in a registry of its own."""

    def __init__(self, service: Service) -> None:
        self.service, self.registry = service, CollectorRegistry()
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        labels = ("route", "method", "status")
        self.requests = Counter("concf_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "concf_request_seconds", "Seconds from request to answer.", labels[:1], buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.in_flight = self._gauge("concf_requests_in_flight", "Requests being answered.", "livesum")
        self.version = self._gauge("concf_run_version", "Runs that this process has served.", "max")
        self.loaded = self._gauge("concf_run_loaded_timestamp_seconds", "When the run was loaded.", "max")

    def _gauge(self, name: str, description: str, of_several: Literal["livesum", "max"]) -> Gauge:
        return Gauge(name, description, registry=self.registry, multiprocess_mode=of_several)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. To look up a series takes longer than to count."""
        key = (route, method, status)
        if key not in self._series:
            self._series[key] = self.requests.labels(route, method, str(status)), self.seconds.labels(route)
        requests, histogram = self._series[key]
        requests.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """Return the metrics of all workers in the text format of Prometheus."""
        self.version.set(self.service.version)
        self.loaded.set(self.service.loaded)
        registry = self.registry
        if METRICS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class Observed:
    """Counts, times and logs every request, gives it an id, and closes connections once the service is closing."""

    def __init__(self, app: ASGIApp, service: Service, metrics: Metrics, log: logging.Logger | None) -> None:
        self.app, self.service, self.metrics, self.log = app, service, metrics, log
        self.prefix, self.numbers = token_hex(6), count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it when it is answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, size, begin, request = CLIENT_LEFT, 0, time.perf_counter(), header(scope, b"x-request-id")
        if not REQUEST_ID.fullmatch(request):
            request = f"{self.prefix}-{next(self.numbers)}".encode()

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request))
                if self.service.closing:
                    message["headers"].append((b"connection", b"close"))
            else:
                size += len(message.get("body", b""))
            await send(message)

        self.metrics.in_flight.inc()
        try:
            await self.app(scope, receive, watch)
        except Exception:
            status = 500
            raise
        finally:
            self.metrics.in_flight.dec()
            self._note(scope, request, status, size, time.perf_counter() - begin)

    def _note(self, scope: Scope, request: bytes, status: int, size: int, seconds: float) -> None:
        """Count a request by the template of its route; requests without a route share one label."""
        route = getattr(scope.get("endpoint"), "template", NO_ROUTE)
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        self.metrics.count(route, method, status, seconds)
        if self.log is not None:
            raw = scope.get("raw_path") or scope["path"].encode()
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "request": request.decode("latin-1"),
                "client": (scope.get("client") or (None,))[0], "method": scope["method"],
                "path": raw.decode("latin-1"), "query": scope["query_string"].decode("latin-1"), "route": route,
                "status": status, "bytes": size, "ms": round(1000 * seconds, 3),
            }  # fmt: skip
            self.log.info(json.dumps(line))


def traced(app: ASGIApp) -> ASGIApp:
    """Add a span for each request if the extra `telemetry` is installed; the environment says where spans go."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        return app
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app)
