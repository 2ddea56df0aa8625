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
from small_service import ADMIN, Client, loaded, problem, run_folder

from concf.service.limits import Limits

SOON = 60.0  # on a loaded machine
BATCH = {"users": list(range(30)) * 700, "k": 12, "by": "bpr", "viewed": True}
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


def request(path: str, body: Any, *headers: str) -> bytes:
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(text)}", "", ""]).encode() + text


def get(server: Process, path: str, **options: Any) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.port}{path}", verify=False, timeout=SOON, **options)


def post(server: Process, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{server.port}{path}", verify=False, json=body, timeout=SOON, **options)


def reload(server: Process, run: object = None) -> httpx.Response:
    return post(server, "/reload", {"run": run and str(run)}, headers={"authorization": f"Bearer {ADMIN}"})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(run_folder(), tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture(scope="module")
def admin(home: Path) -> tuple[object, ...]:
    (home.parent / "admin-token").write_text(ADMIN)
    return ("--admin-token-file", home.parent / "admin-token", "--run-root", "/")


@pytest.fixture(scope="module")
def server(home: Path, admin: tuple[object, ...]) -> Iterator[Process]:
    times = ("--head-seconds", 0.3, "--body-seconds", 2, "--send-seconds", 2, "--drain", 1)
    sizes = ("--max-listed", 10**6, "--max-users", 10**5, "--max-batches", 4, "--max-connections", CONNECTIONS)
    with serving(home, "--host", "0.0.0.0", *times, *sizes, *admin) as server:
        yield server


def test_it_says_where_it_listens_and_warns_of_no_token(server: Process, home: Path) -> None:
    assert server.folder == str(home)
    assert "0.0.0.0 without a token" in server.stderr[0]
    wanted = loaded(home).model.recommender.recommend(3, 4, frame="polars")
    assert [each["item"] for each in get(server, "/recommend/3?k=4").json()["items"]] == wanted["item_id"].to_list()


HEAD = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\n"
CHUNK = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        (b"garbage\r\n\r\n", 400, "bad_request"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * (1 << 20), 431, "too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X-Head: er\r\n" * (1 << 16), 431, "too_large"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", 408, "too_slow"),
        (HEAD + b"Content-Length: 9\r\n\r\n{", 408, "too_slow"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 20, 413, "too_large"),
        (b"", 503, "busy"),
    ],
    ids=["garbage", "length", "path", "headers", "head", "body", "chunks", "connections"],
)
def test_what_cannot_be_answered_is_told_so_and_the_connection_closed(
    server: Process, sent: bytes, status: int, kind: str
) -> None:
    with ExitStack() as opened:
        if kind == "busy":  # as many requests are in progress
            for _ in range(CONNECTIONS):
                opened.enter_context(server.connect()).sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
            time.sleep(0.3)
        connection = opened.enter_context(server.connect())
        try:
            connection.sendall(sent)
            code, body = received(connection)
        except (BrokenPipeError, ConnectionResetError):
            assert status == 431  # it was closed while more came
            return
    assert (code, body["kind"]) == (status, kind)


def test_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(loaded(run_folder(), Limits(seconds=1.0, batches=1))) as client:
        model = client.service.model.recommender
        usual, asked = model.ranker.short, []

        def slowly(users: Any, *words: Any, **options: Any) -> Any:
            asked.append(len(users))
            time.sleep(0.6)
            return usual(users, *words, **options)

        monkeypatch.setattr(model.ranker, "short", slowly)
        assert problem(client.post("/recommend", {"users": [1] * 900})) == (503, "deadline")
        assert len(asked) == 2  # of 29 blocks


def test_who_does_not_read_holds_little_and_not_for_long(server: Process) -> None:
    before, connections = megabytes(server.process.pid), []
    for _ in range(12):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request("/recommend", BATCH))
        connections.append(connection)
    time.sleep(1.0)
    assert get(server, "/recommend/1").status_code == 200
    assert post(server, "/recommend", {"users": [1]}).status_code == 503  # four are being answered
    assert megabytes(server.process.pid) - before < 30  # an answer has about 15 MB
    wait_until(lambda: post(server, "/recommend", {"users": [1]}).status_code == 200)
    for connection in connections:
        connection.close()


def test_sighup_reads_the_folder_again_or_refuses(server: Process, home: Path) -> None:
    reload(server, home)
    before, described = get(server, "/recommend/3").json(), (home / "run.json").read_text()
    for text, said in (("{", "reload refused, still serving"), (described, f"concf: serving {home}, version")):
        (home / "run.json").write_text(text)
        printed = len(server.stderr)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(said in line for line in server.stderr[printed:]))  # noqa: B023
        assert get(server, "/recommend/3").json() == before


def test_sigterm_answers_what_is_under_way_and_resets_no_busy_connection(server: Process) -> None:
    """The last test of this server."""
    for _ in range(50):  # callers who leave while they wait for a reload
        with server.connect() as connection:
            connection.sendall(request("/reload", {}, f"Authorization: Bearer {ADMIN}"))
    answered, ends = [0] * 8, list[str]()

    def ask(caller: int) -> None:
        connection, accepted = server.connect(), True
        try:
            while True:
                connection.sendall(b"GET /recommend/3 HTTP/1.1\r\nHost: localhost\r\n\r\n")
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
        under_way.sendall(HEAD + b"Content-Type: application/json\r\nContent-Length: 14\r\n\r\n" + body[:8])
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


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(admin: tuple[object, ...]) -> None:
    wrong, lost, served, done = list[str](), list[str](), [0] * 4, threading.Event()
    token = {"authorization": "Bearer s3cret"}
    with serving(run_folder(), "--workers", 2, "--drain", 0.5, *admin, CONCF_TOKEN="s3cret\n") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert not [line for line in server.stderr if "warning" in line]
        assert get(server, "/recommend/3").status_code == 401
        expected = get(server, "/recommend/3", headers=token).json()

        def ask(caller: int) -> None:
            transport = httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
            with httpx.Client(base_url=server.url, timeout=SOON, transport=transport, headers=token) as client:
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
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        workers = [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(workers) == 2
        os.kill(int(workers[0]), signal.SIGKILL)
        wait_until(lambda: any("takes its place" in line for line in server.stderr))
        before = list(served)
        wait_until(lambda: all(now > then + 5 for now, then in zip(served, before, strict=True)))
        done.set()
        for thread in threads:
            thread.join()
        assert (wrong, len(lost) <= 4) == ([], True)  # one for each connection, at most
        assert reload(server, run_folder(seed=1)).status_code == 200
        with httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0)) as anew:  # any worker
            wait_until(lambda: {anew.get(f"{server.url}/ready").json()["run"] for _ in range(20)} == {"integers-1"})
        metrics = get(server, "/metrics", headers=token).text
        counted = metrics.partition('concf_requests_total{method="GET",route="/recommend/{user}",status="200"} ')[2]
        assert float(counted.split()[0]) > 0.9 * sum(served)  # of all workers, the dead ones too
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(SOON) == 0


@pytest.mark.parametrize(("line", "message"), [
    ("{tmp}/nothing --port 0", "not a run"), ("{run} --port {taken}", "cannot listen"),
    ("{run} --port 0 --admin-token-file {tmp}/odd", "expected a token"),
    ("{run} --port 0 --run-root {tmp}", "give --admin-token-file too"),
])  # fmt: skip
def test_a_command_line_mistake_ends_in_words(concf: CLI, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "odd").write_text("ü")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"run": run_folder(), "tmp": tmp_path, "taken": taken.getsockname()[1]}
        code, _, err = concf("serve", *line.format(**words).split())
    assert (code, message in err, "Traceback" in err) == (2, True, False)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
