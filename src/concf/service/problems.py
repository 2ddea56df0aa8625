"""Every error of the service in one shape: {"error": {"kind", "message", "where"}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from concf.errors import ConcfError

Kind = Literal[
    "unknown_user", "unknown_item", "unknown_head", "bad_request", "too_large", "too_slow", "unauthorised", "not_ready",
    "busy", "not_found", "method_not_allowed", "refused_run", "internal",
]  # fmt: skip
FORMS = ("UsersRequest", "HistoryRequest", "HistoriesRequest")  # of POST /recommend; callers do not name them


class Problem(ConcfError):
    """A request that is answered by an error. where: the part of the request at fault, such as body.users.1"""

    def __init__(self, status: int, kind: Kind, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.where = status, kind, message, where

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The response to send."""
        body = {"error": {"kind": self.kind, "message": self.message, "where": self.where}}
        return Response(json.dumps(body), self.status, headers, "application/json")  # ASCII: the text may be anything


def handle_problems(app: FastAPI) -> None:
    """Answer every exception of the application in the shape above."""
    for exception in (ConcfError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(exception, _respond)


async def _respond(_request: Request, error: Exception) -> Response:
    return _problem(error).response(error.headers if isinstance(error, HTTPException) else None)


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case ConcfError():
            return Problem(400, "bad_request", str(error))
        case RequestValidationError():
            return _invalid(error)
        case HTTPException(status_code=404):
            return Problem(404, "not_found", "no such route; /openapi.json lists all of them")
        case HTTPException(status_code=405):
            return Problem(405, "method_not_allowed", str(error.detail))
        case HTTPException():
            return Problem(error.status_code, "bad_request", str(error.detail))
    return Problem(500, "internal", f"{type(error).__name__}: this is a fault of the service")


def _invalid(error: RequestValidationError) -> Problem:
    if isinstance(error.body, bytes):
        message = "the body is not declared as JSON; send the header Content-Type: application/json"
        return Problem(422, "bad_request", message, "header.content-type")
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        where = f"body, character {first['loc'][-1]}"
        return Problem(400, "bad_request", f"not JSON: {first['ctx']['error']}", where)
    where = ".".join(str(part) for part in first["loc"] if part not in FORMS)
    return Problem(422, "bad_request", first["msg"].removeprefix("Value error, "), where or None)
