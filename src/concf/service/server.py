"""The front's process: it listens, loads the run, prints where it serves, reloads at SIGHUP and ends at SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import WatchedFileHandler

import typer
import uvicorn

from concf.errors import ConfigError
from concf.runtime.system import RELOAD
from concf.service.app import create_app
from concf.service.connections import Connections
from concf.service.front import LOOPBACK, Access
from concf.service.loading import LOG, log_as_json
from concf.service.service import Service

LAST_SECONDS, STEP = 1.0, 0.02  # for the requests of connections that came last; between two looks


def serve(
    make: Callable[[], Service], host: str, port: int, access: Access, connections: Connections,
    access_log: str | None = None, idle_seconds: int = 30, drain_seconds: float = 5.0, closing_seconds: int = 30,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; raises an error if the first run cannot be loaded.

    access_log: a file for a line of JSON about each request; "-": standard error
    idle_seconds: that an unused connection is kept open; drain_seconds: after SIGTERM, until no more are accepted;
    closing_seconds: for requests in progress after that
    """
    log = None if access_log is None else _logger(access_log)
    try:  # the first address of the host
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}). Choose another --host, --port") from None
    listener.setblocking(False)
    log_as_json()
    _warn(host, access)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

    service = make()
    config = uvicorn.Config(
        create_app(service, access, log, connections), http=connections, ws="none", lifespan="off",  # type: ignore[arg-type]
        log_config=None, access_log=False, proxy_headers=False, server_header=False,
        timeout_keep_alive=idle_seconds, timeout_graceful_shutdown=closing_seconds,
    )  # fmt: skip

    async def main() -> None:
        try:
            await _run(uvicorn.Server(config), service, listener, connections, url, drain_seconds)
        finally:
            await service.close()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main())


async def _run(
    server: uvicorn.Server, service: Service, listener: socket.socket, connections: Connections, url: str,
    drain_seconds: float,
) -> None:  # fmt: skip
    """Serve until a signal; lose no request when it ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    late = listener.dup()  # keeps the queue of connections when uvicorn closes its own
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    watching = asyncio.create_task(connections.watch())
    await asyncio.sleep(0)  # uvicorn has set its signal handlers, which these replace
    logging.getLogger("uvicorn.error").addFilter(connections.note)

    def drain(immediately: bool) -> None:
        if immediately or service.closing:
            ended.set()
        else:
            loop.call_later(drain_seconds, ended.set)
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
        late.listen(0)  # few more can come between the last look and the end
    finally:
        service.closing = server.should_exit = True
        loading.cancel()
        ending.cancel()
        while listener.fileno() >= 0 and not serving.done():  # uvicorn still accepts
            await asyncio.sleep(STEP)
        await _accept(late, connections)
        await serving
        await _accept(late, connections)
        late.close()
        left = LAST_SECONDS
        while left > 0 and connections.fresh():
            await asyncio.sleep(STEP)
            left -= STEP
        watching.cancel()


async def _accept(late: socket.socket, connections: Connections) -> None:
    """Answer the connections that the kernel has accepted and uvicorn has not."""
    while connections.make is not None:
        try:
            connection, _ = late.accept()
        except OSError:  # nobody
            return
        connection.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(connections.make, connection)


def _warn(host: str, access: Access) -> None:
    if host in LOOPBACK:
        return
    if access.token is None:
        LOG.warning(
            "listening at %s without a token: anyone who can connect can read every user's lists. Use --token-file, or "
            "a proxy that authenticates callers", host,
        )  # fmt: skip
    if host in ("0.0.0.0", "::", "") and set(access.hosts) <= {host}:
        LOG.warning(
            "only requests that name %s in the header Host are answered. Add the names that callers use with "
            "--allow-host", ", ".join(LOOPBACK),
        )  # fmt: skip


def _logger(target: str) -> logging.Logger:
    logger = logging.Logger("concf.access", logging.INFO)
    try:
        logger.addHandler(logging.StreamHandler() if target == "-" else WatchedFileHandler(target, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--access-log {target}: cannot be written ({error.strerror})") from None
    return logger
