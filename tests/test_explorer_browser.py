"""The explorer in a browser: by keyboard, on a phone, with hostile titles, with a token; it shows what the API says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
import torch
from browsing import Page, browser, expected_lists, serving
from selenium.webdriver import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from small_run import SMALL
from small_service import loaded

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.inference.titles import Catalogue
from concf.service.loading import Loader
from concf.training.config.presets import choose_settings
from concf.training.train import train

TOKEN = "a-token-of-this-test"
HOSTILE = '<img src="x" onerror="window.harmed = true"><script>window.harmed = true</script> & "more"'
ODD = "a/b, c%2F&=#é {}"  # an id that must be written with care
LARGE = 2**53 + 1  # an id that a double does not hold


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, titles for its items, and another of one head, with ids that are odd."""
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("explorer")
    log = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
    log = log.select(user=pl.col("user_id") + LARGE, item=500 - pl.col("item_id") * 3)
    _train(log, home / "run")
    texts = log.select(user=pl.format(ODD, pl.col("user") - LARGE), item=pl.format(ODD, "item"))
    _train(texts, home / "alone", "training.epochs=1", "objectives=bpr", "training.watch=bpr")
    rows = [f'{item},"{title}"' for item in range(413, 501, 3) for title in [_title(item).replace('"', '""')]]
    (home / "titles.csv").write_text("item,title\n" + "\n".join(rows), encoding="utf-8")
    return home


def _train(log: pl.DataFrame, out: Path, *words: str) -> None:
    data = prepare(log, protocol="random", out=out.with_suffix(".data"))
    chosen = choose_settings("reference", words=(*SMALL, "model.initial_std=0.5", *words))
    train(data, chosen, out=out, data_folder=out.with_suffix(".data"))


def _title(item: int) -> str:
    return HOSTILE if item % 2 else f"Item number {item}"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def services(folder: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a service without and of one with a token."""
    service = loaded(folder / "run", loader=Loader(catalogue=Catalogue(folder / "titles.csv")))
    with serving(service) as free, serving(service, TOKEN) as locked:
        yield free, locked


@pytest.fixture
def page(driver: WebDriver, services: tuple[str, str]) -> Iterator[Page]:
    page = Page(driver, services[0])
    page.complaints()
    driver.set_window_size(1280, 900)
    yield page
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert not page.complaints()


def test_a_user_is_picked_by_keyboard_alone(page: Page) -> None:
    page.open()
    users = [each["id"] for each in page.ask("/users?limit=40")]
    assert page.hash() == f"#user={users[0]}"  # someone is shown at first
    assert page.lists() == expected_lists(page.ask(f"/explore/{users[0]}"))
    page.tab_to("#user")
    page.write_over(str(LARGE)[:-2])
    page.until("document.querySelectorAll('#user-options [role=option]').length > 2")
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP)
    chosen = page.run(
        "const option = document.getElementById(document.activeElement.getAttribute('aria-activedescendant'));"
        "return [option.getAttribute('aria-selected'), option.firstChild.textContent]"
    )
    assert chosen[0] == "true"
    assert int(chosen[1]) in users
    page.press(Keys.ENTER)
    page.until("location.hash === arguments[0]", f"#user={chosen[1]}")
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{chosen[1]}"))
    assert page.run("return document.getElementById('user').value") == chosen[1]
    page.press("9")
    page.until("!document.getElementById('user-options').hidden")
    page.press(Keys.ESCAPE)
    assert page.run("return document.getElementById('user-options').hidden")
    page.tab_to("input[name=k]")
    page.press(Keys.ARROW_RIGHT)
    page.until("location.hash.endsWith('k=20')")
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{chosen[1]}?k=20"))


def test_an_item_is_shown_in_all_lists_with_its_votes(page: Page) -> None:
    user = page.ask("/users?limit=5")[4]["id"]
    view = page.ask(f"/explore/{user}")
    page.open(f"#user={user}")
    assert page.run(
        "return document.querySelectorAll('.list').length === document.querySelectorAll('.row[tabindex=\"0\"]').length"
    )
    page.tab_to(".agreed .row")
    page.press(Keys.ARROW_DOWN)
    item = view["consensus"]["items"][1]
    for key in ("", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT):
        if key:
            page.press(key)
            item = {"item": int(page.run("return document.activeElement.dataset.item"))}
        same = page.run("return [...document.querySelectorAll('.row.same')].map((row) => row.dataset.item)")
        lists = page.lists()
        shown = sum(str(item["item"]) in listed for listed in lists.values())
        assert same == [str(item["item"])] * shown
        links = page.run("return document.querySelectorAll('.links path').length")
        assert links == max(shown - (str(item["item"]) in lists["agreed"]) - 1, 0)  # between the voters' lists
        votes = votes_of(view)[item["item"]]
        cards = page.run("return [...document.querySelectorAll('#why .card')].map((card) => card.innerText)")
        for card, vote in zip(cards, votes, strict=True):
            assert f"rank {vote['rank']}" in card
            assert (f"R {vote['R']:.2f}" in card) == (vote["vote"] > 0.01)
            assert ("no vote" in card) == (vote["vote"] == 0)
    cells = page.run(
        "return [...document.querySelectorAll('.agreed .row .cells')].map((each) => each.innerText.split(/\\s+/))"
    )
    expected = [
        [str(vote["rank"]) if vote["vote"] else "·" for vote in votes_of(view)[each["item"]]]
        for each in view["consensus"]["items"]
    ]
    assert cells == expected
    page.press(Keys.ESCAPE)
    assert page.run("return document.getElementById('why').hidden")


def votes_of(view: dict[str, Any]) -> dict[Any, list[dict[str, Any]]]:
    return {each["item"]: each["votes"] for each in view["items"]}


def test_colours_say_how_consistent_or_who(page: Page) -> None:
    user = page.ask("/users?limit=2")[1]["id"]
    page.open(f"#user={user}")
    kinds = "return [...document.querySelectorAll('.agreed .row .cells span')].map((each) => each.className)"
    assert set(page.run(kinds)) <= {"s1", "s2", "s3", "s4", "s5", "no-vote"}
    assert "varied over time" in page.text("#legend")
    page.click("input[value=rank]")
    ranks = page.run("return [...document.querySelectorAll('.agreed .row .cells .s5')].map((each) => each.innerText)")
    assert set(ranks) == {"1"}
    page.click("input[value=voters]")
    assert set(page.run(kinds)) <= {*(f"h{place}" for place in range(8)), "no-vote"}
    assert all(head in page.text("#legend") for head in page.ask("/run")["voters"])
    assert "colour=voters" in page.hash()


def test_held_out_items_are_hits(page: Page) -> None:
    users = [each["id"] for each in page.ask("/users?limit=9")]
    user = next(each for each in users if "test" in parts_of(page.ask(f"/explore/{each}?held_out=true"), "consensus"))
    page.open(f"#user={user}")
    assert not page.run("return document.querySelectorAll('.out').length")
    page.click("#held-out")
    page.until("document.querySelectorAll('.agreed .out').length")
    view = page.ask(f"/explore/{user}?held_out=true")
    assert page.lists() == expected_lists(view)
    parts = parts_of(view, "lists", "consensus")
    for part, word in (("test", "hit"), ("validation", "val")):  # a hit is what the test part has
        marks = page.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)", f".out.{part}"
        )
        assert marks == [word] * parts.count(part)
        held = [item["part"] for item in view["history"]].count(part)
        assert page.run(f"return document.querySelectorAll('#history .{part} li').length") == min(held, 5)


def parts_of(view: dict[str, Any], *names: str) -> list[str | None]:
    """Of everything that the lists of a view have."""
    part = {each["item"]: each["part"] for each in view["items"]}
    lists = [view["consensus"]] * ("consensus" in names) + view["lists"] * ("lists" in names)
    return [part[item["item"]] for each in lists for item in each["items"]]


def test_a_history_is_built_by_hand(page: Page) -> None:
    page.open()
    page.click("input[value=history]")
    page.until("location.hash === '#history='")
    page.settle()
    nothing = page.lists()
    assert nothing == expected_lists(page.ask("/explore", '{"history": []}'))
    page.tab_to("#item")
    page.press("number 44", Keys.ENTER)  # before the list is there
    page.until("location.hash.length > 9")
    first = page.hash().removeprefix("#history=")
    page.settle()
    assert page.history() == [_title(int(first))]
    assert page.lists() == expected_lists(page.ask("/explore", f'{{"history": [{first}]}}')) != nothing
    assert "rank alone" in page.text("#note")
    assert page.run("return document.activeElement.id") == "item"
    page.press("491")
    page.until("document.querySelectorAll('#item-options [role=option]').length === 1")
    page.press(Keys.ENTER)
    page.until("location.hash === arguments[0]", f"#history={first},491")
    page.settle()
    assert page.lists() == expected_lists(page.ask("/explore", f'{{"history": [{first}, 491]}}'))
    page.click("#history button")
    page.until("location.hash === '#history=491'")
    page.settle()
    assert page.history() == [_title(491)]
    assert page.lists() == expected_lists(page.ask("/explore", '{"history": [491]}'))


def test_a_users_history_is_taken_over(page: Page) -> None:
    user = page.ask("/users?limit=3")[2]["id"]
    used = [item["item"] for item in page.ask(f"/explore/{user}")["history"]]
    page.open(f"#user={user}")
    page.click("#edit")
    page.until("location.hash.startsWith('#history=')")
    page.settle()
    assert page.hash() == f"#history={','.join(map(str, used))}"
    assert page.lists() == expected_lists(page.ask("/explore", json.dumps({"history": used})))
    assert page.history() == [_title(item) for item in used]


def test_what_is_shown_stands_in_the_address_and_can_be_gone_back_to(page: Page) -> None:
    one, other = (each["id"] for each in page.ask("/users?limit=8")[6:])
    page.open(f"#user={one}&k=5&colour=voters")
    assert page.lists() == expected_lists(page.ask(f"/explore/{one}?k=5"))
    assert page.run("return document.querySelector('input[value=voters]').checked")
    page.click("#user")
    page.write_over(f"{other}{Keys.ENTER}")
    page.until("location.hash === arguments[0]", f"#user={other}&k=5&colour=voters")
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{other}?k=5"))
    page.driver.back()
    page.until("location.hash === arguments[0]", f"#user={one}&k=5&colour=voters")
    page.until("document.getElementById('user').value === arguments[0]", str(one))
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{one}?k=5"))
    page.driver.forward()
    page.until("document.getElementById('user').value === arguments[0]", str(other))
    page.settle()
    assert page.lists() == expected_lists(page.ask(f"/explore/{other}?k=5"))


def test_an_answer_that_comes_too_late_is_not_shown(page: Page) -> None:
    slow, quick = (each["id"] for each in page.ask("/users?limit=2"))
    page.open(f"#user={quick}")
    page.run(
        "const real = window.fetch; window.late = 0; window.fetch = async (path, asked) => {"
        "  const answer = await real(path, { ...asked, signal: undefined });"
        "  if (path.includes(arguments[0])) { await new Promise((done) => setTimeout(done, 300)); window.late += 1; }"
        "  return answer; }",
        str(slow),
    )
    for user in (slow, quick):
        page.run("location.hash = arguments[0]", f"#user={user}&k=5")
    page.until("window.late === 1")
    time.sleep(0.1)
    assert page.lists() == expected_lists(page.ask(f"/explore/{quick}?k=5"))


@pytest.mark.parametrize(("dark", "width"), [(False, 390), (True, 320)], ids=["light", "dark and small"])
def test_on_a_phone_nothing_is_wider_than_it(page: Page, dark: bool, width: int) -> None:
    phone = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    user = page.ask("/users?limit=1")[0]["id"]
    for address in (f"#user={user}&k=50&held-out=yes", "#history=500,497,491,488,485,482"):
        page.open(address)
        assert page.run("return document.getElementById('why').hidden")  # until an item is asked for
        page.run("document.querySelector('.row').click()")
        right = f"each.getBoundingClientRect().right > {width + 1}"
        strips = ".voters, .past ul, .hidden, .skip, .tip"
        outside = f"[...document.querySelectorAll('body *')].filter((each) => {right} && !each.closest('{strips}'))"
        assert page.run(f"return {outside}.map((each) => each.outerHTML.slice(0, 80))") == []
        assert page.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
        assert page.run("return getComputedStyle(document.getElementById('voters')).scrollSnapType") == "x mandatory"
        assert page.run("const sheet = document.getElementById('why'); return sheet.scrollWidth <= sheet.clientWidth")
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(19, 24, 27)" if dark else "rgb(251, 250, 248)")


def test_hostile_titles_are_only_text(page: Page) -> None:
    page.open("#history=500,497,491&k=20")
    page.click("#item")
    page.press("img onerror")
    page.until("document.querySelector('#item-options [role=option]')?.textContent.startsWith('<img')")
    page.run("for (const row of document.querySelectorAll('.row')) row.focus()")
    assert HOSTILE in page.run("return document.getElementById('lists').textContent")
    assert HOSTILE in page.history()
    assert not page.run("return window.harmed || document.querySelectorAll('img, main script').length")
    page.open(f"#user={quote(HOSTILE)}&history=")
    page.open("#history=500," + quote(HOSTILE, safe=""))  # an id that is none: the note says it
    assert "<img" in page.text("#note")
    assert not page.run("return window.harmed || document.querySelectorAll('img, main script').length")
    page.complaints()  # of the request that was refused


def test_nothing_is_loaded_from_elsewhere_and_no_script_but_its_own_runs(page: Page) -> None:
    page.open()
    loaded = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(loaded) > 8
    assert all(name.startswith(f"{page.service}/") for name in loaded)
    page.run(
        "const script = document.createElement('script'); script.textContent = 'window.harmed = 1';"
        "document.body.append(script)"
    )
    assert page.run("return window.harmed") is None  # the policy forbids it
    page.complaints()  # ... and says so


def test_an_error_is_said_in_words_and_can_be_tried_again(page: Page) -> None:
    page.open("#user=77")
    assert "no user is called 77" in page.text("[role=alert]")
    assert page.lists() == {}
    page.run(
        "const real = window.fetch; window.fetch = (path, asked) => real(path.replace('/77?', arguments[0]), asked)",
        f"/{LARGE}?",
    )
    page.click("#retry")
    page.until("document.getElementById('message').hidden")
    assert page.lists() == expected_lists(page.ask(f"/explore/{LARGE}"))
    page.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    page.click("#random")
    page.until("!document.getElementById('message').hidden")
    assert "does not answer" in page.text("[role=alert]")
    page.complaints()  # of the request that was refused


def test_a_token_is_asked_for_and_kept_for_the_session(driver: WebDriver, services: tuple[str, str]) -> None:
    page = Page(driver, services[1])
    driver.get(f"{services[1]}/")
    page.until("!document.getElementById('token').hidden")
    assert page.run("return document.getElementById('message').hidden && document.activeElement.id === 'token-text'")
    page.press("wrong", Keys.ENTER)
    page.until("!document.getElementById('message').hidden")
    page.click("#token-text")
    page.press(TOKEN, Keys.ENTER)
    page.settle()
    assert page.run("return document.getElementById('token').hidden && document.getElementById('message').hidden")
    user = page.ask("/users?limit=1", token=TOKEN)[0]["id"]
    assert page.lists() == expected_lists(page.ask(f"/explore/{user}", token=TOKEN))
    assert page.run("return [localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
    driver.refresh()
    page.settle()
    assert page.lists()
    page.complaints()


def test_a_run_of_one_head_with_odd_ids(page: Page, folder: Path) -> None:
    with serving(loaded(folder / "alone")) as page.service:
        users = [each["id"] for each in page.ask("/users?limit=3")]
        page.open()
        for user in users:
            page.click("#user")
            page.write_over(f"{user}{Keys.ENTER}")
            page.until("location.hash === arguments[0]", f"#user={quote(user, safe='')}")
            page.settle()
            view = page.ask(f"/explore/{quote(user, safe='')}")
            assert page.lists() == expected_lists(view)
            assert list(page.lists()) == ["bpr"]
        assert "one head" in page.text("#legend")
        page.run("document.querySelector('.row').focus()")
        assert "score" in page.text("#why .card")
        page.click("#edit")
        page.until("location.hash.startsWith('#history=')")
        page.open(page.hash())
        used = [item["item"] for item in view["history"]]
        assert page.history() == used
        assert page.lists() == expected_lists(page.ask("/explore", json.dumps({"history": used})))
