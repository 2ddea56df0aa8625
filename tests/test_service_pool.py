"""Queues and worker processes of the service: order, interruption, loss, and the run that each has."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipping import posix
from small_service import run_folder

from concf.service.loading import Loader
from concf.service.pool import Queue, Worker
from concf.service.problems import Problem


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 6))
def test_the_cheapest_wait_and_go_first(costs: list[int], most: int) -> None:
    async def outcomes() -> list[int | None]:
        queue, order = Queue(most), list[int]()

        async def wait(at: int) -> None:
            worker = await queue.take(costs[at])
            order.append(at)
            queue.give(worker)

        tasks = [asyncio.create_task(wait(at)) for at in range(len(costs))]
        await asyncio.sleep(0)
        queue.give(cast(Worker, object()))
        done = await asyncio.gather(*tasks, return_exceptions=True)
        refused = {at for at, error in enumerate(done) if isinstance(error, Problem)}
        assert refused == set(range(len(costs))) - set(order)
        assert len(queue.idle) == 1
        return [*order]

    first = sorted(range(len(costs)), key=lambda at: (costs[at], at))[:most]
    assert asyncio.run(outcomes()) == first


def test_who_gives_up_passes_the_process_on() -> None:
    async def give_up() -> None:
        queue, worker = Queue(9), cast(Worker, object())
        first, second = asyncio.create_task(queue.take(1)), asyncio.create_task(queue.take(2))
        await asyncio.sleep(0)
        queue.give(worker)
        first.cancel()  # it has the process, but does not know yet
        assert await second is worker
        assert not queue.waiting
        third = asyncio.create_task(queue.take(1))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.sleep(0)
        assert not queue.waiting

    asyncio.run(give_up())


def job(body: dict[str, Any]) -> bytes:
    return json.dumps({"route": "POST /recommend", "id": "", "request": body}).encode()


@posix
def test_a_process_is_interrupted_and_goes_on() -> None:
    async def talk() -> None:
        worker = await Worker.start(Loader(), run_folder())
        try:
            slow = asyncio.create_task(worker.ask(job({"users": [1] * 1000, "k": 30, "viewed": True, "diversity": 1})))
            await asyncio.sleep(0.5)
            begin = time.monotonic()
            os.kill(worker.process.pid, signal.SIGINT)
            assert (await slow)[0] == 503
            assert time.monotonic() - begin < 1
            os.kill(worker.process.pid, signal.SIGINT)  # without a job it is ignored
            status, body = await worker.ask(job({"users": [1], "k": 2}))
            assert (status, len(json.loads(body)["lists"][0]["items"])) == (200, 2)
        finally:
            worker.kill()
            await worker.process.wait()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await worker.ask(job({}))
        with pytest.raises(Problem, match="not a run"):
            await Worker.start(Loader(), Path("nothing"))

    asyncio.run(talk())
