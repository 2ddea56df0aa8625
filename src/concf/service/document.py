"""The OpenAPI document, with the limits and the token of this service in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from concf.service.engine import Limits
from concf.service.guards import OPEN


def documented(app: FastAPI, limits: Limits, token: bool) -> Callable[[], dict[str, Any]]:
    """What makes the document, once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            _say_limits(made, limits)
            if token:
                _say_token(made)
            app.openapi_schema = made
        return app.openapi_schema

    return document


def _say_limits(document: dict[str, Any], limits: Limits) -> None:
    for operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "k":
                parameter["schema"]["maximum"] = limits.k
    for schema in document["components"]["schemas"].values():
        for name, part in schema.get("properties", {}).items():
            if name == "k":
                part["maximum"] = limits.k
            elif name == "history" and part.get("type") == "array":
                part["maxItems"] = limits.history
            elif name == "users" and part.get("type") == "array":
                part["maxItems"] = limits.users
            elif name == "histories":
                part["maxProperties"] = limits.users
                part["additionalProperties"]["maxItems"] = limits.history


def _say_token(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN else [{"token": []}]


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for operations in document["paths"].values() for operation in operations.values()]
