"""Services so small that they load at once: of integers, and of text ids with every character that paths mind."""

from __future__ import annotations

import asyncio
import atexit
import json
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

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS, consensus
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.errors import ConcfError
from concf.evaluation.ranking import rank
from concf.models import choose_settings
from concf.reference.run import ReferenceRun
from concf.runs.checkpoint import RunFolder
from concf.service.app import create_app
from concf.service.front import Access
from concf.service.limits import Limits
from concf.service.loading import Loader, Served
from concf.service.pool import Pool
from concf.service.problems import Problem
from concf.service.routes import Home, Size
from concf.service.service import Service
from concf.service.stored import Stored
from concf.service.worker import IDS, STORED, answer, facts

ODD = (
    "a/b", "/", "a b", "100%", "%2F", "ü", "名前", "🎻", "?k=1", "a&b=c", "#1", "+1", '"', "\\", "'", "<b>",
    "a:b;c,d", "5", "-", "a\nb", "\n",
)  # fmt: skip
ADMIN = "admin-s3cret"  # the token of reloads
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
            self.home = Home(self.load(), self.loader)
        except (ConcfError, OSError) as error:
            raise Problem(409, "refused_run", str(error)) from error
        self.facts = facts(self.home)
        self.size = Size(*(self.facts[name] for name in Size._fields))
        self.stored = Stored(self.facts, (await self.ask(json.dumps({"route": IDS}).encode(), 0))[1])
        users = len(self.stored.user_ids) if self.stored.length else 0
        for begin in range(0, users, 16):
            end = min(begin + 16, users)
            job = json.dumps({"route": STORED, "begin": begin, "end": end}).encode()
            self.stored.fill(begin, end, (await self.ask(job, 0))[1])

    async def ask(self, job: bytes, cost: float) -> tuple[int, bytes]:
        reply = answer(self.home, job)
        return int(reply[:3]), reply[3:]


class LocalService(Service):
    """A service without other processes."""

    def __init__(
        self, loader: Loader, folder: Path, limits: Limits | None = None, root: Path | None = None,
        make: Any = LocalPool,
    ) -> None:  # fmt: skip
        super().__init__(loader, folder, limits, root, make=make)

    @property
    def model(self) -> Served:
        home: Home = self.pool.home  # type: ignore[attr-defined]
        return home.served

    def load(self, folder: Path | None = None) -> Self:
        asyncio.run(self.reload(folder))
        return self


def loaded(folder: Path, limits: Limits | None = None, loader: Loader | None = None) -> LocalService:
    """A service that is ready."""
    return LocalService(loader or Loader(), folder, limits, root=Path("/")).load()


class Client:
    """Asks an application in this process, without a socket, within `with`."""

    def __init__(self, service: LocalService, token: str | None = None, **access: Any) -> None:
        self.service = service
        self.use(create_app(service, Access(token, ADMIN, **access)))

    def use(self, app: Any) -> None:
        """Ask another application from now on."""
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.app, self._http = app, httpx.AsyncClient(transport=transport, base_url="http://localhost")

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

    def reload(self, body: Any) -> httpx.Response:
        """With the admin's token."""
        return self.post("/reload", body, headers={"authorization": f"Bearer {ADMIN}"})

    def together(self, paths: list[str]) -> list[httpx.Response]:
        """All at the same moment."""

        async def ask() -> list[httpx.Response]:
            return list(await asyncio.gather(*(self._http.get(path) for path in paths)))

        return self._runner.run(ask())


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
