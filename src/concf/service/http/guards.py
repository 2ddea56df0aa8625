"""Who may ask: checks of the host, the origin and the token ahead of the routes."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.problems import Problem

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health", "/ready", "/", "/docs", "/openapi.json")  # paths that need no token, besides the explorer's assets
ASSETS, RELOAD = "/explorer/", "/reload"
KNOWN_HOSTS = 64  # names that were allowed, as they were written
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Access:
    """Who may ask what.

    token: what callers must send, if anything; admin_token: what `POST /reload` needs, which is off without one
    hosts: the names that a request may be addressed to besides the loopback's; "*": any
    images: the origins that the pages may load pictures from, besides this one
    """

    token: str | None = None
    admin_token: str | None = None
    hosts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name; empty if there is none."""
    return next((value for each, value in scope["headers"] if each == name), b"")


class Guard(ABC):
    """Passes a request on if `refusal` finds nothing against it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or refuse it."""
        problem = await self.refusal(scope) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)

    @abstractmethod
    async def refusal(self, scope: Scope) -> Problem | None:
        """Why the request is refused."""


class HostGuard(Guard):
    """Refuses names that others may own: a page whose name is made to lead here would be allowed to read answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(app, access)
        names = [f"[{name}]" if ":" in name else name for name in (*LOOPBACK, *access.hosts)]
        self.known: set[bytes] = set()
        self.check = TrustedHostMiddleware(_allowed, names, www_redirect=False)

    async def refusal(self, scope: Scope) -> Problem | None:
        """What Starlette's check refuses, in the shape of all errors. It is not repeated for names that it allowed."""
        host, sent = header(scope, b"host"), list[Message]()
        if host in self.known:
            return None

        async def keep(message: Message) -> None:
            sent.append(message)

        await self.check(scope, _nothing, keep)
        if not sent and len(self.known) < KNOWN_HOSTS:
            self.known.add(host)
        message = "this service is not known by the name in the header Host; start it with --allow-host NAME"
        return Problem(400, "bad_host", message, "header.host") if sent else None


async def _allowed(_scope: Scope, _receive: Receive, _send: Send) -> None:
    pass


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class OriginGuard(Guard):
    """Refuses what a page of another site sends; reading its answer is prevented by the browser."""

    async def refusal(self, scope: Scope) -> Problem | None:
        """Whether a request that may change or cost something comes from elsewhere."""
        if scope["method"] in SAFE_METHODS:
            return None
        origin = header(scope, b"origin").decode("latin-1")
        if header(scope, b"sec-fetch-site") != b"cross-site" and (not origin or self._own(origin, scope)):
            return None
        message = "a page of another site sent this; if it is your own proxy's, start with --allow-host NAME"
        return Problem(403, "foreign_origin", message, "header.origin")

    def _own(self, origin: str, scope: Scope) -> bool:
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        return parts.netloc.encode("latin-1") == header(scope, b"host") or name in self.access.hosts


class TokenGuard(Guard):
    """Lets only requests with the token pass; a reload has a token of its own."""

    async def refusal(self, scope: Scope) -> Problem | None:
        """What is missing."""
        path, admin = scope["path"], scope["path"] == RELOAD and self.access.admin_token is not None
        token = self.access.admin_token if admin else self.access.token
        if token is None or path in OPEN or path.startswith(ASSETS) or _shows(scope, token):
            return None
        which = "the admin token" if admin else "a token"
        message = f"{which} is needed; send the header Authorization: Bearer TOKEN"
        return Problem(401, "unauthorised", message, "header.authorization", {"WWW-Authenticate": "Bearer"})


def _shows(scope: Scope, token: str) -> bool:
    scheme, _, given = header(scope, b"authorization").partition(b" ")
    return hmac.compare_digest(given, token.encode()) and scheme.lower() == b"bearer"
