"""The OpenAPI document of the routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from concf.runtime.provenance import VERSION
from concf.service.front import JSON, OPEN, RELOAD, Access
from concf.service.limits import Limits
from concf.service.problems import MEDIA_TYPE
from concf.service.routes import Route
from concf.service.schemas import ProblemDetails

SUMMARY = "Recommendations of a run. All errors have one shape (RFC 9457); ids are those of the log."
STATUSES = {
    400: "The request makes no sense for this run, or names another host",
    401: "No token, or a wrong one",
    403: "A page of another site sent this",
    404: "No such user, item or head",
    408: "The body arrived too slowly",
    413: "The body, a history or a batch is too large",
    422: "The request does not have the expected form, or would compute too much",
    503: "The run is being loaded, there are too many requests, or the answer takes too long",
}
RULE = {409: "A rule cannot be applied"}
REFUSED = {RELOAD: {409: "The run cannot be served"}} | dict.fromkeys(
    ("/recommend", "/explore", "/explore/{user}"), RULE
)
REFERENCE = "#/components/schemas/{model}"


def document(routes: Sequence[Route], limits: Limits, access: Access) -> dict[str, Any]:
    """The document, with the limits and the tokens of this service."""
    forms: list[Any] = [("problem", "serialization", TypeAdapter(ProblemDetails))]
    forms += [(f"answer {each.name}", "serialization", TypeAdapter(each.answer)) for each in routes if each.answer]
    forms += [(f"request {each.name}", "validation", each.request) for each in routes if each.method == "POST"]
    found, components = TypeAdapter.json_schemas(forms, ref_template=REFERENCE)
    schemas, paths = {name: form for (name, _), form in found.items()}, dict[str, Any]()
    tokens = {"token": access.token, "admin": access.admin_token}
    schemes = {name: {"type": "http", "scheme": "bearer"} for name, token in tokens.items() if token is not None}
    for each in routes:
        operation, scheme = _operation(each, schemas, limits), "admin" if each.path == RELOAD else "token"
        if schemes:
            operation["security"] = [{scheme: []}] if scheme in schemes and each.path not in OPEN else []
        paths.setdefault(each.template, {})[each.method.lower()] = operation
    for schema in components["$defs"].values():
        _add_limits(schema.get("properties", {}), limits)
    return {
        "openapi": "3.1.0", "info": {"title": "concf", "summary": SUMMARY, "version": VERSION}, "paths": paths,
        "components": {"schemas": components["$defs"]} | ({"securitySchemes": schemes} if schemes else {}),
    }  # fmt: skip


def _operation(route: Route, schemas: dict[str, Any], limits: Limits) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if route.answer is not None:
        content = {JSON: {"schema": schemas[f"answer {route.name}"]}}
    errors = {MEDIA_TYPE: {"schema": schemas["problem"]}}
    statuses = STATUSES | REFUSED.get(route.template, {})
    operation: dict[str, Any] = {
        "tags": [route.tag], "summary": route.summary,
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z]+', '_', route.template)}",
        "responses": {"200": {"description": "The answer", "content": content}}
        | {str(code): {"description": text, "content": errors} for code, text in sorted(statuses.items())},
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.template)
        ],
    }  # fmt: skip
    if route.method == "POST":
        body = {JSON: {"schema": schemas[f"request {route.name}"]}}
        return operation | {"requestBody": {"required": True, "content": body}}
    query = route.request.json_schema().get("properties", {})
    _add_limits(query, limits)
    operation["parameters"] += [
        {"name": name, "in": "query", "required": False, "description": form.pop("description", ""), "schema": form}
        for name, form in query.items()
    ]
    return operation


def _add_limits(properties: dict[str, Any], limits: Limits) -> None:
    for name, part in properties.items():
        if name == "k":
            part["maximum"] = limits.k
        elif name in ("history", "users") and part.get("type") == "array":
            part["maxItems"] = limits.history if name == "history" else limits.users
        elif name == "histories":
            part["maxProperties"] = limits.users
            part["additionalProperties"]["maxItems"] = limits.history
