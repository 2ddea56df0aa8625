"""A small Ray as concf starts it, which other processes can join, and more machines for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from concf.runtime.executors import STARTED, ray_cluster

LIMIT = 60.0
CORES = 2
CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # else no second node may join a Ray on loopback ...
# ... and `ray start` would have it join at the machine's outer address.
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


@contextmanager
def local_ray() -> Iterator[Any]:
    """Ray, started and connected; its workers can import the modules beside this one."""
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder,  # short: sockets
        pytest.MonkeyPatch.context() as patch,
    ):
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # older versions of Ray warn of what will change
        patch.setenv("RAY_AUTH_TOKEN", uuid4().hex * 2)
        patch.setenv("RAY_health_check_period_ms", "1000")  # a lost machine is noticed in seconds
        patch.delenv("RAY_ADDRESS", raising=False)
        for name in STARTED:
            patch.delenv(name, raising=False)
        with ray_cluster(CORES) as ray:
            yield ray


@contextmanager
def one_more_machine(address: str, name: str) -> Iterator[Callable[[], None]]:
    """With a core, as it were, whose workers know the name of their `MACHINE`; yields what kills it."""
    words = ["start", "--address", address, "--num-cpus=1", "--object-store-memory=80000000"]
    with tempfile.TemporaryFile() as log:
        node = subprocess.Popen(
            [sys.executable, "-c", NODE, *words, "--include-log-monitor=false", "--disable-usage-stats"],
            start_new_session=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env=os.environ | CLUSTER | {"MACHINE": name},
        )  # fmt: skip

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait(LIMIT)

        try:
            yield kill
        finally:
            kill()
