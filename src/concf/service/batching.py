"""Requests of the same moment for lists of one head share a matrix product."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy as np

from concf.inference.lookup import Short
from concf.service.http.endpoints import Threads
from concf.service.loading import Served

MOST = 16  # requests that share a product
IN_LOOP = 1 << 26  # multiplications that the event loop does itself, a few milliseconds; more go to a thread
Waiting = tuple[int, int, asyncio.Future[Short]]  # the index of a user, k, the list to come


class Batcher:
    """Answers requests that wait for the same head together: a product costs little more than reading the items.

    No request waits for others to arrive: those present when the first is about to be answered share its product.
    """

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self._waiting: dict[tuple[Served, str], list[Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def short(self, served: Served, user: int, k: int, by: str) -> Short:
        """The items of a user and their scores: a consensus is looked up, a head's list computed."""
        if by not in served.recommender.ranker.heads:
            return served.recommender.short(np.array([user]), [k], by)[0]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Short] = loop.create_future()
        group = self._waiting.setdefault((served, by), [])
        group.append((user, k, answer))
        if len(group) == 1:
            loop.call_soon(self._start, served, by)
        return await answer

    def _start(self, served: Served, by: str) -> None:
        group = self._waiting.pop((served, by))
        for begin in range(0, len(group), MOST):
            task = asyncio.create_task(self._answer(served, by, group[begin : begin + MOST]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, served: Served, by: str, group: Sequence[Waiting]) -> None:
        users, ks, answers = zip(*group, strict=True)
        compute = partial(served.recommender.short, np.array(users), ks, by)
        size = len(group) * served.recommender.ranker.factors(by).item.numel()
        try:
            lists = compute() if size <= IN_LOOP else await self.threads.run(compute)
        except Exception as error:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, short in zip(answers, lists, strict=True):
            if not answer.done():
                answer.set_result(short)
