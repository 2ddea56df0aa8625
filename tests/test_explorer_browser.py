"""The explorer in a browser: by keyboard, on a phone, with hostile titles, with a token; it shows what the API says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from browsing import Page, axe_script, browser, expected_lists, on_a_screen, serving, violations
from selenium.webdriver import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from small_run import SMALL
from small_service import loaded

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.models import choose_settings, train
from concf.service.loading import Loader
from concf.service.pool import Service

TOKEN = "a-token-of-this-test"
HOSTILE = '<img src="x" onerror="window.harmed = true"><script>window.harmed = true</script> & "more"'
LARGE = 2**53 + 1  # an id that a double does not hold


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explorer")


@pytest.fixture(scope="module")
def reference(home: Path) -> Service:
    log = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
    log = log.select(user=pl.col("user_id") + LARGE, item=500 - pl.col("item_id") * 3)
    data = prepare(log, protocol="random", out=home / "small")
    chosen = choose_settings("reference", words=(*SMALL, "training.epochs=4", "model.initial_std=0.5"))
    train(data, chosen, out=home / "run")
    items = list(range(413, 501, 3))
    titles = [HOSTILE if item % 2 else f"Item number {item}" for item in items]
    titles[3:6] = ["כותר (1) מימין", "z" + "\u0301\u0302\u0303" * 30, "مرحبا 2"]
    pl.DataFrame({"item": items, "title": titles, "price": items}).write_csv(home / "titles.csv")
    return loaded(home / "run", loader=Loader(catalogue=home / "titles.csv"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(driver: WebDriver, reference: Service) -> Iterator[Page]:
    with serving(reference) as address:
        page = Page(driver, address)
        page.complaints()
        driver.set_window_size(1400, 900)
        yield page
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        assert not page.complaints()


def known(view: dict[str, Any], item: Any) -> dict[str, Any]:
    return next(each for each in view["items"] if each["item"] == item)


def test_a_user_is_picked_by_keyboard_alone(page: Page) -> None:
    page.open()
    users = [each["id"] for each in page.ask("/users?limit=40")]
    assert page.hash() == f"#user={users[0]}"  # someone is shown at first
    assert page.lists() == expected_lists(page.ask(f"/explore/{users[0]}"))
    page.tab_to("#user")
    page.write_over(str(LARGE)[:-2])
    page.until("document.querySelectorAll('#user-options [role=option]').length > 2")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    chosen = page.run(
        "return document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))"
        ".firstChild.textContent"
    )
    assert int(chosen) in users
    page.press(Keys.ENTER)
    page.arrive(f"#user={chosen}")
    assert page.lists() == expected_lists(page.ask(f"/explore/{chosen}"))
    page.tab_to("input[name=k]")
    page.press(Keys.ARROW_RIGHT)
    page.arrive(f"#user={chosen}&k=20")
    assert page.lists() == expected_lists(page.ask(f"/explore/{chosen}?k=20"))
    page.driver.back()
    page.arrive(f"#user={users[0]}")
    page.until("document.getElementById('user').value === arguments[0]", str(users[0]))
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{users[0]}"))


def test_an_item_is_shown_in_all_lists_with_its_votes(page: Page) -> None:
    user = page.ask("/users?limit=5")[4]["id"]
    view = page.ask(f"/explore/{user}?held_out=true")
    page.open(f"#user={user}&held-out=yes")
    page.tab_to(".agreed .row")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    item = page.run("return document.activeElement.dataset.item")
    same = page.run("return [...document.querySelectorAll('.row.same')].map((row) => row.dataset.item)")
    assert same == [item] * sum(item in listed for listed in page.lists().values())
    cards = page.run("return [...document.querySelectorAll('#why .card')].map((card) => card.innerText)")
    for card, vote in zip(cards, known(view, int(item))["votes"], strict=True):
        assert (f"rank {vote['rank']}" in card, "no vote" in card) == (True, vote["vote"] == 0)
    rows = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText.split(/\\s+/))"
    assert page.run(rows, ".agreed .row .cells") == [
        [str(vote["rank"]) if vote["vote"] else "·" for vote in known(view, each["item"])["votes"]]
        for each in view["consensus"]["items"]
    ]
    listed = [each for part in (view["consensus"], *view["lists"]) for each in part["items"]]
    hits = [known(view, each["item"])["part"] for each in listed].count("test")  # what the test part has
    assert page.run(rows, ".out.test") == [["hit"]] * hits != []
    page.press(Keys.ESCAPE)
    assert page.run("return document.getElementById('why').hidden")


def test_a_history_is_built_by_hand_and_hostile_titles_are_only_text(page: Page) -> None:
    page.open()
    page.click("input[value=history]")
    page.arrive("#history=")
    assert page.lists() == expected_lists(page.ask("/explore", '{"history": []}'))
    page.tab_to("#item")
    for words, address in (("number 446", "#history=446"), ("491", "#history=446,491")):
        page.press(words)
        page.until("document.querySelectorAll('#item-options [role=option]').length === 1")
        page.press(Keys.ENTER)
        page.arrive(address)
    assert page.lists() == expected_lists(page.ask("/explore", '{"history": [446, 491]}'))
    page.click("#history button")
    page.arrive("#history=491")
    assert page.history() == [HOSTILE]
    assert page.lists() == expected_lists(page.ask("/explore", '{"history": [491]}'))
    page.run("for (const row of document.querySelectorAll('.row')) row.focus()")
    assert HOSTILE in page.run("return document.getElementById('lists').textContent")
    page.open("#history=500," + quote(HOSTILE, safe=""))  # an id that is none: the note says it
    assert "<img" in page.text("#note")
    assert not page.run("return window.harmed || document.querySelectorAll('img, main script').length")


def test_on_a_phone_nothing_is_wider_than_it(page: Page) -> None:
    on_a_screen(page.driver, 320, dark=True)
    for address in (f"#user={LARGE + 5}&k=50&held-out=yes", "#history=413,416,419,422,425,428", "docs.html"):
        page.open(address)
        page.run("document.querySelector('.row, details').click()")
        assert page.run("return [document.documentElement.scrollWidth, innerWidth]") == [320, 320]


def test_on_a_phone_the_panel_is_below_the_row_and_the_legend_above_the_lists(page: Page) -> None:
    on_a_screen(page.driver, 390, dark=False)
    page.open(f"#user={LARGE + 5}&k=20")
    for place in (0, 5, -1):
        page.run("[...document.querySelectorAll('.agreed .row')].at(arguments[0]).focus()", place)
        page.run("document.activeElement.click()")
        page.until("!document.getElementById('why').hidden")
        bottom = "document.activeElement.getBoundingClientRect().bottom"
        page.until(f"{bottom} <= document.getElementById('why').getBoundingClientRect().top + 1")
        assert page.run(f"return {bottom}") > 0
        page.press(Keys.ESCAPE)
    top = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    assert page.run(top, "legend") < page.run(top, "agreed")


def test_a_bad_filter_keeps_the_lists_and_an_unknown_user_may_be_a_new_one(page: Page) -> None:
    page.open()
    before = page.lists()
    letters = "return [...document.querySelectorAll('.agreed header .cells span')].map((e) => e.innerText)"
    *signs, score = page.run(letters)
    assert (signs, score) == ([chr(65 + place) for place in range(len(signs))], "score")
    columns = page.text(".agreed header p + p")
    assert all(f"{sign} {name}" in columns for sign, name in zip(signs, page.ask("/run")["voters"], strict=True))
    for where in ("colour = 3", "price ~ 'x'"):
        page.click("#where")
        page.write_over(where)
        page.press(Keys.ENTER)
        page.until("document.getElementById('filter-error').textContent.includes('filter')")
        assert (page.lists(), page.run("return document.getElementById('message').hidden")) == (before, True)
    page.write_over("price < 450")
    page.press(Keys.ENTER)
    page.until("document.getElementById('filter-error').hidden")
    page.settle()
    assert page.lists() != before
    page.open("#user=nobody")
    page.click("#agreed .empty button")
    page.arrive("#history=")
    page.complaints()  # of the requests that were refused


@pytest.fixture
def locked(reference: Service) -> Iterator[str]:
    with serving(reference, TOKEN) as address:
        yield address


def test_a_token_is_asked_for_and_kept_for_the_session(driver: WebDriver, locked: str) -> None:
    page = Page(driver, locked)
    driver.get(f"{page.service}/")
    page.until("!document.getElementById('token').hidden")
    page.press("wrong", Keys.ENTER)
    page.until("document.querySelector('#token label').textContent.includes('wrong')")
    page.click("#token-text")
    page.press(TOKEN, Keys.ENTER)
    page.settle()
    user = page.ask("/users?limit=1", token=TOKEN)[0]["id"]
    assert page.lists() == expected_lists(page.ask(f"/explore/{user}", token=TOKEN))
    assert page.run("return [localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
    driver.refresh()
    page.settle()
    assert page.lists()
    page.complaints()


def test_axe_finds_nothing_wrong(page: Page, request: pytest.FixtureRequest) -> None:
    script = axe_script(request.config.cache)  # type: ignore[arg-type]
    font = "const style = new CSSStyleSheet(); style.replaceSync(`* { font-family: '${arguments[0]}' !important }`);"
    for address, dark, width, family in (
        (f"#user={LARGE + 5}&held-out=yes", False, 1400, "Noto Sans"),
        (f"#user={LARGE + 5}", True, 390, "DejaVu Sans"),
        ("#history=413&colour=voters", True, 1400, "DejaVu Sans"),
        ("#history=413,416", False, 390, "Noto Sans"),
        ("docs.html", True, 1400, "Noto Sans"),
    ):
        on_a_screen(page.driver, width, dark)
        page.open(address)
        page.run(f"{font} document.adoptedStyleSheets.push(style)", family)
        assert page.run("return document.documentElement.scrollWidth") <= width
        page.run("for (const each of document.querySelectorAll('details')) each.open = true")
        assert violations(page, script) == [], address
