"""The ASGI application: routes, pages, error responses and middleware."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Sequence
from importlib.resources import files

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from concf.errors import ConcfError
from concf.service import routes
from concf.service.explorer import routes as explorer
from concf.service.http.endpoints import JSON, Threads
from concf.service.http.middleware import Access, HostGuard, Metrics, Observed, OriginGuard, TokenGuard, traced
from concf.service.http.openapi import document
from concf.service.limits import InFlight
from concf.service.loading import Service
from concf.service.problems import respond

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
mimetypes.add_type("text/javascript", ".js")  # some systems map .js to another type


class Page:
    """A file of the explorer, or those that the path names."""

    def __init__(self, policy: str, template: str, file: str | None = None) -> None:
        self.template, self.file, self.headers = template, file, HEADERS | {"Content-Security-Policy": policy}
        self.files = StaticFiles(directory=str(files("concf.service.explorer") / "assets"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; 304 for callers who have it."""
        response = await self.files.get_response(self.file or scope["path_params"]["file"], scope)
        response.headers.update(self.headers)
        response.headers["ETag"] = f"W/{response.headers['etag']}"  # weak: a compressed response has other bytes
        if response.status_code == 304:  # else the compression adds it
            response.headers["Vary"] = "Accept-Encoding"
        await response(scope, receive, send)


def pages(images: Sequence[str] = ()) -> list[Route]:
    """/, /docs and /explorer/{file}. images: origins that pictures may come from, besides this one"""
    policy = "; ".join([POLICY, *([f"img-src 'self' {' '.join(images)}"] if images else [])])
    names = (("/", "index.html"), ("/docs", "docs.html"), ("/explorer/{file}", None))
    small = [Middleware(GZipMiddleware)]
    return [Route(path, Page(policy, path, file), methods=["GET"], middleware=small) for path, file in names]


def create_app(service: Service, access: Access | None = None, log: logging.Logger | None = None) -> ASGIApp:
    """Return the application of a service, whose run may be loaded later. log: for a line of JSON a request"""
    access, metrics, threads = access or Access(), Metrics(service), Threads(service.limits)
    endpoints = [
        *routes.recommending(service, threads), *explorer.data(service, threads),
        *routes.operating(service, threads, metrics, access),
    ]  # fmt: skip
    openapi = to_json(document(endpoints, service.limits, access))

    async def described(_request: object) -> Response:
        return Response(openapi, media_type=JSON)

    starlette = Starlette(
        routes=[
            *(Route(each.path, each, methods=[each.method]) for each in endpoints),
            Route("/openapi.json", described), *pages(access.images),
        ],
        exception_handlers=dict.fromkeys((ConcfError, HTTPException, Exception), respond),
    )  # fmt: skip
    starlette.router.redirect_slashes = False
    app: ASGIApp = InFlight(starlette, service.limits.in_flight)
    app = OriginGuard(TokenGuard(app, access), access)
    app = HostGuard(traced(app), access)  # a tracer fails at a name that is none
    return Observed(app, service, metrics, log)
