"""Services so small that they load at once: of integers, and of text ids with every character that paths mind."""

from __future__ import annotations

import asyncio
import atexit
import shutil
from functools import cache
from http import HTTPStatus
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self
from urllib.parse import quote

import httpx
import numpy as np
import polars as pl
import torch
from small_run import SMALL

from concf.consensus.consensus import consensus
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation.ranking import rank
from concf.models import choose_settings
from concf.reference.run import ReferenceRun
from concf.runs.checkpoint import RunFolder
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.service.app import create_app
from concf.service.explorer.view import Explorer
from concf.service.front import Access
from concf.service.loading import Loader, Served
from concf.service.pool import Limits, Pool, Service
from concf.service.problems import Problem
from concf.service.worker import answer, facts

ODD = (
    "a/b", "/", "a b", "100%", "%2F", "ü", "名前", "🎻", "?k=1", "a&b=c", "#1", "+1", '"', "\\", "'", "<b>",
    "a:b;c,d", "5", "-",
)  # fmt: skip
SHOWN = 12  # places of the consensus in a small run


@cache
def run_folder(ids: str = "integers", seed: int = 0) -> Path:
    """A run with its data inside, made once a process: as training leaves one behind, but for the training."""
    log = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
    if ids == "text":
        names = pl.Series([*ODD, *(f"n{number}" for number in range(40))])
        log = log.with_columns(pl.col("user_id", "item_id").map_batches(lambda each: names.gather(each)))
    data = prepare(log, protocol="random")
    settings = choose_settings("reference", words=(*SMALL, "model.initial_std=0.5"))
    run, places = ReferenceRun(data, settings, seed, torch.device("cpu")), settings.consensus.top_k
    heads, everyone = run.model.factors(), np.arange(data.interactions.n_users)
    rankings = [torch.from_numpy(rank(each, everyone, SHOWN, seen=data.train)) for each in heads.values()]
    newest = torch.stack(rankings)[:, :, :places]
    consistency = torch.rand(newest.shape, generator=torch.Generator().manual_seed(seed))
    agreed = consensus(newest, [], data.interactions.n_items, SHOWN, top_k=places)
    validation = {name: 0.1 + place / 100 for place, name in enumerate([*heads, R_CONSENSUS, CONSENSUS])}
    lists = dict(zip((CONSENSUS, R_CONSENSUS), agreed, strict=True))
    run.notice(0, validation, lists, lambda: {"items": newest.clone(), "consistency": consistency})
    run.epoch, run.finished = 1, True
    room = Path(mkdtemp(prefix="concf-service-"))
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    home = RunFolder(room / f"{ids}-{seed}")
    home.begin(run)
    home.keep(data)
    home.save(run)
    return home.path


class LocalPool(Pool):
    """Computes in this process what workers would."""

    def load(self) -> Served:
        return self.loader(self.folder)

    async def start(self) -> None:
        try:
            self.run = Explorer(self.load())
        except Exception as error:
            raise Problem(409, "refused_run", str(error)) from error
        self.facts = facts(self.run)
        self.size = self.facts["size"]
        await self.store()

    async def store(self) -> None:
        """Fetch the stored lists anew, as `keep_lists` does in time."""
        rules, self.loader = self.loader.rules, self.loader.model_copy(update={"rules": None})
        self.lists.clear()
        await self.keep_lists()
        self.loader = self.loader.model_copy(update={"rules": rules})

    async def ask(self, job: bytes, cost: float) -> tuple[int, bytes]:
        return answer(self.run, job)


class LocalService(Service):
    """A service without other processes."""

    def __init__(self, loader: Loader, folder: Path, limits: Limits | None = None, make: Any = LocalPool) -> None:
        super().__init__(loader, folder, limits, make=make)

    @property
    def model(self) -> Served:
        run: Explorer = self.pool.run  # type: ignore[attr-defined]
        return run.served

    def load(self) -> Self:
        asyncio.run(self.reload())
        return self


def loaded(folder: Path, limits: Limits | None = None, loader: Loader | None = None) -> LocalService:
    """A service that is ready."""
    return LocalService(loader or Loader(), folder, limits).load()


class Client:
    """Asks an application in this process, without a socket, within `with`."""

    def __init__(self, service: LocalService, token: str | None = None, **access: Any) -> None:
        self.service, self.app = service, create_app(service, Access(token, **access))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._http.aclose())
        self._runner.close()

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._http.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self("POST", path, json=body, **options)


def segment(identity: Any) -> str:
    """An id as a segment of a path."""
    return quote(str(identity), safe="")


def problem(answer: httpx.Response) -> tuple[int, str]:
    """(status, kind) of an error, whose shape is checked."""
    body = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(body) == {"type", "title", "status", "detail", "kind", "where"}
    assert (body["type"], body["status"]) == ("about:blank", answer.status_code)
    assert body["title"] == HTTPStatus(answer.status_code).phrase
    assert body["detail"]
    return answer.status_code, body["kind"]
