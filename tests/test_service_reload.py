"""Another run takes the place of the one that is served, or is refused; and what items are called."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from small_service import Client, loaded, problem, run_folder

from concf.errors import ConcfError, DataError
from concf.inference.titles import Catalogue
from concf.service.loading import Loader, Served, Service, shortened
from concf.training.checkpoint import CHECKPOINT, RUN, RunFolder, load_run

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder(), tmp_path / "run"))


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with Client(loaded(home)) as client:
        yield client


def lists(client: Client) -> Any:
    return client.get("/recommend/1").json()["items"]


def test_another_run_takes_the_place(client: Client) -> None:
    before, other = lists(client), run_folder(seed=1)
    answer = client.reload({"run": str(other)})
    assert answer.json() == {"run": other.name, "version": 2}
    assert lists(client) != before
    wanted = loaded(other).model.recommender.recommend(1, frame="polars")
    assert [each["item"] for each in lists(client)] == wanted["item_id"].to_list()
    assert client.get("/ready").json()["run"] == client.get("/run").json()["name"] == other.name
    assert "concf_run_version 2.0" in client.get("/metrics").text


@pytest.mark.parametrize("body", [{}, {"run": None}])
def test_without_a_name_the_same_folder_is_read_again(client: Client, home: Path, body: Any) -> None:
    before = lists(client)
    shutil.rmtree(home)
    shutil.copytree(run_folder(seed=1), home)
    answer = client.reload(body)
    assert answer.json() == {"run": home.name, "version": 2}
    assert lists(client) != before


def test_the_run_before_is_not_kept(client: Client) -> None:
    before = weakref.ref(client.service.model)
    for path in ("/recommend/1?by=bpr", "/users?q=1", "/items?q=1", "/explore/1"):
        assert client.get(path).status_code == 200
    client.reload({})
    gc.collect()
    assert before() is None


def test_the_first_history_does_not_wait_for_what_all_share(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.training.fold_in.Folding.learn", lambda *_: pytest.fail("solved for a request"))
    for by in client.service.model.recommender.ranker.names:
        assert client.post("/recommend", {"history": [1], "by": by}).status_code == 200
    assert client.post("/explore", {"history": [1]}).status_code == 200


def nan(home: Path) -> None:
    run = load_run(home)
    run.best["bpr"].state["user"][0, 3, 0] = torch.nan
    RunFolder(home).save(run)


def without_epochs(home: Path) -> None:
    run = load_run(home)
    run.best.clear()
    RunFolder(home).save(run)


def other_data(home: Path) -> None:
    shutil.rmtree(home / "data")
    shutil.copytree(run_folder("text") / "data", home / "data")


def newer(home: Path) -> None:
    (home / RUN).write_text(json.dumps(json.loads((home / RUN).read_text()) | {"format": 99}))


BREAKS: dict[str, Any] = {
    "gone": shutil.rmtree,
    "empty": lambda home: [shutil.rmtree(home), home.mkdir()],
    "cut short": lambda home: (home / CHECKPOINT).write_bytes((home / CHECKPOINT).read_bytes()[:1000]),
    "no checkpoint": lambda home: (home / CHECKPOINT).unlink(),
    "not a run": lambda home: (home / RUN).write_text("[]"),
    "newer": newer,
    "no data": lambda home: shutil.rmtree(home / "data"),
    "other data": other_data,
    "not finite": nan,
    "no epoch yet": without_epochs,
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_run_that_cannot_be_served_is_refused_and_the_old_one_stays(client: Client, home: Path, name: str) -> None:
    before = lists(client)
    BREAKS[name](home)
    answer = client.reload({})
    assert problem(answer) == (409, "refused_run")
    assert lists(client) == before
    assert client.get("/ready").status_code == 200
    assert "concf_run_version 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("path", ["", ".", "/", "\0", "a" * 5000, "no/such", "/dev/null", "/proc/self/mem", "ü"])
def test_a_path_that_is_no_run_is_refused(client: Client, path: str) -> None:
    assert problem(client.reload({"run": path})) == (409, "refused_run")
    assert problem(client.reload({"run": 5})) == (422, "bad_request")
    assert problem(client.reload({"folder": path})) == (422, "bad_request")


def test_after_a_refusal_the_next_reload_is_of_the_run_that_is_served(client: Client, tmp_path: Path) -> None:
    before = client.service.folder
    assert problem(client.reload({"run": str(tmp_path / "none")})) == (409, "refused_run")
    assert client.service.folder == before
    assert client.reload({}).json() == {"run": before.name, "version": 2}


def test_a_request_under_way_stays_with_the_run_it_began_with(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.service.batching.IN_LOOP", 0)
    old = client.get("/recommend/1?by=bpr").json()["items"]
    model = client.service.model.recommender
    ask, service = model.short, client.service

    def slowly(*words: Any) -> Any:
        service.reload(run_folder(seed=1))
        return ask(*words)

    service.model.kept.clear()
    monkeypatch.setattr(model, "short", slowly)
    assert client.get("/recommend/1?by=bpr").json()["items"] == old
    assert service.version == 2
    assert client.get("/recommend/1?by=bpr").json()["items"] != old


def test_reloads_come_one_after_the_other() -> None:
    at_work, most = 0, 0

    def load(folder: Path, version: int) -> Served:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        served = Loader()(folder, version)
        at_work -= 1
        return served

    service = Service(load, run_folder())
    service.reload()

    async def many() -> list[Served]:
        return list(await asyncio.gather(*(asyncio.to_thread(service.reload) for _ in range(6))))

    assert sorted(served.version for served in asyncio.run(many())) == [2, 3, 4, 5, 6, 7]
    assert (service.version, most) == (7, 1)


def test_a_first_run_that_cannot_be_served_leaves_the_service_without(tmp_path: Path) -> None:
    service = Service(Loader(), tmp_path)
    with pytest.raises(ConcfError, match="not a run"):
        service.reload()
    assert service.version == 0
    with pytest.raises(ConcfError, match="being loaded"):
        _ = service.model


def test_whatever_goes_wrong_with_another_run_the_old_one_stays() -> None:
    def load(folder: Path, version: int) -> Served:
        return Loader()(folder, version) if version == 1 else 1 / 0  # type: ignore[return-value]

    service = Service(load, run_folder())
    service.reload()
    with Client(service) as client:
        answer = client.reload({})
        assert problem(answer) == (409, "refused_run")
        assert answer.json()["detail"] == "ZeroDivisionError: division by zero"
        assert client.get("/recommend/1").status_code == 200


def test_text_spells_an_id_as_the_log_has_them() -> None:
    integers, text = (loaded(run_folder(kind)).model for kind in ("integers", "text"))
    assert [integers.user(each) for each in ("5", "-5", "05", "5.0", " 5", "x", "9" * 19, "9" * 20)] == [
        5, -5, "05", "5.0", " 5", "x", int("9" * 19), "9" * 20,
    ]  # fmt: skip
    assert [text.item(each) for each in ("5", "x")] == ["5", "x"]
    assert shortened(10**5000).startswith("an integer")
    assert len(shortened("x" * 5000)) < 300


ROWS = {"item": [3, 1, 999, 4, 3], "title": ["Item 3", "Ünï 1", "Item 999", None, "again"]}


def written(frame: pl.DataFrame, path: Path) -> Path:
    writers: dict[str, Any] = {
        ".csv": frame.write_csv,
        ".tsv": lambda path: frame.write_csv(path, separator="\t"),
        ".parquet": frame.write_parquet,
        ".jsonl": frame.write_ndjson,
    }
    writers[path.suffix](path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("columns", [("item", "title"), ("ID", "Name"), ("item_id", "title")])
def test_items_have_titles_from_a_catalogue(
    tmp_path: Path, suffix: str, columns: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pl.DataFrame(ROWS).rename(dict(zip(ROWS, columns, strict=True)))
    service = loaded(run_folder(), loader=Loader(catalogue=Catalogue(written(frame, tmp_path / f"items{suffix}"))))
    assert service.model.titles == {3: "Item 3", 1: "Ünï 1"}
    assert "titles for 2 of the 30 items of the log; 1 others are not in it" in capsys.readouterr().err
    with Client(service) as client:
        items = client.get("/recommend/1?by=bpr&viewed=true&k=30").json()["items"]
        assert {each["item"]: each["title"] for each in items if each["title"]} == service.model.titles
        assert client.get("/explain/1/3").json()["title"] == "Item 3"
        assert {each["title"] for each in client.get("/similar/3?k=29").json()["items"]} == {"Ünï 1", None}
        batch = client.post("/recommend", {"users": [2], "by": "bpr", "viewed": True, "k": 30}).json()["lists"]
        assert "Ünï 1" in {each["title"] for each in batch[0]["items"]}


def test_titles_of_text_ids_and_of_columns_that_are_named(tmp_path: Path) -> None:
    frame = pl.DataFrame({"what": ["a/b", "5", "名前"], "item": ["x", "y", "z"], "called": ["one", "two", " "]})
    model = loaded(run_folder("text")).model.recommender
    for suffix in (".csv", ".parquet"):
        catalogue = Catalogue(written(frame, tmp_path / f"items{suffix}"), "what", "called")
        known = set(model.item_ids.values.tolist())
        assert catalogue.titles(model.item_ids) == {
            item: title for item, title in (("a/b", "one"), ("5", "two")) if item in known
        }


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.csv", None, "no such file"),
        ("items.xlsx", b"x", "choose a .csv"),
        ("items.csv", b"a,b\n1,2\n", "no column for the item among"),
        ("items.csv", b"item,b\n1,2\n", "--catalogue-title"),
        ("items.csv", b"", "cannot be read"),
        ("items.csv", b"item,title\n1,2,3,4\n", "cannot be read"),
        ("items.csv", b"item,title\n1,\xff\xfe\n", "cannot be read"),
        ("items.parquet", b"PAR1", "cannot be read"),
        ("items.jsonl", b"[1, 2", "cannot be read"),
    ],
)
def test_a_bad_catalogue_is_refused_in_words(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^{tmp_path / name}.*{words}"):
        Catalogue(tmp_path / name).titles(loaded(run_folder()).model.recommender.item_ids)
    with pytest.raises(DataError, match="no column 'x' for the title"):
        Catalogue(written(pl.DataFrame(ROWS), tmp_path / "good.csv"), title="x").titles(
            loaded(run_folder()).model.recommender.item_ids
        )
