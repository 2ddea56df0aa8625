"""A real server: its command line, signals and connections; under pressure, and with several workers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_run import CLI
from small_service import loaded, problem, run_folder

SOON = 60.0  # on a loaded machine
BATCH = {"users": list(range(30)) * 33, "k": 30, "by": "bpr", "viewed": True}
CONNECTIONS = 40


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

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)


@contextmanager
def serving(*words: object, **environment: str) -> Iterator[Process]:
    process = Process(*words, **environment)
    try:
        yield process
    finally:
        with suppress(OSError):
            for pid in workers(process):  # one that is stopped would keep the pipes open
                os.kill(pid, signal.SIGKILL)
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


def megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def request(path: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text


def get(server: Process, path: str, **options: Any) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", verify=False, timeout=SOON, **options)


def post(server: Process, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", verify=False, json=body, timeout=SOON, **options)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(run_folder(), tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Process]:
    limits = ("--idle-seconds", 2, "--max-connections", CONNECTIONS, "--seconds", 2, "--max-cost", 10**9)
    with serving(home, "--host", "0.0.0.0", "--drain", 1, *limits) as server:
        yield server


def test_it_says_where_it_listens_and_warns_of_no_token(server: Process, home: Path) -> None:
    assert server.folder == str(home)
    assert "0.0.0.0 without a token" in server.stderr[0]
    wanted = loaded(home).model.recommender.recommend(3, 4, frame="polars")
    assert [each["item"] for each in get(server, "/recommend/3?k=4").json()["items"]] == wanted["item_id"].to_list()


HEAD = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(("sent", "kind"), [
    (b"garbage\r\n\r\n", "protocol"),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", "protocol"),
    (b"GET /" + b"a" * (1 << 18), "too_large"),
    (b"GET / HTTP/1.1\r\n" + b"X-Head: er\r\n" * (1 << 14), "too_large"),
    (b"", "too_slow"),
    (b"", "busy"),
])  # fmt: skip
def test_a_connection_that_keeps_the_service_waiting_is_closed_and_counted(
    server: Process, sent: bytes, kind: str
) -> None:
    def refused() -> float:
        lines = get(server, "/metrics").text.partition(f'concf_refused_total{{kind="{kind}"}} ')[2].split()
        return float(lines[0]) if lines else 0.0

    before = refused()
    with ExitStack() as opened:
        connection = opened.enter_context(server.connect())
        for _ in range(CONNECTIONS if kind == "busy" else 0):  # the one that waits longest is closed
            opened.enter_context(server.connect())
        with suppress(BrokenPipeError, ConnectionResetError):  # it was closed while more came
            connection.sendall(sent)
            answer = connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 400") if kind == "protocol" else not answer
    assert refused() > before


def workers(server: Process) -> list[int]:
    """Process ids, in the order of their start."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in children}
    return sorted(int(each) for each, line in lines.items() if b"concf.service.worker" in line)


def wait_until_loaded(server: Process, count: int) -> None:
    """Wait for so many workers that need no processor time for a second: the spare is the last to load the run."""

    def used() -> list[list[str]]:
        return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in workers(server)]

    def loaded() -> bool:
        before = used()
        time.sleep(1)
        return len(before) == count and used() == before

    wait_until(loaded)


def test_who_does_not_read_holds_little_and_not_for_long(server: Process) -> None:
    before, connections = megabytes(server.process.pid), []
    for _ in range(20):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request("/recommend", BATCH))
        connections.append(connection)
    time.sleep(1.0)
    assert get(server, "/recommend/1").status_code == 200
    assert post(server, "/recommend", {"history": [1]}).status_code == 200  # short ones do not wait for long ones
    wait_until(lambda: "concf_connections 1.0" in get(server, "/metrics").text)  # they were closed
    assert megabytes(server.process.pid) - before < 60  # an answer has about 2 MB
    for connection in connections:
        connection.close()


def test_a_deadline_holds_and_a_process_that_does_not_end_is_replaced(server: Process) -> None:
    for status in (503, None):  # who waits, and who leaves
        wait_until_loaded(server, 3)
        before = workers(server)
        for pid in before[:2]:  # not the spare
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        if status is None:
            with server.connect() as connection:
                connection.sendall(request("/recommend", {"history": [1]}))
                time.sleep(0.2)
        else:
            assert problem(post(server, "/recommend", {"history": [1]})) == (503, "deadline")
            assert 2 <= time.monotonic() - begin < 3.5
        assert get(server, "/recommend/1").status_code == get(server, "/health").status_code == 200  # meanwhile
        wait_until(lambda: len(set(before) - set(workers(server))) == 1)  # noqa: B023
        for pid in set(before) & set(workers(server)):
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: post(server, "/recommend", {"history": [1]}).status_code == 200)


def test_slow_bodies_keep_nobody_waiting(server: Process) -> None:
    with ExitStack() as opened:
        for _ in range(CONNECTIONS - 8):
            opened.enter_context(server.connect()).sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
        for path in ("/health", "/ready", "/metrics", "/recommend/3"):
            assert get(server, path).status_code == 200
        assert post(server, "/recommend", {"users": [1]}).status_code == 200


def test_pipelined_requests_are_all_answered(server: Process) -> None:
    with server.connect() as connection:
        one = b"GET /recommend/3 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        threading.Thread(target=connection.sendall, args=(one * 4999 + one.replace(b"lost", b"lost:1").replace(
            b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),)).start()  # fmt: skip
        data = b""
        while part := connection.recv(1 << 20):
            data += part
    assert data.count(b"HTTP/1.1 200 OK") == 5000


def test_sighup_reads_the_folder_again_or_refuses(server: Process, home: Path) -> None:
    before, described = get(server, "/recommend/3").json(), (home / "run.json").read_text()
    for text, said in (("{", "reload refused, still serving"), (described, f"serving {home}, version")):
        (home / "run.json").write_text(text)
        printed = len(server.stderr)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(said in line for line in server.stderr[printed:]))  # noqa: B023
        assert get(server, "/recommend/3").json() == before
    assert all(json.loads(line)["level"] for line in server.stderr)  # all logs are lines of JSON


def shut_down(server: Process, token: dict[str, str]) -> None:
    """SIGTERM answers what is under way and resets no busy connection."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in token.items()).encode()
    answered, ends = [0] * 8, list[str]()

    def ask(caller: int) -> None:
        connection, accepted = server.connect(), True
        try:
            while True:
                connection.sendall(b"GET /recommend/3 HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
                reply = b""
                while not reply.endswith(b"}]}"):
                    part = connection.recv(1 << 16)
                    assert part, "closed before the answer"
                    reply += part
                answered[caller], accepted = answered[caller] + 1, True
                if b"connection: close" in reply.lower():
                    connection.close()
                    connection, accepted = server.connect(), False
        except ConnectionRefusedError:
            ends.append("refused")
        except ConnectionResetError:  # if it had not been accepted yet: the kernel took it, the server not any more
            ends.append("reset" if accepted else "refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(answered) > 0)
    with server.connect() as under_way:
        body = b'{"users": [3]}'
        under_way.sendall(HEAD + lines + b"Content-Type: application/json\r\nContent-Length: 14\r\n\r\n" + body[:8])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with suppress(httpx.TransportError):
            assert get(server, "/ready").status_code == 503
        under_way.sendall(body[8:])
        status, answer = received(under_way)
    assert (status, answer["lists"][0]["user"]) == (200, 3)
    for thread in threads:
        thread.join(SOON)
    assert ends == ["refused"] * 8  # each went on until nothing listened
    assert server.process.wait(SOON) == 0
    assert not [line for line in server.stderr if "Traceback" in line]


def test_sigterm_answers_what_is_under_way_and_resets_no_busy_connection(server: Process) -> None:
    """The last test of this server."""
    shut_down(server, {})


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost() -> None:
    token, single = {"authorization": "Bearer s3cret"}, {"history": [1, 2], "k": 3}
    with serving(run_folder(), "--workers", 2, "--drain", 0.5, "--access-log", CONCF_TOKEN="s3cret\n") as server:
        assert not [line for line in server.stderr if "warning" in line]
        assert get(server, "/recommend/3").status_code == 401
        wait_until(lambda: any("/recommend/3" in json.loads(line)["message"] for line in server.stderr))
        wait_until_loaded(server, 4)
        first = post(server, "/recommend", single, headers=token).json()
        for pid in workers(server)[:3]:  # not the spare
            os.kill(pid, signal.SIGKILL)
        assert post(server, "/recommend", single, headers=token).json() == first, server.stderr[-3:]
        wait_until(lambda: "concf_workers_replaced_total 2.0" in get(server, "/metrics", headers=token).text)
        shut_down(server, token)


@pytest.mark.parametrize(("line", "message"), [
    ("{tmp}/nothing --port 0", "not a run"), ("{run} --port {taken}", "cannot listen"),
    ("{run} --port 0 --token-file {tmp}/odd", "expected a token"),
    ("{run} --port 0 --new-items", "Set --catalogue too"),
])  # fmt: skip
def test_a_command_line_mistake_ends_in_words(concf: CLI, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "odd").write_text("ü")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"run": run_folder(), "tmp": tmp_path, "taken": taken.getsockname()[1]}
        code, _, err = concf("serve", *line.format(**words).split())
    assert (code, message in err, "Traceback" in err) == (2, True, False)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
