"""Worker process: it holds a run and computes one answer at a time. Jobs on standard input, answers on standard output.

Messages are frames: eight bytes with the length, then the content. A job is JSON, an answer three digits of a status,
then its body. SIGINT interrupts a job; the process stays.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json, to_json

from concf.errors import ConcfError
from concf.runtime.executors import use_one_thread
from concf.service import schemas
from concf.service.answers import lists
from concf.service.explorer.view import Explorer
from concf.service.loading import LOG, Loader, log_as_json
from concf.service.pool import LENGTH, STORED
from concf.service.problems import Problem, as_problem
from concf.service.routes import COMPUTED, Size

MOST = 1 << 17  # most users whose lists the front keeps


def facts(run: Explorer) -> dict[str, Any]:
    """Describe the run to the front. size: see `Size`; stored: users whose lists it may fetch"""
    recommender, ranker = run.recommender, run.ranker
    computed = recommender.default in ranker.heads or ranker.new is not None or run.served.standing is not None
    size = Size(len(recommender.user_ids), ranker.n_items, max(1, len(ranker.run.heads)))
    stored = 0 if computed else min(size.users, MOST)
    return {"run": run.served.run_id, "name": run.served.folder.resolve().name, "size": size, "stored": stored}


def stored(run: Explorer, begin: int, end: int) -> dict[str, str]:
    """Map user ids as text to the JSON of their lists as by `GET /recommend/{user}`. begin, end: user indices"""
    users = run.recommender.user_ids.values[begin:end].tolist()
    answer = lists(run.served, schemas.ListsRequest(users=users))
    shared = {"by": answer["by"], "note": answer["note"]}
    return {
        str(each["user"]): to_json({"user": each["user"], **shared, "items": each["items"]}).decode()
        for each in answer["lists"]
    }


def answer(run: Explorer, job: bytes) -> tuple[int, bytes]:
    """Answer a job: the status and the body."""
    about = from_json(job)
    try:
        if about["route"] == STORED:
            return 200, to_json(stored(run, about["begin"], about["end"]))
        route = COMPUTED[about["route"]]
        assert route.work is not None
        return 200, to_json(route.work(run, about["id"], route.request.model_validate(about["request"])))
    except Exception as error:
        if not isinstance(error, ConcfError):
            LOG.exception("a job failed", extra={"fields": {"route": about["route"]}})
        problem = as_problem(error)
        return problem.status, problem.body()


def warm_up(run: Explorer) -> None:
    """Answer a request of each kind, so that no caller waits for values that are computed once."""
    user, item = (str(ids.values[0]) for ids in (run.recommender.user_ids, run.recommender.item_ids))
    for route in COMPUTED.values():
        request: dict[str, Any] = {"history": [item]} if route.method == "POST" else {}
        if route.request is schemas.ExplainQuery:
            request["item"] = item
        if route.request is schemas.ViewQuery and run.attributes is not None and run.attributes.columns:
            request["where"] = f'"{run.attributes.columns[0]}" is not null'
        answer(run, to_json({"route": route.name, "id": item if "{item}" in route.path else user, "request": request}))


def _read(source: IO[bytes]) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


class Interrupted(BaseException):
    """Raised when the front no longer needs the answer."""


def main() -> None:
    """Load the run that the first frame names, then answer jobs until standard input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between the frames
    log_as_json()
    use_one_thread()  # one list is too little work for several threads; processes share the cores
    if hasattr(os, "nice"):
        os.nice(5)  # the front goes first
    computing = False

    def interrupt(_number: int, _frame: object) -> None:
        if computing:
            raise Interrupted

    def send(status: int, body: bytes) -> None:
        sink.write(LENGTH.pack(3 + len(body)) + str(status).encode() + body)
        sink.flush()

    signal.signal(signal.SIGINT, interrupt)
    first = from_json(_read(source) or b"{}")
    folder = Path(first["folder"])
    try:
        run = Explorer(Loader.model_validate(first["loader"])(folder))
        warm_up(run)
        gc.collect()
        gc.freeze()  # see `server`
    except Exception as error:
        reason = str(error) if isinstance(error, ConcfError) else f"{folder}: {type(error).__name__}: {error}"
        send(409, Problem(409, "refused_run", reason).body())
        return
    send(200, to_json(facts(run)))
    while (job := _read(source)) is not None:
        reply = 503, b""
        with suppress(Interrupted):
            computing = True
            reply = answer(run, job)
            computing = False
        computing = False
        send(*reply)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the front has ended
        main()
