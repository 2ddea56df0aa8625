"""A small Ray cluster on loopback, in processes of its own, as someone else would have started it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

LIMIT = 60.0
LIGHT = ("--object-store-memory=80000000", "--include-log-monitor=false", "--disable-usage-stats")
# `ray start` has a second node join only at the machine's outer address; here all stay on loopback.
NODE = """
from ray._private import services
services.get_node_ip_address = lambda *_: "127.0.0.1"
from ray.scripts.scripts import main
main()
"""


def wait_for(true: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.05)


@dataclass
class Cluster:
    """A head with two cores; its folder is short, for the sake of sockets."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ray", dir="/tmp")))
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    token: str = field(default_factory=lambda: uuid4().hex * 2)

    @property
    def address(self) -> str:
        return (self.folder / "ray" / "ray_current_cluster").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """What a program must be told to join."""
        return {"RAY_TMPDIR": str(self.folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def start(self, *words: str, **more: str) -> subprocess.Popen[bytes]:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), quiet.get("PYTHONPATH")]))
        log = (self.folder / f"log{len(self.started)}").open("wb")
        self.started.append(subprocess.Popen(
            [sys.executable, "-c", NODE, "start", *words, *LIGHT], start_new_session=True, stdout=log, stderr=log,
            env=quiet | self.environment | {"PYTHONPATH": paths} | more, stdin=subprocess.DEVNULL,
        ))  # fmt: skip
        log.close()
        return self.started[-1]

    def start_head(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:  # its default may be another cluster's
            client = free.getsockname()[1]
        ports = ("--port=0", f"--ray-client-server-port={client}", "--include-dashboard=false")
        head = self.start("--head", "--num-cpus=2", *ports)
        assert head.wait(LIMIT) == 0, (self.folder / "log0").read_text()

    def start_node(self) -> subprocess.Popen[bytes]:
        """One more machine, as it were, with a core, whose workers know that they are `DOOMED`; without waiting."""
        return self.start("--address", self.address, "--num-cpus=1", DOOMED="1")

    def kill(self, started: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(LIMIT)

    def left(self) -> list[str]:
        """The processes that are still there."""
        found = subprocess.run(["ps", "-A", "-o", "sid=,stat=,args="], capture_output=True, text=True, check=True)
        ours = {str(each.pid) for each in self.started}
        rows = [line.split(maxsplit=2) for line in found.stdout.splitlines()]
        return [row[-1] for row in rows if row[0] in ours and not row[1].startswith("Z")]


@contextmanager
def cluster() -> Iterator[Cluster]:
    """It is gone afterwards in any case."""
    new = Cluster()
    try:
        new.start_head()
        yield new
    finally:
        for started in reversed(new.started):
            new.kill(started)
        wait_for(lambda: not new.left(), "the end of Ray's workers")
        shutil.rmtree(new.folder)
