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
from small_service import Client, LocalPool, LocalService, loaded, problem, run_folder

from concf.inference.titles import Catalogue
from concf.models import load_run
from concf.runs.checkpoint import CHECKPOINT, RUN, RunFolder
from concf.service.loading import Loader, shortened


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
    answer = client.reload({"run": str(other)}).json()
    assert answer == {"run": other.name, "id": client.service.run_id, "version": 2}
    wanted = loaded(other).model.recommender.recommend(1, frame="polars")
    assert [each["item"] for each in lists(client)] == wanted["item_id"].to_list()
    assert lists(client) != before
    assert client.get("/ready").json()["run"] == client.get("/run").json()["name"] == other.name
    assert "concf_run_version 2.0" in client.get("/metrics").text
    gc.collect()
    assert old() is None  # the run before is not kept
    assert problem(client.reload({"run": str(home / "none")})) == (409, "refused_run")
    assert client.reload({}).json() == answer | {"version": 3}  # without a name, the one that is served


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
    assert problem(client.reload({})) == (409, "refused_run")
    assert lists(client) == before
    assert client.get("/ready").status_code == 200
    assert client.service.version == 1


def test_reloads_that_wait_for_one_folder_become_one_and_each_answers_with_its_own() -> None:
    folders, go = list[Path](), asyncio.Event()

    class Slow(LocalPool):
        async def start(self) -> None:
            await go.wait()
            folders.append(self.folder)
            await super().start()

    service = LocalService(Loader(), run_folder(seed=0), make=Slow)

    async def many() -> list[Any]:
        tasks = [asyncio.create_task(service.reload())]
        await asyncio.sleep(0.05)  # it is being loaded
        tasks += [asyncio.create_task(service.reload(run_folder(seed=seed))) for seed in [0] * 9 + [1] * 5]
        await asyncio.sleep(0.05)
        tasks[3].cancel()  # who has left is not waited for
        go.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    first, *rest = asyncio.run(many())
    assert isinstance(rest.pop(2), asyncio.CancelledError)
    assert first["version"] == 1
    names = [(each["version"], each["run"]) for each in rest]
    assert names == [(2, run_folder(seed=0).name)] * 8 + [(3, run_folder(seed=1).name)] * 5
    assert folders == [run_folder(seed=seed) for seed in (0, 0, 1)]


def test_text_spells_an_id_as_the_log_has_them() -> None:
    integers, text = (loaded(run_folder(kind)).model for kind in ("integers", "text"))
    assert [integers.user(each) for each in ("5", "-5", "05", "5.0", " 5", "x", "9" * 19, "9" * 20)] == [
        5, -5, "05", "5.0", " 5", "x", int("9" * 19), "9" * 20,
    ]  # fmt: skip
    assert text.item("5") == "5"
    assert (shortened(10**5000)[:10], len(shortened("x" * 5000)) < 300) == ("an integer", True)


ROWS = {"item": [3, 1, 999, 4, 3], "title": ["Item 3", "Ünï 1", "Item 999", None, "again"]}


@pytest.mark.parametrize("columns", [("ID", "Name"), ("a", "b")])
def test_items_have_titles_from_a_catalogue(tmp_path: Path, columns: tuple[str, str]) -> None:
    pl.DataFrame(ROWS).rename(dict(zip(ROWS, columns, strict=True))).write_csv(tmp_path / "items.csv")
    named: Any = columns if columns == ("a", "b") else ()
    catalogue = Catalogue(tmp_path / "items.csv", *named)
    with Client(loaded(run_folder(), loader=Loader(catalogue=catalogue))) as client:
        assert client.service.model.titles == {3: "Item 3", 1: "Ünï 1"}
        items = client.get("/recommend/1?by=bpr&viewed=true&k=30").json()["items"]
        assert {each["item"]: each["title"] for each in items if each["title"]} == client.service.model.titles
        assert client.get("/explain/1/3").json()["title"] == "Item 3"
        batch = client.post("/recommend", {"users": [2], "by": "bpr", "viewed": True, "k": 30}).json()["lists"]
        assert "Ünï 1" in {each["title"] for each in batch[0]["items"]}
