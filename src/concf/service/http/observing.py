"""What happens: metrics for Prometheus, a line of JSON a request, and traces where OpenTelemetry is installed."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import count
from secrets import token_hex
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.http.guards import header
from concf.service.loading import Service
from concf.service.workers import METRICS

METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
NO_ROUTE, OTHER_METHOD = "unmatched", "other"
CLIENT_LEFT = 499  # the usual status for a caller who left before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")


class Metrics:
    """The counters of one service, in a registry of its own."""

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
        """The metrics of all workers in the text format of Prometheus."""
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
        status, size, begin, request = CLIENT_LEFT, 0, time.perf_counter(), self._id(scope)

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

    def _id(self, scope: Scope) -> bytes:
        """The caller's id of the request, if it is one that a log can bear, or a new one."""
        given = header(scope, b"x-request-id")
        return given if REQUEST_ID.fullmatch(given) else f"{self.prefix}-{next(self.numbers)}".encode()

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
    """With a span for each request, if the extra `telemetry` is installed; where spans go, the environment says."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        return app
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app)
