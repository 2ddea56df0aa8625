"""What a caller can do wrong, in one shape: {"error": {"kind", "message", "where"}}."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from concf.errors import ConcfError

Kind = Literal[
    "unknown_user", "unknown_item", "unknown_head", "bad_request", "too_large", "too_slow", "unauthorised", "not_ready",
    "busy", "not_found", "method_not_allowed", "refused_run", "internal",
]  # fmt: skip
KINDS: dict[int, Kind] = {
    400: "bad_request", 401: "unauthorised", 404: "not_found", 405: "method_not_allowed", 408: "too_slow",
    413: "too_large", 422: "bad_request", 503: "not_ready",
}  # fmt: skip


FORMS = ("ForUsers", "ForHistory", "ForHistories")  # of a question; a caller does not name them


class Problem(ConcfError):
    """An answer that is an error. where: the part of the request that it is about."""

    def __init__(self, status: int, kind: Kind, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.where = status, kind, message, where

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """As an answer."""
        said = {"error": {"kind": self.kind, "message": self.message, "where": self.where}}
        return Response(json.dumps(said), self.status, headers, "application/json")  # ASCII: any text may be in it


def handle_problems(app: FastAPI) -> None:
    """Every error of the application in that shape."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(ConcfError, _mistake)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _bug)


async def _problem(_request: Request, error: Any) -> Response:
    return error.response()  # type: ignore[no-any-return]


async def _mistake(_request: Request, error: Exception) -> Response:
    return Problem(400, "bad_request", str(error)).response()


async def _invalid(_request: Request, error: Any) -> Response:
    if isinstance(error.body, bytes):
        unsaid = "the body is not said to be JSON; send the header Content-Type: application/json"
        return Problem(422, "bad_request", unsaid, "header.content-type").response()
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Problem(
            400, "bad_request", f"not JSON: {first['ctx']['error']}", f"body, character {first['loc'][-1]}"
        ).response()
    where = ".".join(str(part) for part in first["loc"] if part not in FORMS) or None
    return Problem(422, "bad_request", first["msg"].removeprefix("Value error, "), where).response()


async def _refused(_request: Request, error: Any) -> Response:
    kind = KINDS.get(error.status_code, "bad_request")
    message = "no such route; /openapi.json has them all" if error.status_code == 404 else str(error.detail)
    return Problem(error.status_code, kind, message).response(error.headers)


async def _bug(_request: Request, error: Exception) -> Response:
    return Problem(500, "internal", f"{type(error).__name__}: this is a mistake of the service").response()
