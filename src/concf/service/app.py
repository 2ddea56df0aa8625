"""The application: every route, one shape of errors, what stands before them, and the explorer's page."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from concf.runtime.provenance import VERSION
from concf.service import routes
from concf.service.document import documented
from concf.service.engine import Service
from concf.service.explorer import pages
from concf.service.explorer import routes as exploring
from concf.service.guards import Bounded, Guarded
from concf.service.metrics import Measured, Metrics
from concf.service.problems import handle_problems
from concf.service.schemas import Refusal
from concf.service.swift import Gathering, Swift

ABOUT = "Recommendations of a run. Errors are everywhere of one shape; ids are as the log has them."
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The question makes no sense for this run"},
    401: {"model": Refusal, "description": "No token, or a wrong one"},
    404: {"model": Refusal, "description": "No such user, item or head"},
    408: {"model": Refusal, "description": "The body came too slowly"},
    413: {"model": Refusal, "description": "The body, a history or a batch is too large"},
    422: {"model": Refusal, "description": "The question is not of the form that is expected"},
    503: {"model": Refusal, "description": "The run is being loaded, or too much is asked at a time"},
}
REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": Refusal, "description": "The run cannot be served"}}


class App(FastAPI):
    """FastAPI behind a front of its own. (What FastAPI calls middleware stands behind some of its machinery.)"""

    front: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests come to the front first."""
        await (self.front if scope["type"] == "http" else super().__call__)(scope, receive, send)


def create_app(service: Service, token: str | None = None) -> App:
    """The application over a service, whose run may be loaded later. token: what callers must show, if anything."""
    app = App(
        title="concf", summary=ABOUT, version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=_few_threads,
    )  # fmt: skip
    handle_problems(app)
    metrics, gathering = Metrics(service), Gathering()
    app.include_router(routes.recommending(service, gathering), responses=ERRORS)
    app.include_router(exploring.router(service), responses=ERRORS)
    app.include_router(routes.running(service, metrics), responses=ERRORS | REFUSED)
    app.include_router(pages.router())
    front: ASGIApp = Bounded(Swift(super(App, app).__call__, service, gathering), service.limits)
    if token is not None:
        front = Guarded(front, token)
    app.front = Measured(front, metrics)
    app.openapi = documented(app, service.limits, token is not None)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _few_threads(_app: FastAPI) -> AsyncIterator[None]:
    """As many long answers at a time as there are cores: more would only take memory."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = max(2, os.cpu_count() or 1)
    yield
