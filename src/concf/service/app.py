"""The application: all routes, one shape of errors, and the checks ahead of them."""

from __future__ import annotations

import logging

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from concf.errors import ConcfError
from concf.service import routes
from concf.service.explorer import routes as explorer
from concf.service.http import pages
from concf.service.http.endpoints import JSON, Threads
from concf.service.http.guards import Access, HostGuard, OriginGuard, TokenGuard
from concf.service.http.observing import Metrics, Observed, traced
from concf.service.http.openapi import document
from concf.service.limits import InFlight
from concf.service.loading import Service
from concf.service.problems import respond


def create_app(service: Service, access: Access | None = None, log: logging.Logger | None = None) -> ASGIApp:
    """The application of a service, whose run may be loaded later. log: for a line of JSON about each request"""
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
            Route("/openapi.json", described), *pages.routes(access.images),
        ],
        exception_handlers=dict.fromkeys((ConcfError, HTTPException, Exception), respond),
    )  # fmt: skip
    starlette.router.redirect_slashes = False
    app: ASGIApp = InFlight(starlette, service.limits.in_flight)
    app = OriginGuard(TokenGuard(app, access), access)
    app = HostGuard(traced(app), access)  # a tracer fails at a name that is none
    return Observed(app, service, metrics, log)
