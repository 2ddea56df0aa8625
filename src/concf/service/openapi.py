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


def document(endpoints: Sequence[Route], limits: Limits, access: Access) -> dict[str, Any]:
    """The document, with the limits and the tokens of this service."""
    requests = [
        (f"request {at}", "validation", each.request) for at, each in enumerate(endpoints) if each.method == "POST"
    ]
    answers: list[Any] = [
        (f"answer {at}", "serialization", TypeAdapter(each.answer))
        for at, each in enumerate(endpoints)
        if each.answer is not None
    ]
    problem: Any = ("problem", "serialization", TypeAdapter(ProblemDetails))
    forms, components = TypeAdapter.json_schemas([*requests, *answers, problem], ref_template=REFERENCE)  # type: ignore[list-item]
    schemas = {name: form for (name, _), form in forms.items()}
    paths: dict[str, Any] = {}
    for at, each in enumerate(endpoints):
        paths.setdefault(each.template, {})[each.method.lower()] = _operation(each, at, schemas)
    result: dict[str, Any] = {
        "openapi": "3.1.0", "info": {"title": "concf", "summary": SUMMARY, "version": VERSION}, "paths": paths,
        "components": {"schemas": components["$defs"]},
    }  # fmt: skip
    _add_limits(result, limits)
    tokens = {"token": access.token, "admin": access.admin_token}
    schemes = {name: {"type": "http", "scheme": "bearer"} for name, token in tokens.items() if token is not None}
    if schemes:
        result["components"]["securitySchemes"] = schemes
        for path, operations in paths.items():
            name = "admin" if path == RELOAD else "token"
            for operation in operations.values():
                operation["security"] = [] if path in OPEN or name not in schemes else [{name: []}]
    return result


def _operation(endpoint: Route, at: int, schemas: dict[str, Any]) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}}
    if endpoint.answer is not None:
        content = {JSON: {"schema": schemas[f"answer {at}"]}}
    statuses = STATUSES | REFUSED.get(endpoint.template, {})
    errors = {MEDIA_TYPE: {"schema": schemas["problem"]}}
    responses = {"200": {"description": "The answer", "content": content}}
    responses |= {str(code): {"description": text, "content": errors} for code, text in sorted(statuses.items())}
    operation = {
        "tags": [endpoint.tag], "summary": endpoint.summary, "parameters": _parameters(endpoint),
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z]+', '_', endpoint.template)}", "responses": responses,
    }  # fmt: skip
    if endpoint.method == "POST":
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[f"request {at}"]}}}
    return operation


def _parameters(endpoint: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.template)
    ]
    if endpoint.method == "POST":
        return in_path
    query = endpoint.request.json_schema().get("properties", {}).items()
    return in_path + [
        {"name": name, "in": "query", "required": False, "description": form.pop("description", ""), "schema": form}
        for name, form in query
    ]


def _add_limits(document: dict[str, Any], limits: Limits) -> None:
    for operation in (each for operations in document["paths"].values() for each in operations.values()):
        for parameter in operation["parameters"]:
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
