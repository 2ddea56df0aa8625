"""The explorer's page and its assets: files of the package, no others."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from concf.service.problems import Problem

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}  # fmt: skip
mimetypes.add_type("text/javascript", ".js")  # some systems say otherwise


def router() -> APIRouter:
    """/, /docs and /explorer/{file}."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def explorer(request: Request) -> Response:
        return page("index.html", request)

    @routes.get("/docs")
    async def documents(request: Request) -> Response:
        return page("docs.html", request)

    @routes.get("/explorer/{file}")
    async def asset(file: str, request: Request) -> Response:
        return page(file, request)

    return routes


def page(name: str, request: Request) -> Response:
    """A file of the explorer, small if the caller takes it so; not again, if the caller has it."""
    found = _contents().get(name)
    if found is None:
        raise Problem(404, "not_found", f"the explorer has no file {name!r}")
    body, small, kind, tag = found
    headers = HEADERS | {"ETag": f'"{tag}"'}
    if takes_gzip(request.headers.get("accept-encoding", "")):
        body, headers = small, headers | {"ETag": f'"{tag}-gzip"', "Content-Encoding": "gzip"}
    had = request.headers.get("if-none-match", "").split(",")
    if headers["ETag"] in (each.strip().removeprefix("W/") for each in had):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


def takes_gzip(accepts: str) -> bool:
    """Whether a header of encodings names gzip, or any, and not with the weight 0."""
    parts = (part.partition(";") for part in accepts.lower().replace(" ", "").split(","))
    weights = {coding: weight for coding, _, weight in parts}
    return not re.fullmatch(r"q=0(\.0*)?", weights.get("gzip", weights.get("*", "q=0")))


@cache
def _contents() -> dict[str, tuple[bytes, bytes, str, str]]:
    """File -> its bytes, the same compressed, its type, its tag."""
    folder = files("concf.service.explorer") / "assets"
    found = {}
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_file():
            body = each.read_bytes()
            kind = mimetypes.guess_type(each.name)[0] or "application/octet-stream"
            found[each.name] = body, gzip.compress(body, mtime=0), kind, hashlib.sha256(body).hexdigest()[:32]
    return found
