"""Front: checks, counts and logs every request, answers with stored lists, and has workers compute the rest."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.loading import LOG
from concf.service.pool import Service
from concf.service.problems import CLOSE, MEDIA_TYPE, SOON, Problem, as_problem, invalid
from concf.service.routes import COMPUTED, Route
from concf.service.schemas import BODY, FIELDS, QUERY, VALUES, ListQuery

JSON = "application/json"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PAGES = ("/", "/docs.html")
LOCKED = {"metrics", *(route.path.split("/")[1] for route in COMPUTED.values())}  # first parts of locked paths
METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
CLIENT_LEFT = 499  # usual status for a caller who disconnected before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DRAINED = 8 << 20  # bytes that are read of a body that is too large: a caller sees the answer only after sending
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
SAFE = [
    (b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()), (b"cache-control", b"no-cache"),
]  # fmt: skip
Headers = dict[bytes, bytes]
Local = Callable[[], object]  # answer of the front itself: bytes, or a value for JSON


@lru_cache(64)
def own_name(host: bytes, hosts: tuple[str, ...]) -> bool:
    """Whether the host name is ours: a page under a name that an attacker points here could read answers."""
    match = re.fullmatch(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d+)?", host.decode("latin-1").lower())
    name = (match[1] or match[2]) if match else ""
    below = any(each.startswith("*.") and name.endswith(each[1:]) for each in hosts)
    return bool(name) and (name in LOOPBACK or name in hosts or "*" in hosts or below)


class Access(NamedTuple):
    """Tokens and host names that the service accepts.

    token: token that callers must send; None: none
    hosts: host names that requests may have besides those of the loopback; "*": any
    """

    token: str | None = None
    hosts: tuple[str, ...] = ()

    def check(self, scope: Scope, headers: Headers) -> None:
        """Refuse a foreign host, a page of another site, and a caller without the token."""
        host, path = headers.get(b"host", b""), scope["path"]
        several = len(headers) < len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1
        if several or not own_name(host, self.hosts):
            message = "this service is not known by the name in the header Host; start it with --allow-host NAME"
            raise Problem(400, "bad_host", message, "header.host")
        if self._is_foreign(path, headers, host):
            message = "a page of another site sent this; if it is your own proxy's, start with --allow-host NAME"
            raise Problem(403, "foreign_origin", message, "header.origin")
        if self.token is None or path[1:].partition("/")[0] not in LOCKED:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(given, self.token.encode()) or scheme.lower() != b"bearer":
            sent = "is needed" if not given else "that was sent is wrong"
            message = f"the token {sent}; send the header Authorization: Bearer TOKEN"
            raise Problem(401, "unauthorised", message, "header.authorization", {"WWW-Authenticate": "Bearer"})

    def _is_foreign(self, path: str, headers: Headers, host: bytes) -> bool:
        """Whether a page of another site sent it; following a link to one of the pages is allowed."""
        if headers.get(b"sec-fetch-site") == b"cross-site":
            return not (headers.get(b"sec-fetch-dest") == b"document" and path in PAGES)
        origin = headers.get(b"origin")
        if origin is None:
            return False
        try:
            name = urlsplit(origin.decode("latin-1")).netloc.lower()
        except ValueError:
            return True
        return name.encode("latin-1") != host.lower() and name not in self.hosts


class Metrics:
    """Prometheus metrics of a service, in their own registry."""

    def __init__(self, service: Service) -> None:
        own: dict[str, Any] = {"registry": CollectorRegistry()}
        self.registry, self.in_flight = own["registry"], 0
        self.requests = Counter("concf_requests", "Requests answered.", ("route", "method", "status"), **own)
        self.seconds = Histogram("concf_request_seconds", "Seconds to an answer.", ("route",), buckets=BUCKETS, **own)
        self.refused = Counter("concf_refused", "Connections closed, and requests that are not HTTP.", ("kind",), **own)
        self.connections = Gauge("concf_connections", "Open connections.", **own)
        ProcessCollector(**own)

        def gauge(name: str, about: str, value: Callable[[], float]) -> None:
            Gauge(f"concf_{name}", about, **own).set_function(value)

        gauge("requests_in_flight", "Requests being answered.", lambda: self.in_flight)
        gauge("requests_waiting", "Short requests that wait.", lambda: len(service.newest.short.waiting))
        gauge("batches_waiting", "Long requests that wait.", lambda: len(service.newest.long.waiting))
        gauge("workers_replaced_total", "Workers of this run that were lost.", lambda: service.newest.replaced)
        gauge("run_version", "Runs that this service has loaded.", lambda: service.version)

    @lru_cache(1024)  # noqa: B019
    def series(self, route: str, method: str, status: int) -> tuple[Counter, Histogram]:
        """Return the counter and the histogram of a request, cached: the lookup takes longer than counting."""
        return self.requests.labels(route, method, str(status)), self.seconds.labels(route)


class Front:
    """Outermost ASGI application: guards, counts and times every request, and answers every error."""

    def __init__(self, app: ASGIApp, service: Service, access: Access, metrics: Metrics) -> None:
        self.app, self.service, self.access, self.metrics = app, service, access, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count it by the path of its route; pages and unknown paths share one label."""
        if scope["type"] != "http":
            return
        headers, status, begin = dict(scope["headers"]), CLIENT_LEFT, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                run = scope.get("run", self.service.run_id).encode()
                closing = [(b"connection", b"close")] if self.service.closing else []
                message["headers"] = [*message["headers"], (b"x-run-id", run), *SAFE, *closing]
            await send(message)

        scope["app"], scope["named"] = self, headers  # app: so that the router raises what it does not find
        self.metrics.in_flight += 1
        try:
            self.access.check(scope, headers)
            await self.app(scope, receive, watch)
        except Exception as error:
            problem = as_problem(error)
            if problem.status == 500:
                LOG.exception("a request failed")
            if status != CLIENT_LEFT:  # part of the answer was sent
                raise
            response = Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)
            await response(scope, receive, watch)
        finally:
            self.metrics.in_flight -= 1
            endpoint = scope.get("endpoint")
            route = endpoint.route.path if isinstance(endpoint, Endpoint) else "page"
            method = scope["method"] if scope["method"] in METHODS else "other"
            requests, histogram = self.metrics.series(route, method, status)
            requests.inc()
            histogram.observe(time.perf_counter() - begin)


class Endpoint:
    """ASGI application of a route. local: answers the request in the front; None: a worker does"""

    def __init__(self, route: Route, service: Service, local: Local | None = None) -> None:
        self.route, self.service, self.local = route, service, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: from the stored lists, in the front, or by a worker."""
        id_, query = next(iter(scope["path_params"].values()), ""), scope["query_string"]
        keeps = self.service.pool if self.route.request is ListQuery else None
        stored = keeps and (keeps.recent.get((id_, query)) if query else keeps.lists.get(id_))
        if stored:
            await Response(stored, media_type=JSON)(scope, receive, send)
            return
        if self.route.method == "GET":
            request = self._query(query)
        else:
            body = await read_body(receive, self.service.limits.body_seconds)
            if body is None:
                return
            request = self._body(scope["named"].get(b"content-type", b""), body)
        if self.local is not None:
            value = self.local()
            response = Response(value, media_type="text/plain") if isinstance(value, bytes) else None
            await (response or Response(to_json(value), media_type=JSON))(scope, receive, send)
            return
        pool, most = self.service.pool, self.service.limits.cost
        scope["run"] = pool.facts["run"]  # by the time of the answer another may be served
        cost = self.route.cost(pool.size, request)
        if cost > most:
            message = f"about {cost:,.0f} scores (users x items) to compute, but this service allows at most {most:,}"
            raise Problem(422, "too_costly", f"{message}; send fewer users or a smaller k")
        job = to_json({"route": self.route.name, "id": id_, "request": request.model_dump(exclude_unset=True)})
        reply = await self._attended(pool.ask(job, cost), receive)
        if reply is not None:
            status, answer = reply
            if keeps and query and status == 200:
                keeps.keep(id_, query, answer)
            await Response(answer, status, media_type=JSON if status == 200 else MEDIA_TYPE)(scope, receive, send)

    def _query(self, query: bytes) -> Any:
        """Check a query."""
        if len(query) > QUERY:
            raise Problem(422, "bad_request", f"the query has more than {QUERY:,} bytes", "query")
        return self._checked(dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)), "query")

    def _body(self, kind: bytes, body: bytes) -> Any:
        """Check a body: first the number of its values, since parsing and validating them takes longer."""
        if kind.partition(b";")[0].strip().lower() != JSON.encode():
            message = "the body is not declared as JSON; send the header Content-Type: application/json"
            raise Problem(422, "bad_request", message, "header.content-type")
        if body.count(b",") > VALUES:
            raise Problem(413, "too_large", f"the body has more than {VALUES:,} values", "body")
        try:
            return self._checked(from_json(body, allow_inf_nan=False), "body")
        except ValueError as error:
            raise Problem(400, "bad_request", f"not JSON: {error}", "body") from None

    def _checked(self, fields: Any, part: Literal["query", "body"]) -> Any:
        if isinstance(fields, dict) and len(fields) > FIELDS:
            raise Problem(422, "bad_request", f"more than {FIELDS} fields", part)
        try:
            return self.route.request.model_validate(fields, strict=part == "body")
        except ValidationError as error:
            raise invalid(error, part, fields) from None

    async def _attended(self, work: Any, receive: Receive) -> tuple[int, bytes] | None:
        """Return the answer within the deadline; None, and cancel the work, if the caller disconnects."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({task, gone}, timeout=self.service.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()  # type: ignore[no-any-return]
            if gone.done():
                return None
            message = f"the answer was not ready within {self.service.limits.seconds:g} seconds"
            raise Problem(503, "deadline", message, headers=SOON)
        finally:
            task.cancel()
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Receive, seconds: float) -> bytes | None:
    """Read the whole body; None if the caller disconnected. Part of a body that is too large is read and dropped."""
    body, size, more = bytearray(), 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and size <= BODY + DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size <= BODY:
                    body += part
    except TimeoutError:
        if size <= BODY:
            late = f"the body did not arrive within {seconds:g} seconds"
            raise Problem(408, "too_slow", late, "body", CLOSE) from None
    if size > BODY:
        raise Problem(413, "too_large", f"the body has more than {BODY:,} bytes", "body", CLOSE)
    return bytes(body)
