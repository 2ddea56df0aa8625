"""The application: all routes, one shape of errors, the checks ahead of them, and the OpenAPI document."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp

from concf.runtime.provenance import VERSION
from concf.service import routes
from concf.service.explorer import routes as explorer
from concf.service.limits import OPEN, Limits, RequestLimits, TokenGuard
from concf.service.loading import Service
from concf.service.metrics import Measured, Metrics
from concf.service.problems import handle_problems
from concf.service.schemas import Error

SUMMARY = "Recommendations of a run. All errors have one shape; ids are those of the log."
STATUSES = {
    400: "The request makes no sense for this run",
    401: "No token, or a wrong one",
    404: "No such user, item or head",
    408: "The body arrived too slowly",
    413: "The body, a history or a batch is too large",
    422: "The request does not have the expected form",
    503: "The run is being loaded, or there are too many requests",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text} for status, text in STATUSES.items()
}
REFUSED: dict[int | str, dict[str, Any]] = {409: {"model": Error, "description": "The run cannot be served"}}


def create_app(service: Service, token: str | None = None) -> ASGIApp:
    """The application of a service, whose run may be loaded later. token: what callers must send, if anything"""
    app = FastAPI(
        title="concf", summary=SUMMARY, version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=_few_threads,
    )  # fmt: skip
    handle_problems(app)
    metrics, list_of_user = Metrics(service), routes.ListOfUser(service)
    app.include_router(routes.recommending(service, list_of_user), responses=ERRORS)
    app.include_router(explorer.data(service), responses=ERRORS)
    app.include_router(routes.operating(service, metrics), responses=ERRORS | REFUSED)
    app.include_router(explorer.pages())
    document = app.openapi()  # which the application keeps and serves
    _add_limits(document, service.limits)
    front: ASGIApp = RequestLimits(routes.FastPath(app, list_of_user), service.limits)
    if token is not None:
        _add_token(document)
        front = TokenGuard(front, token)
    return Measured(front, metrics)


@asynccontextmanager
async def _few_threads(_app: FastAPI) -> AsyncIterator[None]:
    """Work on as many long answers at a time as there are cores: more would only take memory."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = max(2, os.cpu_count() or 1)
    yield


def _add_limits(document: dict[str, Any], limits: Limits) -> None:
    for operation in (each for operations in document["paths"].values() for each in operations.values()):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "k":
                parameter["schema"]["maximum"] = limits.k
    for schema in document["components"]["schemas"].values():
        for name, part in schema.get("properties", {}).items():
            if name == "k":
                part["maximum"] = limits.k
            elif name in ("history", "users") and part.get("type") == "array":
                part["maxItems"] = limits.history if name == "history" else limits.users
            elif name == "histories":
                part["maxProperties"] = limits.users
                part["additionalProperties"]["maxItems"] = limits.history


def _add_token(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN else [{"token": []}]
