"""Process of the front: it listens, loads the run, prints its address, reloads at SIGHUP and ends at SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from contextlib import suppress
from itertools import chain
from typing import Any

import typer
import uvicorn

from concf.errors import ConfigError
from concf.runtime.system import RELOAD
from concf.service.app import create_app
from concf.service.front import LOOPBACK, Access, Metrics
from concf.service.loading import LOG, log_as_json
from concf.service.pool import Service

LOOK = 0.1  # seconds between two checks of all connections
HEAD_SECONDS, HEAD_BYTES = 5.0, 1 << 16  # of a request's first line and headers
LAST_SECONDS = 0.5  # for the requests of connections that came last


def serve(
    service: Service, host: str, port: int, access: Access, access_log: bool = False, connections: int = 800,
    idle_seconds: int = 30, drain_seconds: float = 5.0,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; raises an error if the first run cannot be loaded.

    connections: most open connections; idle_seconds: after which a connection without activity is closed
    drain_seconds: after SIGTERM, until no more connections are accepted
    """
    try:  # the first address of the host
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}). Choose another --host, --port") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HEAD_BYTES)  # so that little arrives between two looks
    log_as_json()
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    if host not in LOOPBACK and access.token is None:
        LOG.warning("listening at %s without a token: anyone who can connect can read every user's lists", host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    app = create_app(service, access)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=access_log, proxy_headers=False,
        server_header=False, timeout_keep_alive=idle_seconds, timeout_graceful_shutdown=int(service.limits.seconds) + 1,
    )  # fmt: skip

    async def main() -> None:
        server = uvicorn.Server(config)
        watching = asyncio.create_task(watch(server, app.metrics, connections, idle_seconds))
        try:
            await _run(server, service, listener, url, drain_seconds)
        finally:
            watching.cancel()
            await service.newest.close()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main())


async def _run(server: uvicorn.Server, service: Service, listener: socket.socket, url: str, wait: float) -> None:
    """Serve until a signal; lose no request when it ends. wait: seconds between SIGTERM and the end"""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.sleep(0)  # uvicorn has set its signal handlers, which these replace

    def drain(immediately: bool) -> None:
        if immediately or service.closing:
            ended.set()
        else:
            loop.call_later(wait, ended.set)
        service.closing = True

    with suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGTERM, drain, False)
        loop.add_signal_handler(signal.SIGINT, drain, True)
        if RELOAD is not None:
            loop.add_signal_handler(RELOAD, service.reload_soon)
    loading, ending = asyncio.create_task(service.reload()), asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({loading, ending, serving}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            gc.collect()
            gc.freeze()  # a collection that visits all that was imported takes a third of a second
            typer.echo(f"concf: serving {service.folder} at {url}")
            await asyncio.wait({ending, serving}, return_when=asyncio.FIRST_COMPLETED)
            listener.listen(0)  # few can be in the queue when it is closed
            for each in server.servers:
                each.close()
            await asyncio.sleep(LAST_SECONDS)
    finally:
        service.closing = server.should_exit = True
        loading.cancel()
        ending.cancel()
        await serving


async def watch(server: uvicorn.Server, metrics: Metrics, most: int, idle_seconds: float) -> None:
    """Run forever: close connections whose callers keep the service waiting, and count these and bad requests.

    uvicorn has no limits of this kind. A connection waits for its caller before a request and while its head or body
    arrives or an answer is not read; if nothing changes for `idle_seconds`, or a head is incomplete after
    `HEAD_SECONDS` or longer than `HEAD_BYTES`, it is closed. If more than `most` are open, those that have waited
    longest are closed, first those that have had no request.
    """

    def not_http(record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            metrics.refused.labels("protocol").inc()
        return True

    def close(connection: Any, kind: str) -> None:
        metrics.refused.labels(kind).inc()
        connection.transport.abort()

    logging.getLogger("uvicorn.error").addFilter(not_http)
    since: dict[Any, tuple[Any, float]] = {}  # connection -> its state, and when that was first seen
    connections: Any = server.server_state.connections
    while True:
        await asyncio.sleep(LOOK)
        now, before, since, waiting = time.monotonic(), since, {}, list[Any]()
        for each in list(connections):
            cycle, unsent, scope = each.cycle, each.transport.get_write_buffer_size(), each.scope
            in_head = scope is not None and "path" not in scope  # its first bytes have arrived
            waits = bool(unsent or cycle is None or cycle.response_complete or cycle.more_body)
            state = (cycle, unsent, in_head, waits)
            since[each] = before[each] if each in before and before[each][0] == state else (state, now)
            seconds = now - since[each][1]
            if in_head and len(each.url) + sum(map(len, chain(*each.headers))) > HEAD_BYTES:
                close(each, "too_large")
            elif waits:
                waiting.append((cycle is not None, -seconds, len(waiting), each))
                if seconds > (HEAD_SECONDS if in_head else idle_seconds):
                    close(each, "too_slow")
        for *_, each in sorted(waiting)[: max(0, len(since) - most)]:
            close(each, "busy")
        metrics.connections.set(len(since))
