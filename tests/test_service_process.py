"""A real server process: its output, signals, connections and command line."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_server import SOON, Process, received, serving, wait_until
from small_service import ADMIN, loaded, run_folder

from concf.service.workers import METRICS, Workers

CLI = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(run_folder(), tmp_path_factory.mktemp("served") / "run"))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Process]:
    limits = ("--head-seconds", 0.3, "--body-seconds", 1, "--idle-seconds", 1, "--max-k", 12)
    admin = home.parent / "admin-token"
    admin.write_text(ADMIN)
    reloading = ("--admin-token-file", admin, "--run-root", "/")
    with serving(home, "--host", "0.0.0.0", "--drain", 0.5, *limits, *reloading) as server:
        yield server


def reload(url: str, run: object = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN}"}
    return httpx.post(f"{url}/reload", verify=False, json={"run": run and str(run)}, headers=headers, timeout=SOON)


def test_it_says_where_it_listens_and_warns_of_no_token(server: Process, home: Path) -> None:
    assert server.folder == str(home)
    assert server.port > 0
    assert "0.0.0.0 without a token" in server.stderr[0]
    answer = httpx.get(f"http://127.0.0.1:{server.port}/recommend/3?k=4", verify=False).json()
    wanted = loaded(home).model.recommender.recommend(3, 4, frame="polars")
    assert [each["item"] for each in answer["items"]] == wanted["item_id"].to_list()


EARLY = """
import os, signal, sys, uvicorn
from concf.cli.app import main
run = uvicorn.Server.run
uvicorn.Server.run = lambda *words, **options: (os.kill(os.getpid(), signal.SIGTERM), run(*words, **options))
sys.argv = ["concf", "serve", sys.argv[1], "--port", "0"]
main()
"""


def test_a_signal_that_comes_before_the_server_listens_for_them_ends_it(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EARLY, home], timeout=SOON, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("when", ["before it is started", "once it is started"])
def test_a_worker_that_starts_while_the_others_are_told_to_end_is_told_too(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv(METRICS, "")  # it is set anew, for the workers
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workers = Workers(1, asleep, listener)
        start = workers._context.Process.start

        def told(process: Any) -> None:
            if when == "before it is started":
                workers._pass_on(signal.SIGTERM)
            start(process)
            if when == "once it is started":
                workers._pass_on(signal.SIGTERM)

        monkeypatch.setattr(workers._context.Process, "start", told)
        workers.serve(lambda: None)
    assert not workers.links


def asleep(listener: socket.socket, link: Connection, folder: Path | None) -> None:
    """The work of a worker that nothing but a signal ends."""
    time.sleep(10 * SOON)


@pytest.mark.parametrize(
    ("sent", "status", "kind"),
    [
        (b"garbage\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "bad_request"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"a" * (1 << 20), 431, "too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X-Head: er\r\n" * (1 << 16), 431, "too_large"),
        (b"", 408, "too_slow"),
        (b"GET /health HT", 408, "too_slow"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", 408, "too_slow"),
        (b"\r\n", 408, "too_slow"),
        (b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", 408, "too_slow"),
        (b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", 408, "too_slow"),
    ],
)
def test_what_is_no_request_is_told_so_and_the_connection_closed(
    server: Process, sent: bytes, status: int, kind: str
) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            assert status == 431  # it was closed while more came
        try:
            code, body = received(connection)
        except ConnectionResetError:
            assert status == 431
            return
    assert (code, body["kind"]) == (status, kind)


def test_a_connection_that_is_not_used_is_closed(server: Process) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert received(connection) == (200, {"status": "alive"})  # and then the end


def test_a_body_of_many_pieces_is_refused_when_it_is_too_large(server: Process) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"
        for _ in range(20):
            connection.sendall(piece)
        status, body = received(connection)
    assert (status, body["kind"]) == (413, "too_large")


@pytest.fixture(scope="module")
def locked(home: Path) -> Iterator[Process]:
    """With a token from the environment, and few connections that stay open for long."""
    limits = ("--max-connections", 5, "--head-seconds", SOON, "--idle-seconds", int(SOON))
    with serving(home, *limits, CONCF_TOKEN="s3cret\n") as server:
        yield server


def is_answered(connection: socket.socket) -> bool:
    """Whether a request on a connection that stays open is answered."""
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answered = b""
    while not answered.endswith(b"}"):  # head and body may come apart
        part = connection.recv(1 << 16)
        if not part:
            return False
        answered += part
    return answered.startswith(b"HTTP/1.1 200 OK")


def test_under_pressure_the_connection_that_waits_longest_makes_room(locked: Process) -> None:
    with ExitStack() as opened:
        first = [opened.enter_context(locked.connect()) for _ in range(5)]
        assert all(map(is_answered, first))
        assert is_answered(first[0])  # used again: now the second waits longest
        more = [opened.enter_context(locked.connect()) for _ in range(2)]
        assert all(map(is_answered, more))
        assert first[1].recv(1) == first[2].recv(1) == b""
        assert all(map(is_answered, (first[0], first[3], first[4])))
    wait_until(lambda: _status(locked) == 200)


def test_more_connections_than_can_be_answered_are_refused(locked: Process) -> None:
    head = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\r\nContent-Length: 9\r\n\r\n{"
    with ExitStack() as opened:
        for _ in range(5):  # requests in progress
            opened.enter_context(locked.connect()).sendall(head)
        time.sleep(0.3)
        for _ in range(10):
            with locked.connect() as more:
                status, body = received(more)  # a connection that is reset has no answer
                assert (status, body["kind"]) == (503, "busy")
                assert body["detail"] == "5 connections are open; try again in a moment"
    wait_until(lambda: _status(locked) == 200)


def _status(server: Process) -> int:
    try:
        return httpx.get(f"http://127.0.0.1:{server.port}/health", verify=False).status_code
    except httpx.TransportError:
        return 0


def test_runs_change_under_load_and_no_request_is_lost(server: Process, home: Path) -> None:
    runs = [home, run_folder(seed=1)]
    right = []
    for folder in runs:
        model = loaded(folder).model.recommender
        frames = [model.recommend(user, 12, by=by, frame="polars") for user in range(5) for by in ("consensus", "bpr")]
        right.append([frame["item_id"].to_list() for frame in frames])
    url, wrong, answered, done = f"http://127.0.0.1:{server.port}", [], [0, 0], threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=SOON, verify=False) as client:
            turn = 0
            while not done.wait(0.002):
                place = turn % 10
                answer = client.get(f"/recommend/{place // 2}?k=12&by={('consensus', 'bpr')[place % 2]}")
                items = [each["item"] for each in answer.json()["items"]] if answer.status_code == 200 else answer.text
                which = [items == each[place] for each in right]
                if True not in which:
                    wrong.append(items)
                for run, same in enumerate(which):
                    answered[run] += same
                turn += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    versions = []
    for turn in range(4):
        versions.append(reload(url, runs[(turn + 1) % 2]).json()["version"])
        assert reload(url, "nothing").status_code == 409
        time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert versions == list(range(versions[0], versions[0] + 4))
    assert min(answered) > 20


def test_sighup_reads_the_folder_again_or_refuses(server: Process, home: Path) -> None:
    url = f"http://127.0.0.1:{server.port}"
    reload(url, home)
    before = httpx.get(f"{url}/recommend/3", verify=False).json()
    described = (home / "run.json").read_text()
    (home / "run.json").write_text("{")
    server.process.send_signal(signal.SIGHUP)
    server.until_printed("reload refused, still serving the old run")
    assert httpx.get(f"{url}/recommend/3", verify=False).json() == before
    (home / "run.json").write_text(described)
    server.process.send_signal(signal.SIGHUP)
    server.until_printed(f"concf: serving {home}, version")
    assert httpx.get(f"{url}/recommend/3", verify=False).json() == before


def test_a_request_under_way_is_answered_before_the_end(server: Process) -> None:
    """The last test of this server."""
    head = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.connect() as connection, server.connect() as idle:
        assert is_answered(idle)
        connection.sendall(head + b'Content-Length: 14\r\n\r\n{"users"')
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.sendall(b": [3]}")
        status, body = received(connection)
        assert status == 200
        assert body["lists"][0]["user"] == 3
        assert idle.recv(1) == b""
    assert server.process.wait(SOON) == 0


def test_with_a_token_from_the_environment_and_ctrl_c(locked: Process) -> None:
    """The last test of this server."""
    assert locked.url.startswith("http://127.0.0.1:")
    assert not [line for line in locked.stderr if "warning" in line]
    assert httpx.get(f"{locked.url}/recommend/3", verify=False).status_code == 401
    assert (
        httpx.get(f"{locked.url}/recommend/3", verify=False, headers={"authorization": "Bearer s3cret"}).status_code
        == 200
    )
    assert locked.end(signal.SIGINT) == 0


@pytest.fixture
def words(tmp_path: Path) -> dict[str, Path]:
    for name, text in {"empty": "\n", "two": "a b", "odd": "ü"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "items.csv").write_text("a,b\n1,2\n")
    return {"run": run_folder(), "tmp": tmp_path}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{tmp}/nothing --port 0", "not a run"),
        ("{run} --port 99999", "--port"),
        ("{run} --port 0 --host no.such.host.invalid", "cannot listen at no.such.host.invalid:0"),
        ("{run} --port 0 --max-k 0", "max-k"),
        ("{run} --port 0 --token-file {tmp}/none", "No such file"),
        ("{run} --port 0 --token-file {tmp}/empty", "expected a token"),
        ("{run} --port 0 --token-file {tmp}/two", "expected a token"),
        ("{run} --port 0 --token-file {tmp}/odd", "expected a token"),
        ("{run} --port 0 --admin-token-file {tmp}/two", "expected a token"),
        ("{run} --port 0 --run-root {tmp}", "give --admin-token-file too"),
        ("{run} --port 0 --allow-host http://x", "expected a name without port"),
        ("{run} --port 0 --allow-host a*b", "expected a name without port"),
        ("{run} --port 0 --access-log {tmp}/no/log", "cannot be written"),
        ("{run} --port 0 --catalogue {tmp}/none.csv", "no such file"),
        ("{run} --port 0 --catalogue {tmp}/items.csv", "no column for the item"),
        ("{run} --port 0 --catalogue-item x", "give --catalogue too"),
        ("{run} --port 0 --data {tmp}", "not a prepared data set"),
    ],
)
def test_a_command_line_mistake_ends_in_words(concf: CLI, words: dict[str, Path], line: str, message: str) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    code, _, err = concf("serve", *line.format(**words).split())
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_port_that_is_taken(concf: CLI) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = concf("serve", run_folder(), "--port", taken.getsockname()[1])
    assert code == 2
    assert "cannot listen" in err


def test_help_names_every_limit(concf: CLI) -> None:
    code, out, _ = concf("serve", "--help")
    assert code == 0
    for word in ("max-k", "max-users", "max-history", "max-body", "max-requests", "max-connections", "head-seconds",
                 "body-seconds", "idle-seconds", "closing-seconds", "send-seconds", "seconds", "drain", "max-listed",
                 "max-histories", "max-batches", "allow-host", "access-log", "admin-token-file", "run-root",
                 "token-file", "catalogue-title"):  # fmt: skip
        assert f"--{word}" in out


def test_without_the_extra_it_says_which(concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.cli.commands.serve.find_spec", lambda name: None if name == "uvicorn" else object())
    code, _, err = concf("serve", run_folder())
    assert code == 2
    assert "pip install 'concf[serve]'" in err
