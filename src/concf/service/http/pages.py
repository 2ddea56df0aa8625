"""The explorer's page, the page of the API and their assets: files of the package, no others."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from importlib.resources import files

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
mimetypes.add_type("text/javascript", ".js")  # some systems have another


class Page:
    """A file of the explorer, or those that the path names."""

    def __init__(self, policy: str, template: str, file: str | None = None) -> None:
        self.template, self.file, self.headers = template, file, HEADERS | {"Content-Security-Policy": policy}
        self.files = StaticFiles(directory=str(files("concf.service.explorer") / "assets"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; 304 for callers who have it."""
        response = await self.files.get_response(self.file or scope["path_params"]["file"], scope)
        response.headers.update(self.headers)
        response.headers["ETag"] = f"W/{response.headers['etag']}"  # compressed, it is other bytes
        if response.status_code == 304:  # else the compression adds it
            response.headers["Vary"] = "Accept-Encoding"
        await response(scope, receive, send)


def routes(images: Sequence[str] = ()) -> list[Route]:
    """/, /docs and /explorer/{file}. images: origins that pictures may come from, besides this one"""
    policy = "; ".join([POLICY, *([f"img-src 'self' {' '.join(images)}"] if images else [])])
    files = (("/", "index.html"), ("/docs", "docs.html"), ("/explorer/{file}", None))
    pages = [Page(policy, *each) for each in files]
    small = [Middleware(GZipMiddleware)]
    return [Route(page.template, page, methods=["GET"], middleware=small) for page in pages]
