"""The explorer of the default run with a catalogue: attributes of items, and conditions on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from small_catalogue import ITEMS, KINDS, catalogue, trained
from small_service import Client, loaded, problem, run_folder

from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.inference.rules import Rules
from concf.service.loading import Loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the default, and a catalogue."""
    home = tmp_path_factory.mktemp("attributes")
    model = ConCF()
    Recommender.__init__(model, trained())
    model.save(home / "run")
    catalogue(ITEMS).write_parquet(home / "items.parquet")
    return home


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with Client(loaded(folder / "run", loader=Loader(catalogue=folder / "items.parquet"))) as client:
        yield client


def test_items_have_their_attributes(client: Client) -> None:
    assert client.get("/run").json()["columns"] == ["kind", "price"]
    items = client.get("/explore/1?k=20").json()["items"]
    assert len({item["item"] % 4 for item in items}) == 4
    for item in items:
        n = item["item"]
        assert item["attributes"]["kind"] == KINDS[n % 4]
        assert ("price" in item["attributes"]) == (n % 9 not in (7, 8))


def test_fixed_voters_and_a_re_ranker_are_explained(client: Client) -> None:
    model = client.service.model.recommender
    for item in range(0, ITEMS, 7):
        answer = client.get(f"/explain/3?item={item}").json()
        assert answer == model.explain(3, item) | {"title": f"No. {item}, {KINDS[item % 4]}"}
        assert (answer["reranked"] is None) == (answer["rank"] is None)
        assert answer["heads"][-1]["score"] is None


def test_without_a_catalogue_there_is_nothing_to_filter_by() -> None:
    with Client(loaded(run_folder())) as client:
        assert client.get("/run").json()["columns"] == []
        item = client.get("/explore/1").json()["items"][0]
        assert item["attributes"] == {}
        assert problem(client.get("/explore/1?where=price<3")) == (409, "refused_rule")


@pytest.mark.parametrize("held_out", [False, True])
def test_conditions_filter_every_list(client: Client, held_out: bool) -> None:
    where = "kind = 'jazz' and price < 1.3"
    few = client("GET", "/explore/5", params={"k": 5, "where": where, "held_out": held_out}).json()
    model = client.service.model.recommender
    wanted = {item for item in range(ITEMS) if item % 4 == 1 and item % 9 not in (7, 8) and 1 + item / 100 < 1.3}
    for each in (*few["lists"], few["consensus"]):
        items = [item["item"] for item in each["items"]]
        assert set(items) <= wanted
        if each["by"] in model.ranker.names and not held_out:
            rules = Rules(catalogue(ITEMS), where)
            expected = model.recommend([5], 5, by=each["by"], rules=rules, frame="arrow")
            assert items == expected["item_id"].to_pylist()
    assert few["history"] == client.get(f"/explore/5?k=5&held_out={held_out}").json()["history"]
    mine = client.post("/explore", {"history": [2, 6], "k": 3, "where": where}).json()
    for each in (*mine["lists"], mine["consensus"]):
        assert {item["item"] for item in each["items"]} <= wanted
        assert each["by"] not in model.ranker.names or len(each["items"]) == 3
