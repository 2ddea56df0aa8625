"""The explorer with the default run: the re-ranker drawn, two runs side by side, help in place, checked by axe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from axe import axe_script, violations
from browsing import Page, browser, expected_lists, serving
from selenium.webdriver import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from small_recipe import CLI, LOG, SMALL
from small_service import loaded

from concf.data.prepare import prepare
from concf.inference.titles import Catalogue
from concf.service.loading import Loader
from concf.training.config.presets import choose_settings
from concf.training.train import train

VOTERS = ["als-a", "als-b", "softmax-a", "rp3beta"]
GLOSSARY = Path(__file__).parents[1] / "docs" / "glossary.md"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of today's run, compared with yesterday's, which does not have the last user."""
    torch.set_num_threads(1)
    home, log = tmp_path_factory.mktemp("default"), LOG.draw(1)
    data = prepare(log, protocol="random", out=home / "data")
    before = prepare(log.filter(pl.col("user_id") < 47), protocol="random", out=home / "data-before")
    train(data, choose_settings("strong", SMALL), out=home / "today", data_folder=home / "data")
    fast = choose_settings("strong", SMALL | {"recipe": {"budget": "fast"}})
    train(before, fast, seed=1, out=home / "yesterday", data_folder=home / "data-before")
    (home / "titles.csv").write_text(
        "item,title\n" + "".join(f"{item},Walks of length {item}\n" for item in range(40)), encoding="utf-8"
    )
    service = loaded(home / "today", loader=Loader(catalogue=Catalogue(home / "titles.csv")))
    service.compared = home / "yesterday"
    with serving(service) as address:
        yield address


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(driver: WebDriver, address: str) -> Iterator[Page]:
    page = Page(driver, address)
    driver.set_window_size(1400, 900)
    yield page
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert not page.complaints()


def explained(view: dict[str, Any], item: Any) -> dict[str, Any]:
    (found,) = [each for each in view["items"] if each["item"] == item]
    return dict(found)


def test_names_are_short_and_different_and_fixed_voters_have_lists(page: Page) -> None:
    page.open("#user=3")
    view = page.ask("/explore/3")
    assert page.lists() == expected_lists(view)
    names = page.run("return [...document.querySelectorAll('.voters h3 .name')].map((each) => each.innerText)")
    assert names == ["als-a", "als-b", "softmax-a", "student", "rp3beta"]
    about = page.run("return [...document.querySelectorAll('.voters .about')].map((each) => each.innerText)")
    assert len(set(about)) == len(names)
    assert [each.partition(",")[0] for each in about][-2:] == ["distilled from the consensus", "random walks"]
    assert "cross-fitted" in page.text(".agreed header")
    assert not page.run("return document.querySelector('input[value=consistency]').checkVisibility()")  # there is none
    (listed,) = [each["items"] for each in view["lists"] if each["by"] == "rp3beta"]
    assert {each["score"] for each in listed} == {None}
    ranks = [
        next(v["rank"] for v in explained(view, each["item"])["votes"] if v["head"] == "rp3beta") for each in listed
    ]
    assert ranks == sorted(ranks)  # the order in which it voted


def test_what_lifted_an_item_is_drawn_and_said(page: Page) -> None:
    page.open("#user=5")
    view, groups = page.ask("/explore/5"), page.ask("/run")["reranked"]
    for place in (0, 3):
        item = view["consensus"]["items"][place]["item"]
        page.run("document.querySelectorAll('.agreed .row')[arguments[0]].click()", place)
        known = explained(view, item)
        terms = list(zip(groups, known["contributions"], strict=True))
        ranks = [value for voter in VOTERS for group, value in terms if group == {"voter": voter, "kind": "rank"}]
        kinds = [
            sum(value for group, value in terms if group["kind"] == kind)
            for kind in ("popularity", "score", "similarity")
        ]
        rows = page.run("return [...document.querySelectorAll('#why .bars:not(.cast) tr')].map((row) => row.innerText)")
        shown = [float(row.rsplit(maxsplit=1)[-1].replace("−", "-")) for row in rows]
        assert shown == pytest.approx([*ranks, *kinds], abs=0.0051)
        for row, vote in zip(rows, known["votes"], strict=False):
            named = f"rank {vote['rank']} by {vote['head']}" if vote["vote"] else f"not in {vote['head']}'s top 12"
            assert row.startswith(named)
        bars = "[...document.querySelectorAll('#why .bars:not(.cast) rect:first-child')]"
        wide = page.run(f"return {bars}.map((each) => Number(each.getAttribute('width')))")
        values = [abs(value) for value in (*ranks, *kinds)]
        assert wide == pytest.approx([max(wide) * value / max(values) for value in values], rel=1e-4)
        total = f"{sum(known['contributions']):+.2f}".replace("-", "−")
        assert f"{total} against this user's average candidate" in page.text("#why")
        because = page.text("#why .because")
        assert because.startswith("Liked because of ")
        assert all(
            f"Walks of length {each['item']} {100 * each['share']:.0f} %" in because for each in known["because"]
        )


def test_two_runs_stand_side_by_side(page: Page) -> None:
    page.open("#user=5")
    page.click("#compare")
    page.until("document.querySelector('#compared .row')")
    now, before = page.ask("/explore/5"), page.ask("/explore/5?compared=true")
    lists = page.lists()
    assert lists["compared"] == [str(each["item"]) for each in before["consensus"]["items"]]
    ranks = {each["item"]: each["rank"] for each in before["consensus"]["items"]}
    marks = page.run("return [...document.querySelectorAll('.agreed .moved')].map((each) => each.innerText)")
    for each, mark in zip(now["consensus"]["items"], marks, strict=True):
        was = ranks.get(each["item"])
        by = 0 if was is None else was - each["rank"]
        assert mark == ("new" if was is None else "=" if by == 0 else f"▲{by}" if by > 0 else f"▼{-by}")
    assert "compare=yes" in page.hash()
    assert page.ask("/run?compared=true")["name"] == "yesterday"
    page.open("#user=47&compare=yes")
    assert "yesterday: no user is called 47" in page.text("#compared")
    assert page.lists() == expected_lists(page.ask("/explore/47"))
    assert len(page.complaints()) == 1  # that the user is not found
    page.open("#history=3,7&compare=yes")
    assert page.lists()["compared"]


def test_what_is_no_run_is_not_compared_with(concf: CLI, tmp_path: Path) -> None:
    code, output, err = concf("serve", tmp_path / "run", "--compare", tmp_path)
    assert (code, output, f"{tmp_path}: not a run (no run.json)" in err) == (2, "", True)


def test_similar_users_and_items_are_a_click_away(page: Page) -> None:
    page.open("#user=5")
    page.until("!document.getElementById('neighbours').hidden")
    near = [str(each["user"]) for each in page.ask("/similar-users/5?k=5")["users"]]
    assert page.run("return [...document.querySelectorAll('#neighbours button')].map((each) => each.innerText)") == near
    page.click("#neighbours button")
    page.until("location.hash === arguments[0]", f"#user={near[0]}")
    page.settle()
    item = page.run("return document.querySelector('.row.same').dataset.item")
    page.run("document.querySelector('.similar button').click()")
    page.until("document.querySelector('.similar li')")
    similar = [each["title"] for each in page.ask(f"/similar/{item}?k=5")["items"]]
    shown = page.run("return [...document.querySelectorAll('.similar li')].map((each) => each.firstChild.textContent)")
    assert shown == similar


def test_empty_states_say_what_to_do(page: Page) -> None:
    page.open("#history=")
    page.until("document.querySelector('.past .empty button')")
    first = page.ask("/items?limit=3")[0]
    assert first["title"] in page.text(".past .empty")
    page.click(".past .empty button")
    page.until("location.hash === arguments[0]", f"#history={first['id']}")
    page.open("#user=nobody")
    assert "no user is called" in page.text("[role=alert]")
    page.click("#agreed .empty button")
    page.until("/^#user=[0-9]+$/.test(location.hash)")
    page.settle()
    assert page.lists()
    page.click("#user")
    page.write_over("zzz")
    page.until("!document.getElementById('user-options').hidden")
    page.until("document.getElementById('user-options').innerText.startsWith('No match: type')")
    page.complaints()  # of the user that is not found


def test_a_term_is_explained_by_the_glossary(page: Page) -> None:
    page.open("#user=5")
    page.tab_to(".agreed .term")
    assert page.run("return document.querySelectorAll('.tip:popover-open').length") == 0
    page.press(Keys.ENTER)
    page.until("document.querySelector('.tip:popover-open')?.innerText.startsWith('Re-ranker A linear model')")
    page.press(Keys.ESCAPE)
    page.until("!document.querySelector('.tip:popover-open')")


def test_sentences_of_the_page_are_the_glossarys() -> None:
    script = (files("concf.service.explorer") / "assets" / "dom.js").read_text(encoding="utf-8")
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", GLOSSARY.read_text(encoding="utf-8"))
    words = " ".join(text.replace("`", "").replace("*", "").split())
    terms = dict(re.findall(r'^  "([^"]+)": "([^"]+)",$', script, re.MULTILINE))
    assert len(terms) > 10
    for name, sentence in terms.items():
        assert f"### {name} {sentence}" in words, name
    used = {name for each in (files("concf.service.explorer") / "assets").iterdir() if each.name.endswith(".js")
            for name in re.findall(r'term\("([^"]+)"', each.read_text(encoding="utf-8"))}  # fmt: skip
    assert used - {"Test part", "Validation part"} <= terms.keys()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(page: Page, scheme: str, request: pytest.FixtureRequest) -> None:
    script = axe_script(request.config.cache)  # type: ignore[arg-type]
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for address in ("#user=5&held-out=yes&compare=yes", "#history=3,7&colour=voters"):
        page.open(address)
        assert violations(page, script) == [], address
    if scheme == "light":
        page.open("#history=")
    else:
        page.driver.get(f"{page.service}/docs")
        page.until("document.querySelectorAll('details').length")
        page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert violations(page, script) == []


def test_the_api_is_described_without_a_network(page: Page) -> None:
    page.driver.get(f"{page.service}/docs")
    page.until("document.querySelectorAll('details').length")
    operations = {
        (method.upper(), path) for path, each in page.ask("/openapi.json")["paths"].items() for method in each
    }
    shown = page.run(
        "return [...document.querySelectorAll('summary')].map(({ children: [method, path] }) =>"
        "[method.textContent, path.textContent])"
    )
    assert {tuple(each) for each in shown} == operations
    assert "curl" in page.run("return document.querySelector('details .try + pre').textContent")
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.run("return document.documentElement.scrollWidth") == 390
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_description_of_the_api_can_try_a_call(page: Page) -> None:
    page.driver.get(f"{page.service}/docs")
    page.until("document.querySelectorAll('details').length")
    for summary, body in (("GET /similar-users/{user}", None), ("POST /explore", '{"history": [3], "k": 2}')):
        page.run(
            "window.form = [...document.querySelectorAll('details')].find((each) => each.querySelector('summary')"
            ".innerText.replace(/\\s+/g, ' ').startsWith(arguments[0])).querySelector('form');"
            "form.closest('details').open = true;"
            "if (arguments[1]) form.querySelector('textarea').value = arguments[1];"
            "form.requestSubmit()",
            summary, body,
        )  # fmt: skip
        page.until("form.querySelector('pre').innerText.includes('}')")
        status, _, answer = page.run("return form.querySelector('pre').innerText").partition("\n")
        path = page.run("return form.querySelector('input').value")
        assert (status, json.loads(answer)) == ("200", page.ask(f"/{path}", body))
