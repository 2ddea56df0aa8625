"""The ASGI application: routes that workers compute, those of the front itself, and the pages."""

from __future__ import annotations

import logging
import mimetypes
import os
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Literal

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from concf.service import schemas
from concf.service.connections import Connections
from concf.service.front import JSON, RELOAD, Access, Endpoint, Front, Local, Metrics, as_response
from concf.service.openapi import document
from concf.service.problems import Problem
from concf.service.routes import Route
from concf.service.service import Service
from concf.service.worker import COMPUTED

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
mimetypes.add_type("text/javascript", ".js")  # some systems map .js to another type


class Page:
    """A file of the explorer, or those that the path names."""

    def __init__(self, policy: str, template: str, file: str | None = None) -> None:
        self.template, self.file = template, file
        self.headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy}
        self.files = StaticFiles(directory=str(files("concf.service.explorer") / "assets"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; 304 for callers who have it."""
        response = await self.files.get_response(self.file or scope["path_params"]["file"], scope)
        response.headers.update(self.headers)
        response.headers["ETag"] = f"W/{response.headers['etag']}"  # weak: a compressed response has other bytes
        if response.status_code == 304:  # else the compression adds it
            response.headers["Vary"] = "Accept-Encoding"
        await response(scope, receive, send)


def pages(images: Sequence[str] = ()) -> list[Path]:
    """/, /docs and /explorer/{file}. images: origins that pictures may come from, besides this one"""
    policy = "; ".join([POLICY, *([f"img-src 'self' {' '.join(images)}"] if images else [])])
    names = (("/", "index.html"), ("/docs", "docs.html"), ("/explorer/{file}", None))
    small = [Middleware(GZipMiddleware)]
    return [Path(path, Page(policy, path, file), methods=["GET"], middleware=small) for path, file in names]


def operating(service: Service, metrics: Metrics, access: Access) -> list[tuple[Route, Local]]:
    """Return the routes of health, readiness, metrics and reloads, which the front answers at any time."""

    async def health(_query: object) -> Response:
        return as_response({"status": "alive"})

    async def ready(_query: object) -> Response:
        if service.closing:
            raise Problem(503, "not_ready", "the service is shutting down")
        return as_response({"status": "ready", "run": service.pool.facts["name"]})

    async def measured(_query: object) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def reload(request: schemas.ReloadRequest) -> Response:
        return as_response(await service.reload(None if request.run is None else service.allowed(request.run)))

    def route(method: Literal["GET", "POST"], path: str, request: Any, answer: Any, summary: str) -> Route:
        return Route(method, path, TypeAdapter(request), answer, summary, "run")

    none, status = schemas.NoQuery, schemas.Status
    found: list[tuple[Route, Local]] = [
        (route("GET", "/health", none, status, "Whether the process is alive"), health),
        (route("GET", "/ready", none, status, "Whether a run is served"), ready),
        (route("GET", "/metrics", none, None, "Metrics for Prometheus"), measured),
    ]
    if access.admin_token is not None:
        form, summary = schemas.Reloaded, "Serve another run, or the same folder again"
        found.append((route("POST", RELOAD, schemas.ReloadRequest, form, summary), reload))
    return found


def create_app(
    service: Service, access: Access | None = None, log: logging.Logger | None = None,
    connections: Connections | None = None,
) -> Front:  # fmt: skip
    """Return the application of a service, whose run may be loaded later. log: for a line of JSON a request"""
    access, connections = access or Access(), Connections() if connections is None else connections
    metrics = Metrics(service, connections)
    endpoints = [Endpoint(route, service) for route in COMPUTED.values()]
    endpoints += [Endpoint(route, service, local) for route, local in operating(service, metrics, access)]
    openapi = to_json(document([each.route for each in endpoints], service.limits, access))

    async def described(_request: object) -> Response:
        return Response(openapi, media_type=JSON)

    paths = [Path(each.route.path, each, methods=[each.route.method]) for each in endpoints]
    router = Router([*paths, Path("/openapi.json", described), *pages(access.images)], redirect_slashes=False)
    return Front(traced(router), service, access, metrics, connections, log)  # a tracer fails at a bad host


def traced(app: ASGIApp) -> ASGIApp:
    """Add a span for each request if a variable OTEL_... says where spans go and the extra `telemetry` is installed."""
    if not any(name.startswith("OTEL_") for name in os.environ) or find_spec("opentelemetry.sdk") is None:
        return app
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app)
