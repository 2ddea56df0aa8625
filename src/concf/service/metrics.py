"""Request metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.loading import Service

METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
NO_ROUTE, OTHER_METHOD = "unmatched", "other"
CLIENT_LEFT = 499  # the usual status for a caller who left before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counters of one service, in a registry of its own."""

    def __init__(self, service: Service) -> None:
        self.registry, self.in_flight = CollectorRegistry(), 0
        labels = ("route", "method", "status")
        self.requests = Counter("concf_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "concf_request_seconds", "Seconds from request to answer.", labels[:1], buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self._gauge("concf_requests_in_flight", "Requests being answered.", lambda: self.in_flight)
        self._gauge("concf_run_version", "Runs that this process has served.", lambda: service.version)
        self._gauge("concf_run_loaded_timestamp_seconds", "When the run was loaded.", lambda: service.loaded)

    def _gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        Gauge(name, description, registry=self.registry).set_function(value)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request by the template of its route; requests without a route share one label."""
        route = getattr(scope.get("route"), "path_format", NO_ROUTE)
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class Measured:
    """Counts and times every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it when it is answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, begin = CLIENT_LEFT, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, watch)
        except Exception:
            status = 500
            raise
        finally:
            self.metrics.in_flight -= 1
            self.metrics.count(scope, status, time.perf_counter() - begin)
