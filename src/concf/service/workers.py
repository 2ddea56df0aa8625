"""Worker processes that share one socket: dead ones are replaced, and a reload reaches all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import typer

from concf.errors import ConcfError, ConfigError

LOOK, PAUSE = 0.2, 1.0  # seconds between two looks; before a worker that died early is replaced
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client sums up what processes count
Work = Callable[[socket.socket, Connection, Path | None], None]  # listener, link to the parent, folder if another


class Workers:
    """Starts processes and watches over them.

    A worker says ("ready", None), ("failed", why) or ("loaded", folder); it receives a folder to load, or None to end
    """

    def __init__(self, number: int, work: Work, listener: socket.socket) -> None:
        self.number, self.work, self.listener = number, work, listener
        self.links: dict[Connection, BaseProcess] = {}
        self.folder: Path | None = None  # that was loaded last, if another
        self.ready, self.closing, self.failure = 0, False, ""
        self._context = multiprocessing.get_context("spawn")

    def serve(self, when_ready: Callable[[], None]) -> None:
        """Serve until SIGTERM or SIGINT; raise an error if one of the first workers cannot load the run."""
        handlers = {sig: signal.signal(sig, self._pass_on) for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        with tempfile.TemporaryDirectory(prefix="concf-metrics-") as room:
            os.environ[METRICS] = room
            for _ in range(self.number):
                self._start()
            while self.links:
                for link in wait(list(self.links), LOOK):
                    self._hear(link, when_ready)  # type: ignore[arg-type]
        for sig, handler in handlers.items():
            signal.signal(sig, handler)
        if self.failure:
            raise ConfigError(self.failure)

    def _start(self) -> None:
        own, other = self._context.Pipe()
        process = self._context.Process(target=_run, args=(self.work, self.listener, other, self.folder))
        process.start()
        other.close()
        self.links[own] = process
        if self.closing:  # the signal came before this worker was among `links`
            self._pass_on(signal.SIGTERM)

    def _hear(self, link: Connection, when_ready: Callable[[], None]) -> None:
        try:
            what, value = link.recv()
        except (EOFError, OSError):
            self._replace(link)
            return
        if what == "ready":
            self.ready += 1
            if self.ready == self.number:
                when_ready()
        elif what == "failed" and self.ready < self.number:
            self.failure = self.failure or value
            self._pass_on(signal.SIGINT)
        elif what == "loaded":
            self.folder = value
            self._tell(value, but=link)

    def _replace(self, link: Connection) -> None:
        process = self.links.pop(link)
        process.join()
        if self.closing:
            return
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]
        typer.echo(f"concf: worker {process.pid} ended ({process.exitcode}); another takes its place", err=True)
        if self.ready < self.number:
            time.sleep(PAUSE)
        self._start()

    def _pass_on(self, sig: int, _frame: Any = None) -> None:
        if sig != signal.SIGHUP:
            self.closing = True
            self._tell(None)
        for process in self.links.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, sig)

    def _tell(self, folder: Path | None, but: Connection | None = None) -> None:
        for link in self.links:
            if link is not but:
                with suppress(OSError):
                    link.send(folder)


def _run(work: Work, listener: socket.socket, link: Connection, folder: Path | None) -> None:
    os.setpgrp()  # Ctrl-C in a terminal is for the parent, which passes it on
    try:
        work(listener, link, folder)
    except ConcfError as error:
        link.send(("failed", str(error)))
