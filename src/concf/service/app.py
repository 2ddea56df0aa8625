"""ASGI application: routes that workers compute, routes of the front itself, the pages, and the OpenAPI document."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from prometheus_client import generate_latest
from pydantic import TypeAdapter
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from concf.runtime.provenance import VERSION
from concf.service.front import JSON, Access, Endpoint, Front, Local, Metrics
from concf.service.pool import Service
from concf.service.problems import MEDIA_TYPE, Problem
from concf.service.routes import COMPUTED, Route
from concf.service.schemas import Answer, Request

SUMMARY = "Recommendations of a run. Ids are those of the log."
PROBLEM = "A problem (RFC 9457): type, title, status, detail, its kind, and where: the part of the request at fault"
mimetypes.add_type("text/javascript", ".js")  # some systems map .js to another type


def create_app(service: Service, access: Access | None = None) -> Front:
    """Return the application of a service, whose run may be loaded later."""
    access, metrics = access or Access(), Metrics(service)

    def ready() -> object:
        if service.closing:
            raise Problem(503, "not_ready", "the service is shutting down")
        return {"status": "ready", "run": service.pool.facts["name"]}

    own: list[tuple[str, Any, str, Local]] = [
        ("GET /health", Answer, "Whether the process is alive", lambda: {"status": "alive"}),
        ("GET /ready", Answer, "Whether a run is served", ready),
        ("GET /metrics", None, "Metrics for Prometheus", lambda: generate_latest(metrics.registry)),
        ("GET /openapi.json", None, "This document", lambda: openapi),
    ]
    endpoints = [Endpoint(route, service) for route in COMPUTED.values()]
    endpoints += [Endpoint(Route(name, Request, answer, about), service, local) for name, answer, about, local in own]
    openapi = document([each.route for each in endpoints if each.route.answer is not None], access.token is not None)
    paths = [Path(each.route.path.replace("}", ":path}"), each, methods=[each.route.method]) for each in endpoints]
    assets = files("concf.service.explorer") / "assets"
    pages = StaticFiles(directory=str(assets), html=True)
    paths += [Path(f"/{name}", pages, methods=["GET"]) for name in ("", *(each.name for each in assets.iterdir()))]
    router = Router(paths, redirect_slashes=False)
    return Front(traced(router), service, access, metrics)  # a tracer fails at a bad host


def traced(app: ASGIApp) -> ASGIApp:
    """Trace each request as a span, if a variable OTEL_... is set and the extra `telemetry` is installed."""
    if not any(name.startswith("OTEL_") for name in os.environ) or find_spec("opentelemetry.sdk") is None:
        return app
    from starlette.middleware.opentelemetry import OpenTelemetryMiddleware

    return OpenTelemetryMiddleware(app)


def document(routes: Sequence[Route], locked: bool) -> Answer:
    """Return the OpenAPI document of the routes. locked: whether callers must send a token"""
    forms: list[Any] = [(route.name, "serialization", TypeAdapter(route.answer)) for route in routes]
    forms += [(route.name, "validation", TypeAdapter(route.request)) for route in routes]
    found, components = TypeAdapter.json_schemas(forms, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for route in routes:
        answer, request = ({JSON: {"schema": found[route.name, mode]}} for mode in ("serialization", "validation"))
        operation: dict[str, Any] = {
            "summary": route.summary,
            "responses": {
                "200": {"description": "The answer", "content": answer},
                "default": {"description": PROBLEM, "content": {MEDIA_TYPE: {"schema": {"type": "object"}}}},
            },
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", route.path)
            ],
        }
        if route.method == "POST":
            operation["requestBody"] = {"required": True, "content": request}
        else:
            query = route.request.model_json_schema()
            operation["parameters"] += [
                {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": form}
                for name, form in query.get("properties", {}).items()
            ]
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    security: dict[str, Any] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if locked else {}
    return {
        "openapi": "3.1.0", "info": {"title": "concf", "summary": SUMMARY, "version": VERSION}, "paths": paths,
        "components": {"schemas": components["$defs"]} | security, "security": [{"token": []}] if locked else [],
    }  # fmt: skip
