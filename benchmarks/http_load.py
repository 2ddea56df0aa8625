"""Callers of a service, each in a process of its own: right ones that time every answer, and hostile ones.

python benchmarks/http_load.py PORT '{"paths": [...], "requests": 1000}'      prints one JSON object
python benchmarks/http_load.py PORT '{"hostile_seconds": 10}'
python benchmarks/http_load.py PORT '{"batch_seconds": 10, "batch": {"users": [1, 2]}}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

CONNECTIONS = 16
PATIENCE = 1.5  # seconds that a hostile caller waits for an answer
ENEMIES = 12  # that attack at a time
BATCH_CALLERS = 4
HALF_OPEN = 20  # connections that each of them keeps


class Caller(asyncio.Protocol):
    """Asks one question after the other on a kept connection."""

    def __init__(self, paths: list[str], requests: int, taken: dict[str, Any], first: int) -> None:
        self.questions = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths]
        self.left, self.taken, self.place, self.received = requests, taken, first, b""
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.begin = time.perf_counter()
        self.transport.write(self.questions[self.place % len(self.questions)])

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, gap, body = self.received.partition(b"\r\n\r\n")
        if not gap or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        self.taken["seconds"].append(time.perf_counter() - self.begin)
        place, self.received = self.place % len(self.questions), b""
        if not head.startswith(b"HTTP/1.1 200"):
            self.taken["failed"] += 1
        elif "expected" in self.taken and items(body) != self.taken["expected"][place]:
            self.taken["wrong"] += 1
        self.place += 1
        self.left -= 1
        if self.left:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self.taken["failed"] += self.left
        self.end.set_result(None)


def items(body: bytes) -> list[Any]:
    return [each["item"] for each in json.loads(body)["items"]]


async def ask(port: int, paths: list[str], requests: int, expected: list[Any] | None = None) -> dict[str, Any]:
    """Requests a second, milliseconds at the 50th and 99th percentile, and how many failed or were wrong."""
    taken: dict[str, Any] = {"seconds": [], "failed": 0, "wrong": 0}
    if expected is not None:
        taken["expected"] = expected
    loop, begin = asyncio.get_running_loop(), time.perf_counter()
    callers = [Caller(paths, requests // CONNECTIONS, taken, 7919 * place) for place in range(CONNECTIONS)]
    waiting = iter(callers)
    for _ in callers:
        await loop.create_connection(lambda: next(waiting), "127.0.0.1", port)
    await asyncio.gather(*(caller.end for caller in callers))
    passed, seconds = time.perf_counter() - begin, sorted(taken["seconds"])
    return {
        "requests": len(seconds), "per_second": len(seconds) / passed, "failed": taken["failed"],
        "wrong": taken["wrong"], "p50_ms": 1000 * seconds[len(seconds) // 2],
        "p99_ms": 1000 * seconds[int(0.99 * len(seconds))],
    }  # fmt: skip


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /recommend HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def get(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"


def attacks(chance: random.Random) -> dict[str, bytes]:
    """Name -> what is sent, some of it new every time."""
    deep = b"[" * 20_000
    return {
        "garbage": chance.randbytes(500),
        "not HTTP": b"\x16\x03\x01" + chance.randbytes(60),
        "huge body": post(b" " * (4 << 20)),
        "huge pieces": b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + (b"40000\r\n" + b"x" * (1 << 18) + b"\r\n") * 12,
        "a length that lies": b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
        "two lengths": post(b"{}", b"Content-Length: 7"),
        "bad JSON": post(b'{"users": [1,'),
        "deep JSON": post(b'{"users": ' + deep),
        "no Unicode": post(b'{"users": ["\xff\xfe"]}'),
        "half a character": post(b'{"users": ["\\ud800"], "popular": true}'),
        "wrong kinds": post(b'{"users": [null, true, {}, [], 1e999, NaN]}'),
        "a number without end": post(b'{"users": [' + b"9" * 5000 + b"]}"),
        "many users": post(b'{"users": [' + b"1," * 5000 + b"1]}"),
        "unicode id": get(b"/recommend/%F0%9F%8E%BB%E5%90%8D%00%FF"),
        "long path": get(b"/recommend/" + b"a" * 60_000),
        "longer path": get(b"/" + b"a" * 300_000),
        "slashes": get(b"/recommend/../../../etc/passwd"),
        "k without end": get(b"/recommend/1?k=" + b"9" * 2000),
        "bad query": get(b"/recommend/1?k=%ZZ&by=%FF&viewed=perhaps&&&=&k=1&k=2"),
        "many headers": b"GET /health HTTP/1.1\r\n" + b"X-Header: value\r\n" * 20_000 + b"\r\n",
        "another method": b"BREW /recommend/1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "reload": b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 22\r\n\r\n{"run": "/etc/passwd"}',
    }


def hostile(port: int, seconds: float) -> dict[str, Any]:
    """Attack for a while from several threads: what was answered, by status, and how many were left half open."""
    answered, half_open = Counter[str](), 0
    with ThreadPoolExecutor(ENEMIES) as pool:
        raids = [pool.submit(raid, port, time.monotonic() + seconds, seed) for seed in range(ENEMIES)]
        for each in raids:
            answered += each.result()[0]
            half_open += each.result()[1]
    return {"answered": dict(answered), "half_open": half_open}


def batches(port: int, seconds: float, batch: dict[str, Any]) -> dict[str, int]:
    """Status -> how many of the batches that a few callers send one after the other."""
    sent, end = post(json.dumps(batch).encode(), b"Connection: close"), time.monotonic() + seconds

    def ask() -> Counter[str]:
        statuses = Counter[str]()
        while time.monotonic() < end:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(sent)
                status = connection.recv(100).split()[1].decode()
                while connection.recv(1 << 20):
                    pass
            statuses[status] += 1
        return statuses

    with ThreadPoolExecutor(BATCH_CALLERS) as pool:
        asked = [pool.submit(ask) for _ in range(BATCH_CALLERS)]
        return dict(sum((each.result() for each in asked), Counter[str]()))


def raid(port: int, end: float, seed: int) -> tuple[Counter[str], int]:
    """One attack after the other, and connections that are begun and left."""
    chance, answered, kept, left = random.Random(seed), Counter[str](), [], 0
    while time.monotonic() < end:
        for sent in attacks(chance).values():
            answered[attack(port, sent)] += 1
        for part in (b"", b"GET /recommend/1 HT", b"POST /recommend HTTP/1.1\r\nContent-Length: 50\r\n\r\n{"):
            with suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
                kept[-1].sendall(part)
                left += 1
        while len(kept) > HALF_OPEN:
            kept.pop(0).close()
    return answered, left


def attack(port: int, sent: bytes) -> str:
    """The status of the answer; `closed` or, for the rest of a request, `waiting` if there was none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            with suppress(ConnectionError):  # closed while we were sending; there may be an answer all the same
                connection.sendall(sent)
            reply = connection.recv(100)
    except TimeoutError:
        return "waiting"
    except OSError:
        return "closed"
    return reply.split()[1].decode() if reply.startswith(b"HTTP/1.1 ") else "closed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("wanted", help="a JSON object as above; -: it is read from standard input")
    chosen = parser.parse_args()
    port, wanted = chosen.port, json.loads(sys.stdin.read() if chosen.wanted == "-" else chosen.wanted)
    if "hostile_seconds" in wanted:
        print(json.dumps(hostile(port, wanted["hostile_seconds"])))
        return
    if "batch_seconds" in wanted:
        print(json.dumps(batches(port, wanted["batch_seconds"], wanted["batch"])))
        return
    import uvloop

    print(json.dumps(uvloop.run(ask(port, **wanted))))


if __name__ == "__main__":
    main()
