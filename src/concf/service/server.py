"""The process: it listens, loads the run, prints where it serves, reloads at SIGHUP and ends at SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import typer
import uvicorn

from concf.errors import ConcfError, ConfigError
from concf.service.app import create_app
from concf.service.loading import Service
from concf.service.protocol import limited

BACKLOG = 2048  # connections that wait to be accepted
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Server(uvicorn.Server):
    """uvicorn, which loads the run once it listens and again at SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, when_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.service, self.when_ready = service, when_ready
        self.failure: ConcfError | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then load."""
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._in_thread, self._load_again)
        self._in_thread(self._load_first)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Report at once that the service is not ready any more."""
        self.service.closing = True
        super().handle_exit(sig, frame)

    def _in_thread(self, work: Callable[[], object]) -> None:
        task = asyncio.create_task(asyncio.to_thread(work))
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

    def _load_again(self) -> None:
        try:
            served = self.service.reload()
            typer.echo(f"concf: serving {served.folder}, version {served.version}", err=True)
        except ConcfError as error:
            typer.echo(f"concf: reload refused, still serving the old run: {error}", err=True)


def serve(
    service: Service, host: str, port: int, *, token: str | None, connections: int, head_seconds: float,
    idle_seconds: int, closing_seconds: int,
) -> None:  # fmt: skip
    """Serve until SIGTERM or SIGINT; raises an error if the first run cannot be loaded.

    connections: open at a time; head_seconds: for a request's first line and headers to arrive in; idle_seconds: that
    an unused connection is kept open; closing_seconds: for requests in progress when the service ends
    """
    torch.set_num_threads(1)  # one list is too little work for several threads; requests share the cores
    listener = _listen(host, port)
    if token is None and host not in LOOPBACK:
        typer.echo(
            f"concf: warning: listening at {host} without a token: whoever can connect may read anyone's "
            "lists and reload. Use --token-file, or a proxy that authenticates callers",
            err=True,
        )
    config = uvicorn.Config(
        create_app(service, token), http=limited(head_seconds, connections), ws="none",
        log_level="error", access_log=False, proxy_headers=False, server_header=False,
        timeout_keep_alive=idle_seconds, timeout_graceful_shutdown=closing_seconds,
    )  # fmt: skip
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    server = Server(config, service, lambda: typer.echo(f"concf: serving {service.folder} at {url}"))
    with _ignored_signals():
        server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more, which would end the process with an error."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket at the first address of the host."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen at {host}:{port} ({error.strerror}). Choose another --host, --port") from None
    listener.setblocking(False)
    return listener
