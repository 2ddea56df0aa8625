"""The process: it listens, loads the run, prints where it serves, reloads at SIGHUP and ends at SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging.handlers import WatchedFileHandler
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import typer
import uvicorn

from concf.errors import ConcfError, ConfigError
from concf.runtime.system import RELOAD, refuse_on_windows
from concf.service.app import create_app
from concf.service.http.middleware import LOOPBACK, Access
from concf.service.http.protocol import limited
from concf.service.loading import Service
from concf.service.problems import Problem
from concf.service.workers import Workers

LAST_SECONDS, STEP = 1.0, 0.02  # for the requests of connections that came last; between two looks


@dataclass(frozen=True)
class Connections:
    """Limits of connections.

    most: open at a time; head_seconds: for a request's first line and headers to arrive in; send_seconds: for the
    caller to read what was sent; idle_seconds: that an unused one is kept open; drain_seconds: after SIGTERM, until no
    more are accepted; closing_seconds: for requests in progress after that
    """

    most: int = 800
    head_seconds: float = 10.0
    send_seconds: float = 10.0
    idle_seconds: int = 30
    drain_seconds: float = 5.0
    closing_seconds: int = 30


class Server(uvicorn.Server):
    """uvicorn, which loads the run once it listens and again at SIGHUP, and loses no request when it ends."""

    def __init__(
        self, config: uvicorn.Config, service: Service, drain_seconds: float, when_ready: Callable[[], None],
        link: Connection | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self.service, self.drain_seconds, self.when_ready, self.link = service, drain_seconds, when_ready, link
        self.failure: ConcfError | None = None
        self.is_last = link is None  # whether no other process accepts at this socket
        self._tasks: set[asyncio.Task[object]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load; one of several loads first, since the others answer meanwhile."""
        if self.link is not None:
            await asyncio.to_thread(self._load_first)
            if self.should_exit:
                return
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if RELOAD is not None:
            self._loop.add_signal_handler(RELOAD, lambda: self._start(self._load_again()))
        if self.link is None:
            self._start(asyncio.to_thread(self._load_first))
        else:
            self.service.when_reloaded = lambda folder: self._tell("loaded", folder)
            self._loop.add_reader(self.link.fileno(), self._hear)

    def _hear(self) -> None:
        """Receive from the parent the folder of a run that another worker has loaded, or None to shut down."""
        assert self.link is not None
        try:
            folder = self.link.recv()
        except (EOFError, OSError):  # the parent died
            self._loop.remove_reader(self.link.fileno())
            folder = None
            os.kill(os.getpid(), signal.SIGTERM)
        if folder is None:
            self.is_last = True
        else:
            self._start(asyncio.to_thread(self.service.reload_and_say, folder))

    def _tell(self, what: str, value: object = None) -> None:
        if self.link is not None:
            with suppress(OSError):
                self.link.send((what, value))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Report at once that the service is not ready; at SIGTERM, accept requests for a while longer."""
        if sig == signal.SIGTERM and not self.service.closing and self.started:
            end = partial(super().handle_exit, sig, frame)
            self._loop.call_soon_threadsafe(self._loop.call_later, self.drain_seconds, end)
        else:
            super().handle_exit(sig, frame)
        self.service.closing = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept and answer connections that are already waiting, then shut down."""
        for listener in [each.dup() for each in sockets or []]:
            with listener:
                if self.is_last:
                    listener.listen(0)  # few more can come between the last look and the end
                for server in self.servers:
                    server.close()
                for _ in range(2):
                    await self._accept(listener)
                    await asyncio.sleep(STEP)
                await self._accept(listener)
        left = LAST_SECONDS
        while left > 0 and any(getattr(each, "is_fresh", False) for each in self.server_state.connections):
            await asyncio.sleep(STEP)
            left -= STEP
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody
                return
            connection.setblocking(False)
            make: Any = self.config.http_protocol_class
            protocol = partial(make, self.config, self.server_state, self.lifespan.state)
            await self._loop.connect_accepted_socket(protocol, connection)

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _load_first(self) -> None:
        try:
            self.service.reload()
        except ConcfError as error:
            self.failure, self.should_exit = error, True
        else:
            if not self.should_exit:
                self.when_ready()

    async def _load_again(self) -> None:
        with suppress(Problem):  # it was printed
            await self.service.reload_soon(is_own=False)  # all workers got the signal


def serve(
    make: Callable[[], Service], host: str, port: int, access: Access, connections: Connections,
    access_log: str | None = None, workers: int = 1,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; raises an error if the first run cannot be loaded.

    make: the service, in each worker; access_log: a file for a line of JSON about each request; "-": standard error
    """
    if workers > 1:
        refuse_on_windows(f"--workers {workers}", "Serve with one, or start several services behind a proxy")
    if access_log is not None:
        _logger(access_log).handlers[0].close()  # an error now, if it cannot be written
    try:  # the first address of the host
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}). Choose another --host, --port") from None
    listener.setblocking(False)
    folder = make().folder
    _warn(host, access)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    say = lambda: typer.echo(f"concf: serving {folder} at {url}")  # noqa: E731
    work = partial(_serve_here, make, access, connections, access_log)
    if workers == 1:
        work(listener, when_ready=say)
    else:
        with listener:
            Workers(workers, work, listener).serve(say)


def _serve_here(
    make: Callable[[], Service], access: Access, connections: Connections, access_log: str | None,
    listener: socket.socket, link: Connection | None = None, folder: Path | None = None,
    when_ready: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Serve in this process, one of several if there is a link to their parent. folder: to load instead"""
    sys.setswitchinterval(0.0005)  # seconds that the event loop waits while a batch's thread computes in Python
    torch.set_num_threads(1)  # one list is too little work for several threads; requests share the cores
    service = make()
    service.folder = folder or service.folder
    config = uvicorn.Config(
        create_app(service, access, None if access_log is None else _logger(access_log)),
        http=limited(connections.head_seconds, connections.send_seconds, connections.most), ws="none",
        log_level="error", access_log=False, proxy_headers=False, server_header=False,
        timeout_keep_alive=connections.idle_seconds, timeout_graceful_shutdown=connections.closing_seconds,
    )  # fmt: skip
    server = Server(config, service, connections.drain_seconds, when_ready or (lambda: server._tell("ready")), link)
    # A signal before uvicorn listens for them ends the server as one after it does. At its end uvicorn raises the
    # signal that ended it once more, which would end the process with an error
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if server.failure is not None:
        raise server.failure


def _warn(host: str, access: Access) -> None:
    if host in LOOPBACK:
        return
    if access.token is None:
        typer.echo(
            f"concf: warning: listening at {host} without a token: whoever can connect may read anyone's "
            "lists. Use --token-file, or a proxy that authenticates callers",
            err=True,
        )
    if host in ("0.0.0.0", "::", "") and set(access.hosts) <= {host}:
        names = ", ".join(LOOPBACK)
        typer.echo(
            f"concf: warning: only requests that name {names} in the header Host are answered. "
            "Add the names that callers use with --allow-host",
            err=True,
        )


def _logger(target: str) -> logging.Logger:
    logger = logging.Logger("concf.access", logging.INFO)
    try:
        logger.addHandler(logging.StreamHandler() if target == "-" else WatchedFileHandler(target, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--access-log {target}: cannot be written ({error.strerror})") from None
    return logger
