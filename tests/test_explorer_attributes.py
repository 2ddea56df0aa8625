"""The explorer with a catalogue: attributes and pictures of items, and conditions on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from axe import axe_script, violations
from browsing import Page, browser, expected_lists, serving
from selenium.webdriver import Keys
from small_catalogue import ITEMS, KINDS, catalogue, trained
from small_recipe import CLI
from small_service import Client, loaded, problem, run_folder

from concf.errors import DataError
from concf.inference.estimator import ConCF
from concf.inference.recommender import Recommender
from concf.inference.titles import Catalogue
from concf.service.explorer.search import allowed
from concf.service.http.pages import POLICY
from concf.service.loading import Loader

SOURCE = "https://images.example.com"
PICTURES = (f"{SOURCE}/a.png", "/explorer/favicon.svg", "https://elsewhere.example/a.png", None)
HOSTILE = "<img src=x onerror='window.harmed=1'>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the default, and a catalogue with pictures."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("attributes")
    model = ConCF()
    Recommender.__init__(model, trained())
    model.save(home / "run")
    pictures = pl.Series("picture", [PICTURES[n % 4] for n in range(ITEMS)], dtype=pl.String)
    notes = pl.Series("remark", [HOSTILE if n % 2 else None for n in range(ITEMS)], dtype=pl.String)
    catalogue(ITEMS).with_columns(pictures, notes).write_parquet(home / "items.parquet")
    return home


def loader(folder: Path, *sources: str) -> Loader:
    return Loader(catalogue=Catalogue(folder / "items.parquet", image="picture", image_sources=sources))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with Client(loaded(folder / "run", loader=loader(folder, SOURCE)), images=(SOURCE,)) as client:
        yield client


def test_items_have_their_attributes_and_the_pictures_that_are_allowed(client: Client) -> None:
    assert client.get("/run").json()["columns"] == ["kind", "price", "remark"]
    items = client.get("/explore/1?k=20").json()["items"]
    assert len({item["item"] % 4 for item in items}) == 4
    for item in items:
        n = item["item"]
        assert item["attributes"]["kind"] == KINDS[n % 4]
        assert ("price" in item["attributes"]) == (n % 9 not in (7, 8))
        assert item["picture"] == (PICTURES[n % 4] if n % 4 < 2 else None)


def test_without_a_source_only_pictures_of_this_site_are_shown(folder: Path) -> None:
    with Client(loaded(folder / "run", loader=loader(folder))) as client:
        items = client.get("/explore/1?k=20").json()["items"]
        assert {item["picture"] for item in items} == {None, PICTURES[1]}
        assert client.get("/").headers["content-security-policy"] == POLICY


def test_without_a_catalogue_there_is_nothing_to_filter_by() -> None:
    with Client(loaded(run_folder())) as client:
        assert client.get("/run").json()["columns"] == []
        item = client.get("/explore/1").json()["items"][0]
        assert (item["attributes"], item["picture"]) == ({}, None)
        assert problem(client.get("/explore/1?where=price<3")) == (409, "refused_rule")


@pytest.mark.parametrize(
    ("address", "right"),
    [
        (f"{SOURCE}/a.png", True), ("/a.png", True), (f"{SOURCE}.evil.example/a.png", False),
        (f"{SOURCE}@evil/a", False), ("//evil.example/a", False), ("/\\evil.example/a", False),
        ("javascript:alert(1)", False), ("data:image/png,", False),
        ("http://images.example.com/a.png", False), ("a.png", False), ("", False),
    ],
)  # fmt: skip
def test_addresses_of_pictures(address: str, right: bool) -> None:
    assert allowed(address, (SOURCE,)) is right


def test_the_policy_names_the_sources_and_nothing_else(client: Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert policy == f"{POLICY}; img-src 'self' {SOURCE}"


@pytest.mark.parametrize("held_out", [False, True])
def test_conditions_filter_every_list(client: Client, held_out: bool) -> None:
    where = "kind = 'jazz' and price < 1.3"
    view = client.get(f"/explore/5?k=5&held_out={held_out}", params=None).json()
    few = client("GET", "/explore/5", params={"k": 5, "where": where, "held_out": held_out}).json()
    model = client.service.model.recommender
    wanted = {item for item in range(ITEMS) if item % 4 == 1 and item % 9 not in (7, 8) and 1 + item / 100 < 1.3}
    for each in (*few["lists"], few["consensus"]):
        assert {item["item"] for item in each["items"]} <= wanted
        if each["by"] in model.ranker.names and not held_out:
            rules: dict[str, Any] = {"catalogue": catalogue(ITEMS), "where": where, "by": each["by"]}
            assert [item["item"] for item in each["items"]] == model.recommend([5], 5, frame="arrow", **rules)[
                "item_id"
            ].to_pylist()
    assert few["history"] == view["history"]
    mine = client.post("/explore", {"history": [2, 6], "k": 3, "where": where}).json()
    assert {item["item"] for each in (*mine["lists"], mine["consensus"]) for item in each["items"]} <= wanted
    ranked = [each for each in (*mine["lists"], mine["consensus"]) if each["by"] in model.ranker.names]
    assert all(len(each["items"]) == 3 for each in ranked)


@pytest.mark.parametrize("where", ["colour = 3", "price <", "lpad(kind, 100000000, 'x') = 'x'", "price > 1000"])
def test_bad_conditions_are_refused(client: Client, where: str) -> None:
    assert problem(client("GET", "/explore/5", params={"where": where})) == (409, "refused_rule")
    assert problem(client.post("/explore", {"history": [2], "where": where})) == (409, "refused_rule")
    assert problem(client("GET", "/explore/5", params={"where": "x" * 1001})) == (422, "bad_request")


def test_columns_and_sources_that_are_none(folder: Path, concf: CLI) -> None:
    with pytest.raises(DataError, match="no column 'photo' for the image"):
        Loader(catalogue=Catalogue(folder / "items.parquet", image="photo"))(folder / "run", 1)
    for source in ("http://images.example.com", "https://a.example/path", "*", "https://a;script-src *"):
        code, _, error = concf("serve", folder / "run", "--image-source", source)
        assert (code, "expected an origin" in error) == (2, True)
    code, _, error = concf("serve", folder / "run", "--catalogue-image", "picture")
    assert (code, "give --catalogue too" in error) == (2, True)


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    service = loaded(folder / "run", loader=loader(folder))
    with serving(service) as address, browser(tmp_path_factory.mktemp("profile")) as driver:
        yield Page(driver, address)


@pytest.mark.parametrize("size", [(1400, 900), (390, 844), (320, 640)])
def test_the_page_shows_attributes_pictures_and_filters(page: Page, size: tuple[int, int], tmp_path: Path) -> None:
    shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 800}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    page.open("#user=1&k=5")
    assert page.text("#columns") == "Attributes: kind, price, remark"
    page.run("document.getElementById('where').focus()")
    page.write_over("kind = 'jazz'")
    page.press(Keys.ENTER)
    page.until("location.hash.includes('where=')")
    page.settle()
    assert page.lists() == expected_lists(page.ask("/explore/1?k=5&where=kind%20=%20'jazz'"))
    page.run("document.querySelector('#agreed .row').click()")
    page.until("!document.getElementById('why').hidden")
    assert "kind jazz" in page.text(".attributes").replace("\n", " ")
    assert HOSTILE in page.text(".attributes")
    assert page.run("return window.harmed") is None
    page.until("document.querySelector('.picture').naturalWidth > 0")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.driver.save_screenshot(str(tmp_path / f"attributes-{size[0]}.png"))
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert not page.complaints()


def test_a_bad_condition_is_said_on_the_page(page: Page) -> None:
    page.open("#user=1&k=5&where=colour%3D3")
    page.until("document.querySelector('#message p').textContent.includes(\"no column is called 'colour'\")")
    assert all("409" in each for each in page.complaints())


def test_the_page_passes_axe(page: Page, pytestconfig: pytest.Config) -> None:
    script = axe_script(pytestconfig.cache)  # type: ignore[arg-type]
    page.open("#user=1&k=5")
    assert violations(page, script) == []
