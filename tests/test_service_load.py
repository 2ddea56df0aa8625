"""A server under pressure: bounded work, callers who leave or do not read, an end that resets nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_server import SOON, Process, serving, wait_until
from small_service import ADMIN, Client, loaded, problem, run_folder

from concf.service.limits import Limits

BATCH = {"users": list(range(30)) * 30, "k": 12, "by": "bpr", "viewed": True}


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def post(body: Any) -> bytes:
    text = json.dumps(body).encode()
    lines = ["POST /recommend HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text


@pytest.mark.usefixtures("on_one_thread")
def test_users_times_k_and_the_items_of_all_histories_are_bounded() -> None:
    with Client(loaded(run_folder(), Limits(listed=100, histories=20))) as client:
        assert client.post("/recommend", {"users": [1] * 10, "k": 10}).status_code == 200
        answer = client.post("/recommend", {"users": [1] * 10, "k": 11})
        assert problem(answer) == (413, "too_large")
        assert answer.json()["detail"] == "users x k: 110, but this service allows at most 100"
        assert problem(client.post("/recommend", {"histories": {"a": [], "b": []}, "k": 51})) == (413, "too_large")
        assert client.post("/recommend", {"histories": {"a": [1] * 10, "b": [2] * 10}}).status_code == 200
        assert problem(client.post("/recommend", {"histories": {"a": [1] * 10, "b": [2] * 11}})) == (413, "too_large")


@pytest.mark.usefixtures("on_one_thread")
def test_a_long_answer_in_parts_is_the_answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(loaded(run_folder())) as client:
        answers = []
        for size in (1, 7, 32, 900):
            monkeypatch.setattr("concf.service.answers.USERS", size)
            monkeypatch.setattr("concf.service.answers.ITEMS", 10**6)
            for body in (BATCH, {"histories": {str(name): [name % 9] for name in range(40)}, "k": 3}, {"users": []}):
                answer = client.post("/recommend", body)
                assert ("content-length" in answer.headers) == (len(answer.json()["lists"]) <= size)
                answers.append(answer.json())
        for place in range(3):
            for other in answers[place::3]:
                assert [each["user"] for each in other["lists"]] == [each["user"] for each in answers[place]["lists"]]
                assert other["note"] == answers[place]["note"]


@pytest.mark.usefixtures("on_one_thread")
def test_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(loaded(run_folder(), Limits(seconds=1.0, batches=1))) as client:
        model = client.service.model.recommender
        usual, asked = model.ranker.short, []

        def slowly(users: Any, *words: Any, **options: Any) -> Any:
            asked.append(len(users))
            time.sleep(0.6)
            return usual(users, *words, **options)

        monkeypatch.setattr(model.ranker, "short", slowly)
        answer = client.post("/recommend", {"users": [1] * 900})
        assert problem(answer) == (503, "deadline")
        assert answer.headers["retry-after"] == "1"
        assert len(asked) == 2  # of 29 blocks


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    admin = tmp_path_factory.mktemp("admin") / "token"
    admin.write_text(ADMIN)
    words = ("--drain", 1, "--send-seconds", 2, "--max-batches", 4, "--admin-token-file", admin)
    with serving(run_folder(), "--max-listed", 10**6, "--max-users", 10**5, *words) as server:
        yield server


def test_for_callers_who_have_left_no_more_is_computed(server: Process) -> None:
    large = post(BATCH | {"users": list(range(30)) * 700})
    with server.connect() as connection:  # how long one takes
        before, begin = processor_seconds(server.process.pid), time.monotonic()
        connection.sendall(large)
        while not connection.recv(1 << 20).endswith(b"0\r\n\r\n"):
            pass
        whole, seconds = processor_seconds(server.process.pid) - before, time.monotonic() - begin
    assert whole > 0.3, "too small to tell"
    before = processor_seconds(server.process.pid)
    for _ in range(4):
        with server.connect() as connection:
            connection.sendall(large)
            connection.recv(1)
    time.sleep(min(2.0, seconds))
    assert processor_seconds(server.process.pid) - before < 2 * whole  # of four
    assert httpx.post(f"{server.url}/recommend", verify=False, json={"users": [1]}).status_code == 200


def test_who_does_not_read_holds_little_and_not_for_long(server: Process) -> None:
    large = post(BATCH | {"users": list(range(30)) * 700})
    before, connections = megabytes(server.process.pid), []
    for _ in range(12):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(large)
        connections.append(connection)
    time.sleep(1.0)
    assert httpx.get(f"{server.url}/recommend/1", verify=False).status_code == 200
    assert (
        httpx.post(f"{server.url}/recommend", verify=False, json={"users": [1]}).status_code == 503
    )  # four are being answered
    assert megabytes(server.process.pid) - before < 30  # an answer has about 15 MB
    wait_until(lambda: httpx.post(f"{server.url}/recommend", verify=False, json={"users": [1]}).status_code == 200)
    for connection in connections:
        connection.close()


def test_reloads_of_callers_who_left_end_and_sigterm_resets_no_busy_connection(server: Process) -> None:
    """The last test of this server."""
    reload = (
        post({}).replace(b"recommend", b"reload").replace(b"\r\n", f"\r\nAuthorization: Bearer {ADMIN}\r\n".encode(), 1)
    )
    for _ in range(100):
        with server.connect() as connection:
            connection.sendall(reload)
    broken: list[BaseException] = []
    answered, ready, refused = [0] * 16, set[int](), [0] * 16

    def ask(caller: int) -> None:
        connection, accepted = server.connect(), True
        while True:
            try:
                connection.sendall(b"GET /recommend/3 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                reply = b""
                while not reply.endswith(b"}]}"):
                    part = connection.recv(1 << 16)
                    if not part:
                        raise ConnectionError("closed before the answer")
                    reply += part
            except OSError as error:
                connection.close()
                if accepted or not isinstance(error, ConnectionResetError):
                    broken.append(error)
                else:  # the kernel had taken it, the server not yet, when that stopped listening
                    refused[caller] += 1
                return
            answered[caller], accepted = answered[caller] + 1, True
            if b"connection: close" in reply.lower():
                connection.close()
                try:
                    connection, accepted = server.connect(), False
                except ConnectionRefusedError:
                    refused[caller] += 1
                    return

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(16)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + SOON
    while not min(answered) and time.monotonic() < end:
        time.sleep(0.05)
    before = min(answered)
    server.process.send_signal(signal.SIGTERM)
    with suppress(httpx.ConnectError, httpx.ReadError):
        while True:
            ready.add(httpx.get(f"{server.url}/ready", verify=False, timeout=SOON).status_code)
            time.sleep(0.05)
    for thread in threads:
        thread.join(SOON)
    assert broken == []
    assert refused == [1] * 16  # each went on until nothing listened
    assert before > 0
    assert ready == {503}
    assert server.process.wait(SOON) == 0
    loads = [line for line in server.stderr if "concf: serving" in line]
    assert 1 <= len(loads) < 30
    assert not [line for line in server.stderr if "Traceback" in line]


def kill_one(server: Process, by: signal.Signals, served: list[int]) -> None:
    """Kill a worker, and wait until another has taken its place and every caller was answered some more."""
    printed, pid = len(server.stderr), server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
    assert len(workers) == 2
    os.kill(int(workers[0]), by)
    wait_until(lambda: any("takes its place" in line for line in server.stderr[printed:]))
    before = list(served)
    wait_until(lambda: all(now > then + 5 for now, then in zip(served, before, strict=True)))


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    admin, wrong, lost, served, done = tmp_path / "token", list[str](), list[str](), [0] * 4, threading.Event()
    admin.write_text(ADMIN)
    words = ("--workers", 2, "--drain", 0.5, "--admin-token-file", admin, "--run-root", "/")
    with serving(run_folder(), *words) as server:
        expected = httpx.get(f"{server.url}/recommend/3", verify=False).json()

        def ask(caller: int) -> None:
            transport = httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
            with httpx.Client(base_url=server.url, timeout=SOON, transport=transport) as client:
                while not done.wait(0.05):
                    try:
                        answer = client.get("/recommend/3")
                    except httpx.TransportError:  # what a dead worker was answering is asked for again
                        lost.append("once")
                        answer = client.get("/recommend/3")
                    if answer.status_code != 200 or answer.json() != expected:
                        wrong.append(answer.text)
                    served[caller] += 1

        threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(4)]
        for thread in threads:
            thread.start()
        kill_one(server, signal.SIGKILL, served)
        assert len(lost) <= 4  # one for each connection, at most
        lost.clear()
        kill_one(server, signal.SIGTERM, served)
        done.set()
        for thread in threads:
            thread.join()
        assert (wrong, lost) == ([], [])  # a worker that ends by SIGTERM loses nothing at all
        assert all(served)
        headers = {"authorization": f"Bearer {ADMIN}"}
        reply = httpx.post(
            f"{server.url}/reload", verify=False, json={"run": str(run_folder(seed=1))}, headers=headers, timeout=SOON
        )
        assert reply.status_code == 200
        with httpx.Client(
            verify=False, limits=httpx.Limits(max_keepalive_connections=0)
        ) as anew:  # any worker may answer
            wait_until(lambda: {anew.get(f"{server.url}/ready").json()["run"] for _ in range(20)} == {"integers-1"})
        metrics = httpx.get(f"{server.url}/metrics", verify=False).text
        counted = metrics.partition('concf_requests_total{method="GET",route="/recommend/{user}",status="200"} ')[2]
        assert float(counted.split()[0]) > 0.9 * sum(served)  # of all workers, the dead ones too
        assert server.end() == 0
