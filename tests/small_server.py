"""`concf serve` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SOON = 60.0  # on a loaded machine


class Process:
    """`concf serve`, once it has printed that it is ready."""

    def __init__(self, *words: object, **environment: str) -> None:
        self.stderr: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "concf", "serve", *map(str, words), "--port", "0"], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"concf: serving (.*) at (http://.*:(\d+))\n", line)
        assert match, self.stderr
        self.folder, self.url, self.port = match[1], match[2], int(match[3])

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.stderr.extend(iter(self.process.stderr.readline, ""))

    def until_printed(self, words: str) -> None:
        wait_until(lambda: any(words in line for line in self.stderr))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(SOON)


@contextmanager
def serving(*words: object, **environment: str) -> Iterator[Process]:
    process = Process(*words, **environment)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def received(connection: socket.socket) -> tuple[int, Any]:
    """(status, body) of all that comes until the server closes."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)
