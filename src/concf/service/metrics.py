"""What the service counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.engine import Service

METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
NO_ROUTE, OTHER = "unmatched", "other"
LEFT = 499  # the usual number for a caller who left before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROUTE = "concf.route"  # where a part that answers by itself leaves its route in the scope


class Metrics:
    """A registry of one service's own."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ("route", "method", "status"), self.registry
        self.requests = Counter("concf_requests", "Requests that were answered.", labels, registry=registry)
        self.seconds = Histogram("concf_request_seconds", "From request to answer.", labels[:1], buckets=BUCKETS,
                                 registry=registry)  # fmt: skip
        self.in_flight = 0
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "concf_requests_in_flight": ("Requests being answered.", lambda: self.in_flight),
            "concf_run_version": ("Runs that this process has served.", lambda: service.version),
            "concf_run_loaded_timestamp_seconds": ("When the run was loaded.", lambda: service.loaded),
        }
        for name, (words, value) in gauges.items():
            Gauge(name, words, registry=registry).set_function(value)
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request."""
        key = route, method, status
        if key not in self._children:
            self._children[key] = self.requests.labels(route, method, str(status)), self.seconds.labels(route)
        requests, histogram = self._children[key]
        requests.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)


class Measured:
    """Counts every request by the route's template: what does not match one has a single label for all."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and count when it is answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, begin = LEFT, time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.in_flight += 1
        try:
            await self.app(scope, receive, note)
        except Exception:
            status = 500
            raise
        finally:
            self.metrics.in_flight -= 1
            method = scope["method"] if scope["method"] in METHODS else OTHER
            self.metrics.count(_route(scope), method, status, time.perf_counter() - begin)


def _route(scope: Scope) -> str:
    found = scope.get(ROUTE)
    return str(found or getattr(scope.get("route"), "path_format", NO_ROUTE))
