"""The front: checks every request, answers stored lists itself, has workers compute the rest, and counts and logs."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concf.service.connections import Connections
from concf.service.limits import FIELDS, QUERY_BYTES, SOON
from concf.service.loading import LOG
from concf.service.problems import MEDIA_TYPE, Problem, as_problem, invalid
from concf.service.routes import Parts, Route
from concf.service.schemas import ListQuery
from concf.service.service import Service

JSON = "application/json"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PAGES = ("/", "/docs")
OPEN = (*PAGES, "/health", "/ready", "/openapi.json")  # paths that need no token, besides the explorer's assets
ASSETS, RELOAD = "/explorer/", "/reload"
KNOWN_HOSTS = 64  # at most
METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"))
NO_ROUTE, OTHER_METHOD = "unmatched", "other"
CLIENT_LEFT = 499  # the usual status for a caller who left before the answer
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")  # of a caller; any other is replaced
SAFE = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
Headers = dict[bytes, bytes]
Local = Callable[[Any], Awaitable[Response]]  # answers a checked request in the front


class IdConvertor(PathConvertor):
    """The rest of a path, of any characters, line breaks too."""

    regex = r"[\s\S]*"


register_url_convertor("id", IdConvertor())


@dataclass(frozen=True)
class Access:
    """Tokens, host names and image origins that the service accepts.

    token: what callers must send, if anything; admin_token: what `POST /reload` needs, which is off without one
    hosts: the names that a request may be addressed to besides the loopback's; "*": any
    images: the origins that the pages may load pictures from, besides this one
    """

    token: str | None = None
    admin_token: str | None = None
    hosts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    known: set[bytes] = field(default_factory=set)  # hosts that were allowed, as they were written

    def refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """Return the reason to refuse a request, if any: a foreign host, a page of another site, no token."""
        host, path = headers.get(b"host", b""), scope["path"]
        if host not in self.known or len(headers) != len(scope["headers"]):
            several = sum(name == b"host" for name, _ in scope["headers"]) != 1
            if several or not self._own_name(host.decode("latin-1").lower()):
                message = "this service is not known by the name in the header Host; start it with --allow-host NAME"
                return Problem(400, "bad_host", message, "header.host")
            if len(self.known) < KNOWN_HOSTS:
                self.known.add(host)
        if self._is_foreign(scope, headers, host):
            message = "a page of another site sent this; if it is your own proxy's, start with --allow-host NAME"
            return Problem(403, "foreign_origin", message, "header.origin")
        admin = path == RELOAD and self.admin_token is not None
        token = self.admin_token if admin else self.token
        if token is None or path in OPEN or path.startswith(ASSETS):
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if hmac.compare_digest(given, token.encode()) and scheme.lower() == b"bearer":
            return None
        sent = "is needed" if not given else "that was sent is wrong"
        message = f"{'the admin' if admin else 'the'} token {sent}; send the header Authorization: Bearer TOKEN"
        return Problem(401, "unauthorised", message, "header.authorization", {"WWW-Authenticate": "Bearer"})

    def _own_name(self, host: str) -> bool:
        """Whether others cannot own the name: a page whose name is made to lead here could read answers."""
        match = re.fullmatch(r"(?:\[([\da-f:.]+)\]|([\w.-]+))(?::\d+)?", host)
        name = (match[1] or match[2]) if match else ""
        below = any(each.startswith("*.") and name.endswith(each[1:]) for each in self.hosts)
        return bool(name) and (name in LOOPBACK or name in self.hosts or "*" in self.hosts or below)

    def _is_foreign(self, scope: Scope, headers: Headers, host: bytes) -> bool:
        """Whether a page of another site sent it; following a link to one of the pages is allowed."""
        if headers.get(b"sec-fetch-site") == b"cross-site":
            return not (headers.get(b"sec-fetch-dest") == b"document" and scope["path"] in PAGES)
        origin = headers.get(b"origin")
        if origin is None:
            return False
        try:
            name = urlsplit(origin.decode("latin-1")).netloc.lower()
        except ValueError:
            return True
        return name.encode("latin-1") != host.lower() and name not in self.hosts


class Metrics:
    """Prometheus metrics of one service, in a registry of its own."""

    def __init__(self, service: Service, connections: Connections) -> None:
        self.registry, self.in_flight = CollectorRegistry(), 0
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        labels = ("route", "method", "status")
        self.requests = Counter("concf_requests", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram(
            "concf_request_seconds", "Seconds from request to answer.", labels[:1], buckets=BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        ProcessCollector(registry=self.registry)
        refused = Gauge("concf_refused_total", "Connections refused.", ("kind",), registry=self.registry)
        for kind in connections.refused:
            refused.labels(kind).set_function(partial(connections.refused.__getitem__, kind))
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "concf_requests_in_flight": ("Requests being answered.", lambda: self.in_flight),
            "concf_requests_waiting": ("Requests that wait for a worker.", lambda: service.waiting),
            "concf_connections": ("Open connections.", lambda: len(connections)),
            "concf_workers_replaced_total": ("Workers that ended or were ended.", lambda: service.replaced),
            "concf_run_version": ("Runs that this service has loaded.", lambda: service.version),
            "concf_run_loaded_timestamp_seconds": ("When the run was loaded.", lambda: service.loaded),
        }
        for name, (description, value) in gauges.items():
            Gauge(name, description, registry=self.registry).set_function(value)

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. To look up a series takes longer than to count."""
        key = (route, method, status)
        if key not in self._series:
            self._series[key] = self.requests.labels(route, method, str(status)), self.seconds.labels(route)
        requests, histogram = self._series[key]
        requests.inc()
        histogram.observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class Front:
    """The outermost ASGI application: guards, counts, times and logs every request, and answers every error.

    app: the router; log: for a line of JSON a request
    """

    def __init__(
        self, app: ASGIApp, service: Service, access: Access, metrics: Metrics, connections: Connections,
        log: logging.Logger | None = None,
    ) -> None:  # fmt: skip
        self.app, self.service, self.access, self.metrics, self.log = app, service, access, metrics, log
        self.connections, self.prefix, self.numbers = connections, token_hex(6), count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers: Headers = dict(scope["headers"])
        status, size, begin, request = CLIENT_LEFT, 0, time.perf_counter(), headers.get(b"x-request-id", b"")
        if not REQUEST_ID.fullmatch(request):
            request = f"{self.prefix}-{next(self.numbers)}".encode()

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", request), (b"x-run-id", scope.get("run", self.service.run_id).encode())]
                if self.service.closing:
                    own.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *own, *SAFE]
            else:
                size += len(message.get("body", b""))
            await send(message)

        scope["app"], scope["named"] = self, headers  # app: so that the router raises what it does not find
        connection = scope["connection"] = self.connections.of(scope.get("client"))
        connection.begin()
        self.metrics.in_flight += 1
        try:
            problem = self.access.refusal(scope, headers)
            await (self.app if problem is None else problem.response())(scope, receive, watch)
        except Exception as error:
            problem = as_problem(error)
            if problem.status == 500:
                LOG.exception("a request failed", extra={"fields": {"request": request.decode("latin-1")}})
            if status != CLIENT_LEFT:  # part of the answer was sent
                raise
            await problem.response()(scope, receive, watch)
        finally:
            self.metrics.in_flight -= 1
            connection.end()
            self._note(scope, request, status, size, time.perf_counter() - begin)

    def _note(self, scope: Scope, request: bytes, status: int, size: int, seconds: float) -> None:
        """Count a request by the template of its route; requests without a route share one label."""
        route = getattr(scope.get("endpoint"), "template", NO_ROUTE)
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        self.metrics.count(route, method, status, seconds)
        if self.log is not None:
            raw = scope.get("raw_path") or scope["path"].encode()
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "request": request.decode("latin-1"),
                "client": (scope.get("client") or (None,))[0], "method": scope["method"],
                "path": raw.decode("latin-1"), "query": scope["query_string"].decode("latin-1"), "route": route,
                "status": status, "bytes": size, "ms": round(1000 * seconds, 3),
            }  # fmt: skip
            self.log.info(json.dumps(line))


class Endpoint:
    """One route, an ASGI application. local: answers the request in the front; otherwise a worker does"""

    def __init__(self, route: Route, service: Service, local: Local | None = None) -> None:
        self.route, self.service, self.local = route, service, local
        self.template, self.is_get = route.template, route.method == "GET"
        self.ids = re.findall(r"{(\w+):id}", route.path)
        self.default = route.request.validate_python({}) if self.is_get else None
        self.is_stored = self.template == "/recommend/{user}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = b""
        if self.is_get:
            about, request = self._query(scope["query_string"])
            path = self._path(scope)
            stored = self._stored(path, request) if self.is_stored else None
            if stored is not None:
                await Response(stored, media_type=JSON)(scope, receive, send)
                return
        else:
            scope["connection"].waiting_since = time.monotonic()
            read = await self.service.limits.read_body(receive)
            scope["connection"].waiting_since = None
            if read is None:
                return
            about, path, body, request = {}, {}, read, self._body(scope, read)
        if self.local is not None:
            await (await self.local(request))(scope, receive, send)
            return
        pool, limits = self.service.pool, self.service.limits
        scope["run"] = pool.facts["run"]  # by the time of the answer another may be served
        cost = self.route.cost(pool.size, request)
        limits.check_cost(cost)
        job = json.dumps({"route": self.route.name, "path": path, "query": about}).encode() + b"\n" + body
        reply = await self._attended(pool.ask(job, cost), receive)
        if reply is not None:
            status, answer = reply
            if self.is_stored and status == 200 and not (request.viewed or request.popular or pool.loader.rules):
                pool.stored.keep((path["user"], request.k, request.by), answer)
            response = Response(answer, status, media_type=JSON if status == 200 else MEDIA_TYPE)
            await response(scope, receive, send)

    def _path(self, scope: Scope) -> Parts:
        if len(self.ids) < 2:
            return scope["path_params"]  # type: ignore[no-any-return]
        segments = scope["raw_path"].split(b"/")  # once decoded, a slash within an id (%2F) looks like a separator
        if len(segments) != self.template.count("/") + 1:
            raise Problem(404, "not_found", f"expected {self.template}; write a slash within an id as %2F", "path")
        return dict(zip(self.ids, map(unquote, segments[-len(self.ids) :]), strict=True))

    def _query(self, query: bytes) -> tuple[dict[str, str], Any]:
        if not query:
            return {}, self.default
        self.service.limits.check("bytes of the query", len(query), QUERY_BYTES, "query", 422)
        try:
            about = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS))
            return about, self._checked(self.route.request.validate_python(about), "query")
        except ValidationError as error:
            raise invalid(error, "query") from None
        except ValueError as error:
            raise Problem(422, "bad_request", f"{error}; at most {FIELDS} are allowed", "query") from None

    def _body(self, scope: Scope, body: bytes) -> Any:
        if scope["named"].get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON.encode():
            message = "the body is not declared as JSON; send the header Content-Type: application/json"
            raise Problem(422, "bad_request", message, "header.content-type")
        parsed = self.service.limits.parse(body)
        try:
            return self._checked(self.route.request.validate_python(parsed), "body")
        except ValidationError as error:
            raise invalid(error, "body") from None

    def _checked(self, request: Any, part: str) -> Any:
        self.service.limits.check("k", getattr(request, "k", 0), self.service.limits.k, f"{part}.k", 422)
        return request

    def _stored(self, path: Parts, query: ListQuery) -> bytes | None:
        stored, key = self.service.pool.stored, (path["user"], query.k, query.by)
        if query.viewed or key in stored.kept:
            return None if query.viewed else stored.kept[key]
        answer = stored.answer(*key[:2], query.popular) if query.by in (None, stored.by) else None
        return answer and stored.keep(key, answer)

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


def as_response(value: object) -> Response:
    """Return a value as a response of JSON."""
    return Response(to_json(value), media_type=JSON)
