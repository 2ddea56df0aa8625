"""Worker processes of one run: queues of short and long jobs, deadlines, and a spare for a process that is lost."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from bisect import insort
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from concf.service.limits import SHORT, SOON, Limits
from concf.service.loading import LOG, Loader
from concf.service.problems import Problem
from concf.service.routes import Size
from concf.service.standing import changed_at
from concf.service.stored import Stored
from concf.service.worker import ALLOWED, IDS, LENGTH, STORED

BLOCK = 512  # users whose stored lists are one job
GRACE = 0.5  # seconds for an interrupted job to end in
AGAIN = 5.0  # seconds until another try, if no process can be started
LOOK = 1.0  # seconds between two looks at the file of the standing rule
LONG_NICE = 15  # niceness of processes with long jobs
Reply = tuple[int, bytes]  # status, body


class Worker:
    """A process that computes one job at a time."""

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
            status, body = await worker.ask(loader.to_json(folder))
            about = json.loads(body)
            if status != 200:
                raise Problem(409, "refused_run", about["detail"], str(folder))
            worker.facts = about
        except (asyncio.IncompleteReadError, ConnectionError):
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
    """Jobs that wait for a process, the cheapest first. If too many wait, the most expensive is sent away."""

    def __init__(self, most: int) -> None:
        self.most, self.idle, self.waiting = most, list[Worker](), list[tuple[float, int, asyncio.Future[Worker]]]()
        self._numbers = count()

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
        """Pass a process on to the cheapest job."""
        while self.waiting:
            future = self.waiting.pop(0)[2]
            if not future.done():
                future.set_result(worker)
                return
        self.idle.append(worker)


class Pool:
    """The processes of one run, and its stored lists.

    workers: processes for short jobs; half as many, at least one, are for long ones, and one is a spare
    when_changed: called if the folder has another run by the time that a process is replaced
    """

    def __init__(
        self, loader: Loader, folder: Path, limits: Limits, workers: int = 1,
        when_changed: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.loader, self.folder, self.workers, self.when_changed = loader, folder, workers, when_changed
        self.short, self.long = Queue(limits.waiting), Queue(limits.batches)
        self.retired, self.replaced, self._rules_changed = False, 0, 0
        self._all: set[Worker] = set()
        self._spare: asyncio.Task[Worker] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start a process for each queue and fetch the ids; then start the others, and fetch the stored lists."""
        try:
            both = [asyncio.create_task(self._started()) for _ in range(2)]
            try:
                first, second = await asyncio.gather(*both)
            finally:
                for task in both:
                    task.cancel()
            self.facts = first.facts
            self._place(self.short, first)
            self._place(self.long, second)
            self.size = Size(*(self.facts[name] for name in Size._fields))
            _, packed = await self.ask(json.dumps({"route": IDS}).encode(), 0.0)
            self.stored = await asyncio.to_thread(Stored, self.facts, packed)
            await self._reread()
        except BaseException:
            self.retire()
            raise
        self._begin(self._fill())

    async def _started(self) -> Worker:
        worker = await Worker.start(self.loader, self.folder)
        self._all.add(worker)
        return worker

    def _place(self, queue: Queue, worker: Worker) -> None:
        if queue is self.long and hasattr(os, "setpriority"):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, worker.process.pid, LONG_NICE)
        self._begin(self._watch(queue, worker))
        queue.give(worker)

    async def _watch(self, queue: Queue, worker: Worker) -> None:
        """Replace a process that ends without a job."""
        await worker.process.wait()
        if worker in queue.idle:
            queue.idle.remove(worker)
            await self._replace(queue, worker)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill(self) -> None:
        """Fetch the stored lists whenever nothing else waits; start the spare and the other processes."""
        self._spare = asyncio.create_task(self._started())
        with suppress(Problem):
            for queue, wanted in ((self.short, self.workers - 1), (self.long, self.workers // 2 - 1)):
                for _ in range(wanted):
                    self._place(queue, await self._started())
        users, begin = len(self.stored.user_ids), 0
        while self.stored.length and begin < users and not self.retired:
            end = min(begin + BLOCK, users)
            job = json.dumps({"route": STORED, "begin": begin, "end": end}).encode()
            try:
                status, block = await self.ask(job, math.inf)
            except Problem:  # others wait
                status = 503
            if status == 200:
                self.stored.fill(begin, end, block)
                begin = end
            else:
                await asyncio.sleep(AGAIN)
        while self.loader.rules is not None and not self.retired:
            await asyncio.sleep(LOOK)
            with suppress(Problem):
                await self._reread()

    async def _reread(self) -> None:
        """Fetch the items that the standing rule allows, if its file has changed."""
        changed = changed_at(self.loader.rules)
        if changed != self._rules_changed:
            _, allowed = await self.ask(json.dumps({"route": ALLOWED}).encode(), 0.0)
            self.stored.allow(allowed)
            self._rules_changed = changed

    async def ask(self, job: bytes, cost: float) -> Reply:
        """Return the answer to a job. Cancelled, the job is interrupted, and its process replaced if it goes on.

        A job whose process is lost is given to another, once.
        """
        for _ in range(2):
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                return await self._ask(job, cost)
        message = "the process that computed the answer ended; try again"
        raise Problem(503, "busy", message, headers=SOON)

    async def _ask(self, job: bytes, cost: float) -> Reply:
        queue = self.short if cost <= SHORT else self.long
        worker = await queue.take(cost)
        reply = asyncio.create_task(worker.ask(job))
        try:
            answer = await asyncio.shield(reply)
        except asyncio.CancelledError:
            self._begin(self._interrupt(queue, worker, reply))
            raise
        except (asyncio.IncompleteReadError, ConnectionError):
            self._begin(self._replace(queue, worker))
            raise
        self._return(queue, worker)
        return answer

    def _return(self, queue: Queue, worker: Worker) -> None:
        if self.retired and not queue.waiting:
            worker.kill()
        else:
            queue.give(worker)

    async def _interrupt(self, queue: Queue, worker: Worker, reply: Awaitable[Reply]) -> None:
        with suppress(ProcessLookupError, ValueError):  # ValueError: Windows has no such signal
            worker.process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(reply, GRACE)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            await self._replace(queue, worker)
        else:
            self._return(queue, worker)

    async def _replace(self, queue: Queue, lost: Worker) -> None:
        """Put the spare in the place of a lost process, and start another spare."""
        lost.kill()
        self._all.discard(lost)
        status = await lost.process.wait()
        self.replaced += 1
        fields = {"pid": lost.process.pid, "status": status}
        LOG.warning("a worker ended or was ended; the spare takes its place", extra={"fields": fields})
        while not (self.retired and not queue.waiting):
            spare, self._spare = self._spare or asyncio.create_task(self._started()), None
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
                self._place(queue, fresh)
                return

    def retire(self) -> None:
        """End the processes without jobs; the others end with theirs."""
        self.retired = True
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
