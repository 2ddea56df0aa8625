"""Another run takes the place of the one that is served, or is refused; and what items are called."""

from __future__ import annotations

import asyncio
import gc
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from small_service import Client, LocalPool, LocalService, loaded, run_folder

from concf.errors import ConcfError
from concf.models import load_run
from concf.runs.checkpoint import CHECKPOINT, RUN, RunFolder
from concf.service.loading import Loader


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder(), tmp_path / "run"))


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with Client(loaded(home)) as client:
        yield client


def lists(client: Client) -> Any:
    return client.get("/recommend/1").json()["items"]


def test_another_run_takes_the_place(client: Client, home: Path) -> None:
    before, old, other = lists(client), weakref.ref(client.service.model), run_folder(seed=1)
    for path in ("/recommend/1?by=bpr", "/users?q=1", "/items?q=1", "/explore/1"):
        assert client.get(path).status_code == 200
    shutil.rmtree(home)
    shutil.copytree(other, home)
    client.service.load()
    wanted = loaded(other).model.recommender.recommend(1, frame="polars")
    assert [each["item"] for each in lists(client)] == wanted["item_id"].to_list()
    assert lists(client) != before
    assert client.get("/ready").json()["run"] == client.get("/run").json()["name"] == home.name
    assert "concf_run_version 2.0" in client.get("/metrics").text
    gc.collect()
    assert old() is None  # the run before is not kept


def changed(home: Path, change: Any) -> None:
    run = load_run(home)
    change(run.best)
    RunFolder(home).save(run)


def other_data(home: Path) -> None:
    shutil.rmtree(home / "data")
    shutil.copytree(run_folder("text") / "data", home / "data")


BREAKS: dict[str, Any] = {
    "gone": shutil.rmtree,
    "cut short": lambda home: (home / CHECKPOINT).write_bytes((home / CHECKPOINT).read_bytes()[:1000]),
    "not a run": lambda home: (home / RUN).write_text("[]"),
    "no data": lambda home: shutil.rmtree(home / "data"),
    "other data": other_data,
    "not finite": lambda home: changed(home, lambda best: best["bpr"].state["user"][0, 3, 0].fill_(torch.nan)),
    "no epoch yet": lambda home: changed(home, lambda best: best.clear()),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_run_that_cannot_be_served_is_refused_and_the_old_one_stays(client: Client, home: Path, name: str) -> None:
    before = lists(client)
    BREAKS[name](home)
    with pytest.raises(ConcfError):
        client.service.load()
    assert lists(client) == before
    assert client.get("/ready").status_code == 200
    assert client.service.version == 1


def test_one_run_is_loaded_at_a_time() -> None:
    loading = 0

    class Slow(LocalPool):
        async def start(self) -> None:
            nonlocal loading
            assert not loading
            loading += 1
            await asyncio.sleep(0.01)
            await super().start()
            loading -= 1

    service = LocalService(Loader(), run_folder(), make=Slow)

    async def many() -> None:
        tasks = [asyncio.create_task(service.reload()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()  # who has left is not waited for
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(many())
    assert service.version == 2


def test_text_spells_an_id_as_the_log_has_them() -> None:
    integers, text = (loaded(run_folder(kind)).model for kind in ("integers", "text"))
    assert [integers.user(each) for each in ("5", "-5", "05", "5.0", " 5", "x", "9" * 19, "9" * 20)] == [
        5, -5, "05", "5.0", " 5", "x", int("9" * 19), "9" * 20,
    ]  # fmt: skip
    assert text.known("item", "5", "") == ("5", text.recommender.item_ids.place("5"))


ROWS = {"item": [3, 1, 999, 4, 3], "title": ["Item 3", "Ünï 1", "Item 999", None, "again"]}


@pytest.mark.parametrize("columns", [("ID", "Name"), ("a", "b")])
def test_items_have_titles_from_a_catalogue(tmp_path: Path, columns: tuple[str, str]) -> None:
    pl.DataFrame(ROWS).rename(dict(zip(ROWS, columns, strict=True))).write_csv(tmp_path / "items.csv")
    named = {} if columns[0] == "ID" else dict(zip(ROWS, columns, strict=True))
    loader = Loader(catalogue=tmp_path / "items.csv", **named)  # type: ignore[arg-type]
    with Client(loaded(run_folder(), loader=loader)) as client:
        assert client.service.model.titles == {3: "Item 3", 1: "Ünï 1"}
        items = client.get("/recommend/1?by=bpr&viewed=true&k=30").json()["items"]
        assert {each["item"]: each["title"] for each in items if each["title"]} == client.service.model.titles
        assert client.get("/explain/1?item=3").json()["title"] == "Item 3"
        batch = client.post("/recommend", {"users": [2], "by": "bpr", "viewed": True, "k": 30}).json()["lists"]
        assert "Ünï 1" in {each["title"] for each in batch[0]["items"]}
