"""Errors of the service: problems as in RFC 9457, with their kind and the part of the request at fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from concf.errors import ConcfError

MEDIA_TYPE = "application/problem+json"
CLOSE, SOON = {"Connection": "close"}, {"Retry-After": "1"}


class Problem(ConcfError):
    """Error that answers a request. where: the part of the request at fault, such as body.users.1"""

    def __init__(
        self, status: int, kind: str, message: str, where: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.where, self.headers = status, kind, message, where, headers

    def body(self) -> bytes:
        """Return the body of the response."""
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.message,
                "kind": self.kind, "where": self.where}  # fmt: skip
        return json.dumps(body).encode()  # ASCII: the text may be anything


def as_problem(error: Exception) -> Problem:
    """Convert any exception of the application to a problem."""
    match error:
        case Problem():
            return error
        case ConcfError():
            return Problem(400, "bad_request", str(error))
        case HTTPException(status_code=404):
            return Problem(404, "not_found", "no such route; /openapi.json lists all of them")
        case HTTPException(status_code=405):
            return Problem(405, "method_not_allowed", str(error.detail), headers=error.headers)
    return Problem(500, "internal", f"{type(error).__name__}: this is a fault of the service")


def invalid(error: ValidationError, part: Literal["query", "body"], request: Any) -> Problem:
    """Convert the innermost mistake in a query or a body to a problem, without the names of types in its place."""
    mistakes: dict[tuple[str, ...], dict[str, None]] = {}  # place -> messages, one for each permitted type
    for each in error.errors(include_url=False, include_input=False):
        place, value = [str(part)], request
        for step in each["loc"]:
            if isinstance(step, int) if isinstance(value, list) else isinstance(value, dict) and step in value:
                place, value = [*place, str(step)], value[step]
        place += [str(step) for step in each["loc"][-1:] if each["type"] == "missing"]
        message = each["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        mistakes.setdefault(tuple(place), {})[message.partition(" or instance of")[0]] = None
    where = max(mistakes, key=len)
    return Problem(422, "bad_request", " or ".join(mistakes[where]).replace(" or expected", " or"), ".".join(where))
