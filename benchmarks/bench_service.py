"""How fast `concf serve` answers beside a constant route, whether its memory grows, and how it bears hostile callers.

python benchmarks/bench_service.py [--users 20000] [--items 30000] [--run FOLDER]

In one run, on loopback: the service and its workers, a bare Starlette route that sends constant bytes of the same size,
a FastAPI route that sends a constant value, and callers on 16 kept connections in a process of their own.
They are asked in turns; the ratios are medians over the rounds.
The service checks hosts and origins, and counts; a second one also writes an access log (`logged`).
Then many requests, with the service's memory before and after; single requests alone and beside callers of batches;
right requests, every answer compared with the library's, while the run is reloaded again and again, beside a caller who
sends garbage, huge and endless bodies, and leaves connections half open.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import service_run
from measuring import write
from pydantic_core import to_json

HERE = Path(__file__).parent
HEAD = "bpr"
QUESTIONS = {"consensus": "/recommend/{}", "head": f"/recommend/{{}}?by={HEAD}"}
ASKED = 2000  # different users
FIGURES = ("cpu_us", "per_second", "p50_ms", "p99_ms")


@contextmanager
def process(*words: object) -> Iterator[tuple[int, int]]:
    """(process, port) of a program that says on its first line where it listens."""
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}
    command, log = [sys.executable, *map(str, words)], subprocess.DEVNULL if "--access-log" in words else None
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=quiet)
    try:
        assert running.stdout is not None
        match = re.search(r":(\d+)$", running.stdout.readline())
        assert match, "it did not start"
        yield running.pid, int(match[1])
    finally:
        running.terminate()
        assert running.wait(60) in (0, -15)


def floor(body: Path, fastapi: bool) -> None:
    """The rivals: constant bytes by Starlette, or a constant value by FastAPI, and uvicorn."""
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    constant = body.read_bytes()

    async def constant_list(_request: Request) -> Response:
        return Response(constant, media_type="application/json")

    app: Any = Starlette(routes=[Route("/constant/{user}", constant_list)])
    if fastapi:
        from fastapi import FastAPI

        app, value = FastAPI(), json.loads(constant)

        @app.get("/constant/{user}")  # type: ignore[untyped-decorator]
        async def constant_value(user: int, k: int = 10) -> dict[str, Any]:
            return {**value, "user": user, "k": k}

    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"floor at :{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, proxy_headers=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def call(port: int, **wanted: Any) -> dict[str, Any]:
    """What the callers of http_load.py say."""
    words = [sys.executable, str(HERE / "http_load.py"), str(port), "-"]
    done = subprocess.run(words, input=json.dumps(wanted), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def memory(pid: int) -> float:
    """MB of a process and its workers that are not shared."""
    service = psutil.Process(pid)
    return float(sum(each.memory_full_info().uss for each in (service, *service.children()))) / 1e6


def processor_time(pid: int) -> float:
    """Microseconds of processor time that a process and its workers have taken."""
    service = psutil.Process(pid)
    return 1e6 * float(sum(sum(each.cpu_times()[:2]) for each in (service, *service.children())))


def in_rounds(
    service: tuple[int, int],
    logged: tuple[int, int],
    rivals: dict[str, tuple[int, int]],
    users: list[Any],
    rounds: int,
    requests: int,
) -> dict[str, Any]:
    """Medians of each, and of the ratios to the rival within a round."""
    paths = {name: [form.format(user) for user in users] for name, form in QUESTIONS.items()}
    targets = {name: (rival, [f"/constant/{user}" for user in users]) for name, rival in rivals.items()}
    targets |= {name: (service, asked) for name, asked in paths.items()} | {"logged": (logged, paths["consensus"])}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
    for turn in range(rounds + 1):  # the first warms up
        for name, ((pid, port), asked) in targets.items():
            before = processor_time(pid)
            figures = call(port, paths=asked, requests=requests)
            figures["cpu_us"] = (processor_time(pid) - before) / figures["requests"]
            assert not figures["failed"], (name, figures)
            if turn:
                taken[name].append(figures)
    line: dict[str, Any] = {
        name: {figure: median(each[figure] for each in found) for figure in FIGURES} for name, found in taken.items()
    }
    for name in (*QUESTIONS, "logged", "fastapi"):
        pairs = list(zip(taken[name], taken["floor"], strict=True))
        for figure in FIGURES:
            line[name][f"{figure}_over_floor"] = median(mine[figure] / theirs[figure] for mine, theirs in pairs)
    return line


def beside_batches(port: int, users: list[Any], items: list[Any], rounds: int = 5) -> dict[str, Any]:
    """Milliseconds of the 99th percentile of single requests alone and beside batches: medians over the rounds."""
    batch = {"histories": {str(name): items[name : name + 100] for name in range(200)}, "k": 200}
    paths, alone, beside, ratios = [QUESTIONS["consensus"].format(user) for user in users], [], [], []
    for _ in range(rounds):
        alone.append(call(port, paths=paths, requests=4000)["p99_ms"])
        words = [
            sys.executable,
            str(HERE / "http_load.py"),
            str(port),
            json.dumps({"batch_seconds": 8, "batch": batch}),
        ]
        callers = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        time.sleep(1.0)
        beside.append(call(port, paths=paths, requests=4000)["p99_ms"])
        ratios.append(beside[-1] / alone[-1])
        answered = json.loads(callers.communicate()[0])
        assert set(answered) == {"200"}, answered
    return {"alone_p99_ms": median(alone), "p99_ms": median(beside), "p99_over_alone": median(ratios)}


def beside_enemies(
    pid: int, port: int, users: list[Any], seconds: float, right: dict[str, list[Any]]
) -> dict[str, Any]:
    """Right questions, with every answer compared, while others attack."""
    words = [sys.executable, str(HERE / "http_load.py"), str(port), json.dumps({"hostile_seconds": seconds})]
    enemy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    total: dict[str, Any] = {"requests": 0, "failed": 0, "wrong": 0, "p99_ms": 0.0}
    while enemy.poll() is None:
        os.kill(pid, signal.SIGHUP)
        for name, form in QUESTIONS.items():
            paths = [form.format(user) for user in users]
            latest = call(port, paths=paths, requests=2000, expected=right[name])
            total = {figure: total[figure] + latest[figure] for figure in ("requests", "failed", "wrong")} | {
                "p99_ms": max(total["p99_ms"], latest["p99_ms"])
            }
    assert enemy.stdout is not None
    return total | {"enemy": json.loads(enemy.stdout.read())}


def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from concf.inference.recommender import Recommender

    model = Recommender.load(folder, frame="arrays")
    ids = model.user_ids.values
    users = ids[:: max(1, len(ids) // ASKED)][:ASKED].tolist()
    body, one = folder.parent / "constant.json", model.recommend([users[0]], 10, frame="polars")
    rows = zip(one["item_id"], one["rank"], one["score"], strict=True)
    items = [{"item": item, "rank": rank, "score": score, "title": None} for item, rank, score in rows]
    body.write_bytes(to_json({"user": users[0], "by": "consensus", "note": None, "items": items}))
    few = users[:200]
    by = {"consensus": "consensus", "head": HEAD}
    right = {name: [model.recommend(user, 10, by=by[name])[0].tolist() for user in few] for name in QUESTIONS}
    line: dict[str, Any] = {"users": len(ids), "items": len(model.item_ids), "k": 10, "bytes": body.stat().st_size}
    line["asked"] = len(users)
    with (
        process("-m", "concf", "serve", folder, "--port", 0, "--drain", 0) as (pid, port),
        process("-m", "concf", "serve", folder, "--port", 0, "--drain", 0, "--access-log") as logged,
        process(__file__, "--floor", body) as rival,
        process(__file__, "--floor", body, "--fastapi") as fastapi,
    ):
        line |= {"connections": 16, "rounds": chosen.rounds}
        line |= in_rounds(
            (pid, port), logged, {"floor": rival, "fastapi": fastapi}, users, chosen.rounds, chosen.requests
        )
        before = memory(pid)
        everything = [form.format(user) for form in QUESTIONS.values() for user in users]
        many = call(port, paths=everything, requests=chosen.many)
        line["many"] = {**many, "rss_mb_before": before, "rss_mb_after": memory(pid)}
        line["beside_batches"] = beside_batches(port, users, model.item_ids.values.tolist())
        line["beside_enemies"] = beside_enemies(pid, port, few, chosen.hostile, right) | {"rss_mb_after": memory(pid)}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--run", type=Path, help="serve this one instead of making one")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=8000, help="of a round")
    parser.add_argument("--many", type=int, default=100_000, help="for the memory")
    parser.add_argument("--hostile", type=float, default=30.0, help="seconds beside enemies")
    parser.add_argument("--floor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fastapi", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.floor is not None:
        floor(chosen.floor, chosen.fastapi)
        return
    with tempfile.TemporaryDirectory() as room:
        folder = chosen.run or service_run.make(Path(room) / "run", chosen.users, chosen.items)
        write("service", measure(chosen, folder))


if __name__ == "__main__":
    main()
