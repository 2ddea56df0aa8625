"""What normal clients of `concf serve` notice of attacks, and what attacks cost.

python benchmarks/attack_service.py [--users 2000] [--items 3000] [--run FOLDER]

On loopback and within bounds: six normal clients, each on a kept connection, ask for the list of a user, a small batch
and a history in turn, 30 times a second together; alone, then beside each attack. Then the processor time that two of
the requests of an attack take, all processes together; how long a request takes under `--seconds 1`; and the memory of
all processes after reloads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import psutil
import service_run
from measuring import write

CLIENTS, PAUSE = 6, 0.2
LONG = {"users": [1] * 250, "k": 200, "diversity": 1, "by": "bpr"}
ALLOWED = LONG | {"users": [1] * 35}  # about as much as one may ask for
REGEX = quote("desc ~ 'e(.{3}){40}q' or desc ~ 'a(.{4}){40}z'")
WILD = quote(" or ".join(f"desc like '%{'%'.join('aeiou'[:3])}%{n}'" for n in range(4)))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


NESTED = post("/explore", b'{"history":[' + b"[]," * 340_000 + b"[]]}")
FIELDS = post("/explore", json.dumps({"history": [1]} | {f"f{n}": 0 for n in range(95_000)}).encode())
QUERY = get("/explore/1?" + "&".join(f"f{n}=1" for n in range(7_000)))
ATTACKS: dict[str, list[bytes]] = {
    "regular expressions": [get(f"/explore/1?where={REGEX}")] * 2 + [get(f"/explore/1?where={WILD}")] * 2,
    "hostile bodies": [NESTED] * 6 + [FIELDS] * 3 + [QUERY] * 3,
    "slow bodies": [],
    "expensive batches": [post("/recommend", json.dumps(each).encode()) for each in (LONG, *[ALLOWED] * 15)],
}  # fmt: skip
SLOW = 512


async def answer(reader: asyncio.StreamReader) -> int:
    """The status of an answer, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(size)
    return int(head.split()[1])


async def normal(port: int, seconds: float) -> dict[str, Any]:
    """Status -> number of answers; milliseconds at the 50th and 99th percentile."""
    batch, history = b'{"users": [1, 2, 3, 4, 5], "k": 5}', b'{"history": [1, 2, 3], "k": 5}'
    statuses, taken, end = Counter[str](), list[float](), time.monotonic() + seconds

    async def client(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(first * PAUSE / CLIENTS)
        at = first
        while time.monotonic() < end:
            at += 1
            requests = (get(f"/recommend/{at % 900}"), post("/recommend", batch), post("/recommend", history))
            begin = time.perf_counter()
            writer.write(requests[at % 3])
            statuses[str(await answer(reader))] += 1
            taken.append(time.perf_counter() - begin)
            await asyncio.sleep(PAUSE)
        writer.close()

    await asyncio.gather(*(client(first) for first in range(CLIENTS)))
    taken.sort()
    at = {"p50_ms": 0.5, "p99_ms": 0.99}
    return {"statuses": dict(statuses)} | {name: 1000 * taken[int(share * len(taken))] for name, share in at.items()}


async def attack(port: int, name: str, seconds: float) -> dict[str, int]:
    """Send the requests of an attack again and again, each on a connection of its own; status -> number."""
    statuses, end = Counter[str](), time.monotonic() + seconds

    async def send(request: bytes) -> None:
        while time.monotonic() < end:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                statuses[str(await answer(reader))] += 1
                writer.close()

    async def trickle() -> None:
        while time.monotonic() < end:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post("/recommend", b" " * 60)[:-60])
                while time.monotonic() < end and not writer.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(1)

    slow = 0 if ATTACKS[name] else SLOW
    await asyncio.gather(*(send(each) for each in ATTACKS[name]), *(trickle() for _ in range(slow)))
    return dict(statuses)


class Served:
    """A service and its processes."""

    def __init__(self, folder: Path, *words: object) -> None:
        command = [sys.executable, "-m", "concf", "serve", folder, "--port", 0, "--drain", 0, *words]
        quiet = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, env=quiet)
        assert self.process.stdout is not None
        match = re.search(r":(\d+)$", self.process.stdout.readline())
        assert match, "it did not start"
        self.port = int(match[1])
        self.settle()

    def all(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children()]

    def processor_seconds(self) -> float:
        """Of all processes, those that have ended too."""
        ended = self.all()[0].cpu_times()
        return float(sum(sum(each.cpu_times()[:2]) for each in self.all()) + sum(ended[2:4]))

    def megabytes(self) -> float:
        """Memory that is not shared."""
        return float(sum(each.memory_full_info().uss for each in self.all()) / 1e6)

    def settle(self) -> None:
        """Wait until the spare has loaded and nothing is computed."""
        while True:
            before = self.processor_seconds()
            time.sleep(1.5)
            if len(self.all()) == 4 and self.processor_seconds() - before < 0.1:
                return

    def call(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--port", self.port, *words]
        return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)


@contextmanager
def serving(folder: Path, *words: object) -> Iterator[Served]:
    served = Served(folder, *words)
    try:
        yield served
    finally:
        served.process.terminate()
        assert served.process.wait(60) == 0


def said(process: subprocess.Popen[str]) -> Any:
    return json.loads(process.communicate()[0])


async def once(port: int, requests: list[bytes]) -> list[tuple[int, float]]:
    """Status and seconds of each, all at the same moment."""

    async def send(request: bytes) -> tuple[int, float]:
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        status = await answer(reader)
        writer.close()
        return status, time.perf_counter() - begin

    return list(await asyncio.gather(*map(send, requests)))


def measure(folder: Path, catalogue: Path, seconds: float, rounds: int, reloads: int) -> dict[str, Any]:
    line: dict[str, Any] = {"attacks": {}, "two_requests": {}}
    with serving(folder, "--catalogue", catalogue) as served:
        run: Callable[[], Any] = lambda: said(served.call("--normal", seconds))  # noqa: E731
        run()  # warms up
        for name in ATTACKS:
            found = []
            for _ in range(rounds):
                quiet = run()
                enemy = served.call("--attack", name, "--seconds", seconds + 2)
                time.sleep(1.0)
                beside = run()
                found.append((quiet["p99_ms"], beside["p99_ms"], beside["statuses"], said(enemy)))
                served.settle()
            ratios = [beside / quiet for quiet, beside, _, _ in found]
            line["attacks"][name] = {
                "quiet_p99_ms": median(each[0] for each in found), "p99_ms": median(each[1] for each in found),
                "p99_over_quiet": median(ratios), "ratios": ratios,
                "statuses": sum((Counter(each[2]) for each in found), Counter[str]()),
                "attacker": sum((Counter(each[3]) for each in found), Counter[str]()),
            }  # fmt: skip
        for name, requests in ATTACKS.items():
            for request in dict.fromkeys(requests):
                before = served.processor_seconds()
                answered = asyncio.run(once(served.port, [request] * 2))
                served.settle()
                spent = served.processor_seconds() - before
                line["two_requests"].setdefault(name, []).append(
                    {"statuses": [status for status, _ in answered], "processor_seconds": spent}
                )
    with serving(folder, "--seconds", 1) as served:
        line["deadline"] = asyncio.run(once(served.port, ATTACKS["expensive batches"][1:4]))
        served.settle()
        memory = []
        for _ in range(reloads):
            version = served.process.pid
            os.kill(version, signal.SIGHUP)
            time.sleep(2.0)
            served.settle()
            memory.append(served.megabytes())
        line["reloads_mb"] = memory
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--items", type=int, default=3_000)
    parser.add_argument("--run", type=Path, help="serve this one instead of making one")
    parser.add_argument("--seconds", type=float, default=10.0, help="of an attack")
    parser.add_argument("--rounds", type=int, default=3, help="of each attack, between quiet ones")
    parser.add_argument("--reloads", type=int, default=14)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--normal", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.normal is not None:
        print(json.dumps(asyncio.run(normal(chosen.port, chosen.normal))))
        return
    if chosen.attack is not None:
        print(json.dumps(asyncio.run(attack(chosen.port, chosen.attack, chosen.seconds))))
        return
    with tempfile.TemporaryDirectory() as room:
        folder = chosen.run or service_run.make(Path(room) / "run", chosen.users, chosen.items)
        catalogue = Path(room) / "items.csv"
        words = "the quick brown fox jumps over a lazy dog and eats every queer quince " * 8
        rows = [f"{item},Item {item},{words}{item}" for item in range(chosen.items)]
        catalogue.write_text("\n".join(["item,title,desc", *rows]), encoding="utf-8")
        write("attacks", measure(folder, catalogue, chosen.seconds, chosen.rounds, chosen.reloads))


if __name__ == "__main__":
    main()
