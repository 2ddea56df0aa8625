"""Worker processes of a run: queues of short and long jobs, a spare for a lost process, and reloads."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from bisect import insort
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from concf.errors import ConcfError
from concf.service.loading import LOG, Loader
from concf.service.problems import SOON, Problem
from concf.service.routes import SHORT, Size

BLOCK = 512  # users whose stored lists are one job
KEPT, KEPT_BYTES = 1 << 13, 1 << 12  # most other lists that are kept, and most bytes of each
GRACE = 0.5  # seconds in which an interrupted job must end
AGAIN = 5.0  # seconds until another attempt, if no process can be started
LENGTH = struct.Struct(">Q")  # of a message
STORED = "stored"  # route of the jobs of the front itself
LONG_NICE = 15  # niceness of processes with long jobs
LOST = (asyncio.IncompleteReadError, ConnectionError, RuntimeError)  # a process has ended; the last by uvloop
Reply = tuple[int, bytes]  # status, body


class Limits(NamedTuple):
    """Limits of the work; limits of the form of requests are in `schemas`.

    cost: most scores (users x items) of a request, as estimated
    seconds: most seconds until an answer; body_seconds: most seconds until a body has arrived
    """

    cost: int = 100_000_000
    seconds: float = 30.0
    body_seconds: float = 10.0


class Worker:
    """Process that computes one job at a time."""

    def __init__(self, process: Process) -> None:
        self.process, self.facts = process, dict[str, Any]()

    @classmethod
    async def start(cls, loader: Loader, folder: Path) -> Worker:
        """Start a process and wait until it has loaded the run; raise a problem if it cannot."""
        words, single = [sys.executable, "-m", "concf.service.worker"], {"POLARS_MAX_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(  # not in the terminal's group: Ctrl-C is for the front
            *words, stdin=PIPE, stdout=PIPE, limit=1 << 20, start_new_session=True, env=os.environ | single
        )
        worker = cls(process)
        try:
            status, body = await worker.ask(to_json({"loader": loader, "folder": folder}))
            if status != 200:
                raise Problem(409, "refused_run", from_json(body)["detail"], str(folder))
            worker.facts = from_json(body)
        except LOST:
            raise Problem(409, "refused_run", "the process that loaded the run ended", str(folder)) from None
        finally:
            if not worker.facts:
                worker.kill()
                await process.wait()
        return worker

    async def ask(self, job: bytes) -> Reply:
        """Send a job and return its answer."""
        source, sink = self.process.stdout, self.process.stdin
        assert source is not None
        assert sink is not None
        sink.write(LENGTH.pack(len(job)) + job)
        await sink.drain()
        size = LENGTH.unpack(await source.readexactly(LENGTH.size))[0]
        reply = await source.readexactly(size)
        return int(reply[:3]), reply[3:]

    def kill(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            self.process.kill()


class Queue:
    """Queue of jobs that wait for a process, the cheapest first. If too many wait, the most expensive is refused."""

    def __init__(self, most: int) -> None:
        self.most, self.idle, self.waiting = most, list[Worker](), list[tuple[float, int, asyncio.Future[Worker]]]()
        self.retired, self._numbers = False, count()

    async def take(self, cost: float) -> Worker:
        """Wait for a process."""
        if self.idle:
            return self.idle.pop()
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        entry = (cost, next(self._numbers), future)
        insort(self.waiting, entry)
        if len(self.waiting) > self.most:
            message = f"{self.most} requests of this kind are waiting; try again in a moment"
            self.waiting.pop()[2].set_exception(Problem(503, "busy", message, headers=SOON))
        try:
            return await future
        except asyncio.CancelledError:
            if entry in self.waiting:
                self.waiting.remove(entry)
            elif not future.cancelled() and future.exception() is None:
                self.give(future.result())
            raise

    def give(self, worker: Worker) -> None:
        """Pass a process on to the cheapest job; without one it is idle, or ends if the queue is retired."""
        while self.waiting:
            future = self.waiting.pop(0)[2]
            if not future.done():
                future.set_result(worker)
                return
        if self.retired:
            worker.kill()
        else:
            self.idle.append(worker)


class Pool:
    """Pool of the processes of a run, and its stored lists.

    workers: processes for short jobs; half as many, at least one, are for long ones, and one is a spare
    when_changed: called if the folder has another run by the time that a process is replaced
    lists: user id as text -> the answer for a list of usual length, of the users whose lists have arrived
    recent: (user id, query) -> the answer, for the last other lists that were short
    """

    def __init__(
        self, loader: Loader, folder: Path, workers: int = 1, when_changed: Callable[[], object] = lambda: None
    ) -> None:
        self.loader, self.folder, self.workers, self.when_changed = loader, folder, workers, when_changed
        self.short, self.long = Queue(512), Queue(16)
        self.replaced, self.lists, self.recent = 0, dict[str, bytes](), dict[tuple[str, bytes], bytes]()
        self._all: set[Worker] = set()
        self._spare: asyncio.Task[Worker] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start the processes for short jobs; then those for long ones and the spare, and fetch the stored lists."""
        tasks = [asyncio.create_task(self._started()) for _ in range(self.workers)]
        try:
            started = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await self.close()
            raise
        for worker in started:
            self.short.give(worker)
        self.facts = started[0].facts
        self.size = Size(*self.facts["size"])
        for _ in range(max(1, self.workers // 2)):
            self._begin(self._fill(self.long))
        self._begin(self.keep_lists())

    async def _started(self) -> Worker:
        worker = await Worker.start(self.loader, self.folder)
        self._all.add(worker)
        return worker

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_lists(self) -> None:
        """Fetch the stored lists whenever nothing else waits."""
        begin, users = 0, self.facts["stored"]
        while begin < users and not self.short.retired:
            end, status, block = min(begin + BLOCK, users), 503, b""
            with suppress(Problem):  # others wait
                status, block = await self.ask(to_json({"route": STORED, "begin": begin, "end": end}), math.inf)
            if status == 200:
                self.lists |= {user: text.encode() for user, text in from_json(block).items()}
                begin = end
            else:
                await asyncio.sleep(AGAIN)

    def keep(self, user: str, query: bytes, answer: bytes) -> None:
        """Keep an answer of usual size, unless a standing rule may change it; the oldest makes room."""
        if len(answer) <= KEPT_BYTES and self.loader.rules is None:
            self.recent[user, query] = answer
            if len(self.recent) > KEPT:
                del self.recent[next(iter(self.recent))]

    async def ask(self, job: bytes, cost: float) -> Reply:
        """Return the answer to a job. Cancelled, the job is interrupted, and its process replaced if it goes on.

        A job whose process is lost is given to another.
        """
        queue = self.short if cost <= SHORT else self.long
        for _ in range(1 + len(self._all)):
            worker = await queue.take(cost)
            reply = asyncio.create_task(worker.ask(job))
            try:
                answer = await asyncio.shield(reply)
            except asyncio.CancelledError:
                self._begin(self._interrupt(queue, worker, reply))
                raise
            except LOST:
                self._begin(self._replace(queue, worker))
                continue
            queue.give(worker)
            return answer
        raise Problem(503, "busy", "the process that computed the answer ended; try again", headers=SOON)

    async def _interrupt(self, queue: Queue, worker: Worker, reply: Awaitable[Reply]) -> None:
        with suppress(ProcessLookupError, ValueError):  # ValueError: Windows has no such signal
            worker.process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(reply, GRACE)
        except (TimeoutError, *LOST):
            await self._replace(queue, worker)
        else:
            queue.give(worker)

    async def _replace(self, queue: Queue, lost: Worker) -> None:
        """Put the spare in the place of a lost process."""
        lost.kill()
        self._all.discard(lost)
        status = await lost.process.wait()
        self.replaced += 1
        fields = {"pid": lost.process.pid, "status": status}
        LOG.warning("a worker ended or was ended; the spare takes its place", extra={"fields": fields})
        await self._fill(queue)

    async def _fill(self, queue: Queue) -> None:
        """Give a queue the spare, and start another spare."""
        while not queue.retired or queue.waiting:
            spare = self._spare or asyncio.create_task(self._started())
            self._spare = asyncio.create_task(self._started())
            try:
                fresh = await spare
            except Problem as problem:
                LOG.error("no worker can be started: %s", problem)
                await asyncio.sleep(AGAIN)
                continue
            if fresh.facts["run"] != self.facts["run"]:
                fresh.kill()
                LOG.warning("the folder has another run by now: it is loaded")
                self.when_changed()
                await asyncio.sleep(AGAIN)
            elif fresh.process.returncode is None:
                if queue is self.long and hasattr(os, "setpriority"):
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, fresh.process.pid, LONG_NICE)
                queue.give(fresh)
                return

    def retire(self) -> None:
        """End the processes without jobs; the others end with theirs."""
        self.short.retired = self.long.retired = True
        spare, self._spare = self._spare, None
        if spare is not None and not spare.cancel() and not spare.cancelled() and spare.exception() is None:
            spare.result().kill()
        for queue in (self.short, self.long):
            while queue.idle:
                queue.idle.pop().kill()

    async def close(self) -> None:
        """End all processes."""
        self.retire()
        for task in self._tasks:
            task.cancel()
        for worker in self._all:
            worker.kill()
        for worker in self._all:
            await worker.process.wait()


class Service:
    """Service of a run: holds its pool, and replaces it by another without losing a request.

    newest: the pool, which has no process before the first run is loaded; version: number of runs that were loaded
    """

    def __init__(
        self, loader: Loader, folder: Path, limits: Limits | None = None, workers: int = 1,
        make: Callable[..., Pool] = Pool,
    ) -> None:  # fmt: skip
        self.loader, self.folder, self.limits, self.workers = loader, folder, limits or Limits(), workers
        self.make, self.newest, self.run_id, self.closing = make, make(loader, folder), "", False
        self.version, self._turn = 0, asyncio.Lock()

    @property
    def pool(self) -> Pool:
        """Pool of the current run. A request reads this once and keeps that run to its end."""
        if not self.version:
            raise Problem(503, "not_ready", "the run is being loaded; try again in a moment")
        return self.newest

    async def reload(self) -> None:
        """Load the folder again; if it cannot be served, raise an error and keep the run. One load at a time."""
        async with self._turn:
            pool = self.make(self.loader, self.folder, self.workers, self.reload_soon)
            try:
                await pool.start()
            except ConcfError as error:
                if self.version:
                    LOG.error("reload refused, still serving the old run: %s", error)
                raise
            before, self.newest, self.run_id = self.newest, pool, str(pool.facts["run"])
            self.version += 1
            before.retire()
            LOG.info("serving %s, version %s", self.folder, self.version)

    def reload_soon(self) -> None:
        """Load the folder again in the background; a refusal is logged."""
        task: asyncio.Task[Any] = asyncio.create_task(self.reload())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
