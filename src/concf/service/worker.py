"""A process that holds a run and computes one answer at a time: jobs on standard input, answers on standard output.

Messages are frames: eight bytes with the length, then the content. A job is a line of JSON, then the request's body; an
answer three digits of a status, then its body. SIGINT interrupts a job; the process stays.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import struct
import sys
from contextlib import suppress
from typing import IO, Any

import numpy as np
import torch
from pydantic import ValidationError
from pydantic_core import to_json

from concf.errors import ConcfError
from concf.service.explorer.routes import routes as explorer
from concf.service.loading import LOG, Loader, log_as_json
from concf.service.problems import Problem, as_problem, invalid
from concf.service.routes import Home, Route
from concf.service.routes import routes as recommending

LENGTH = struct.Struct(">Q")
IDS, STORED, ALLOWED = "ids", "stored", "allowed"  # jobs of the front itself
COMPUTED: dict[str, Route] = {each.name: each for each in (*recommending, *explorer)}


class Interrupted(BaseException):
    """The front does not want the answer any more."""


def facts(home: Home) -> dict[str, Any]:
    """Describe the run to the front. stored: length of stored lists, 0 if there are none"""
    served, ranker = home.served, home.served.recommender.ranker
    default = served.recommender.default
    stored = 0 if default in ranker.heads or ranker.new is not None else ranker.run.settings.consensus.shown
    return {
        "run": served.run_id, "name": served.name, "users": len(served.recommender.user_ids),
        "items": ranker.n_items, "voters": max(1, len(ranker.run.heads)), "by": default, "stored": stored,
    }  # fmt: skip


def answer(home: Home, job: bytes) -> bytes:
    """Answer a job: the status and the body."""
    head, _, body = job.partition(b"\n")
    about = json.loads(head)
    try:
        if about["route"] == IDS:
            return b"200" + _ids(home)
        if about["route"] == STORED:
            return b"200" + _stored(home, about["begin"], about["end"])
        if about["route"] == ALLOWED:
            allowed = home.standing.allowed()
            return b"200" + (b"" if allowed is None else allowed.tobytes())
        route = COMPUTED[about["route"]]
        try:
            if route.method == "POST":
                request = route.request.validate_json(body)
            else:
                request = route.request.validate_python(about["query"])
        except ValidationError as error:
            raise invalid(error, "body" if route.method == "POST" else "query") from None
        assert route.work is not None
        made = route.work(home, about["path"], request)
        return b"200" + (made if isinstance(made, bytes) else to_json(made))
    except Exception as error:
        if not isinstance(error, ConcfError):
            LOG.exception("a job failed", extra={"fields": {"route": about["route"]}})
        problem = as_problem(error)
        return str(problem.status).encode() + problem.body()


def _ids(home: Home) -> bytes:
    """Ids of users and items, and titles, by position."""
    served = home.served
    items = served.recommender.item_ids.values.tolist()
    titles = [served.titles.get(item) for item in items]
    return to_json({"users": served.recommender.user_ids.values.tolist(), "items": items, "titles": titles})


def _stored(home: Home, begin: int, end: int) -> bytes:
    """[users, stored] items as int32, -1 where a list is shorter, then their scores as float32."""
    length, recommender = facts(home)["stored"], home.served.recommender
    items, scores = np.full((end - begin, length), -1, np.int32), np.zeros((end - begin, length), np.float32)
    lists = recommender.short(np.arange(begin, end), [length] * (end - begin), recommender.default)
    for row, (own, values) in enumerate(lists):
        items[row, : len(own)], scores[row, : len(own)] = own, values
    return items.tobytes() + scores.tobytes()


def warm_up(home: Home) -> None:
    """Answer a request of each kind, so that nobody waits for what is computed once."""
    recommender = home.served.recommender
    path = {"user": str(recommender.user_ids.values[0]), "item": str(recommender.item_ids.values[0])}
    for route in COMPUTED.values():
        body, query = {"history": [path["item"]]}, dict[str, str]()
        if route.template == "/explore/{user}" and home.served.attributes is not None:
            query["where"] = f'"{home.served.attributes.attributes(recommender.item_ids).columns[0]}" is not null'
        answer(home, to_json({"route": route.name, "path": path, "query": query}) + b"\n" + to_json(body))


def _read(source: IO[bytes]) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def main() -> None:
    """Load the run that the first frame names, then answer jobs until standard input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between the frames
    log_as_json()
    torch.set_num_threads(1)  # one list is too little work for several threads; processes share the cores
    if hasattr(os, "nice"):
        os.nice(5)  # the front goes first
    computing = False

    def interrupt(_number: int, _frame: object) -> None:
        if computing:
            raise Interrupted

    signal.signal(signal.SIGINT, interrupt)

    def send(reply: bytes) -> None:
        sink.write(LENGTH.pack(len(reply)) + reply)
        sink.flush()

    first = _read(source)
    if first is None:
        return
    loader, folder = Loader.from_json(first)
    try:
        home = Home(loader(folder), loader)
        warm_up(home)
        gc.collect()
        gc.freeze()  # see `server`
    except Exception as error:
        send(b"409" + Problem(409, "refused_run", str(error), str(folder)).body())
        return
    send(b"200" + to_json(facts(home)))
    while (job := _read(source)) is not None:
        reply = b"503"
        with suppress(Interrupted):
            computing = True
            reply = answer(home, job)
            computing = False
        computing = False
        send(reply)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the front has ended
        main()
