"""A browser without a window, the explorer in it, and the service behind it; axe-core, which checks a page (WCAG)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.remote.webdriver import WebDriver
from skipping import absent

from concf.service.app import create_app
from concf.service.front import Access
from concf.service.pool import Service

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
TIMEOUT = 20.0  # seconds until something must be there


@contextmanager
def browser(profile: Path) -> Iterator[WebDriver]:
    """Chromium, with the log of its console."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        absent("a browser", "install chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(chromedriver)))
    try:
        yield driver
    finally:
        driver.quit()


def on_a_screen(driver: WebDriver, width: int, dark: bool) -> None:
    """Of this width, a phone's if it is small."""
    shape = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@contextmanager
def serving(service: Service, token: str | None = None) -> Iterator[str]:
    """The address of a service that runs in a thread until it is not needed any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(service, Access(token)), log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Page:
    """The page, and the service behind it."""

    def __init__(self, driver: WebDriver, service: str) -> None:
        self.driver, self.service = driver, service

    def ask(self, path: str, body: str | None = None, token: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(f"{self.service}{path}", body and body.encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def run(self, script: str, *words: Any) -> Any:
        return self.driver.execute_script(script, *words)  # type: ignore[no-untyped-call]

    def open(self, address: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.service}/{address}")
        if address == "docs.html":
            self.until("document.querySelectorAll('details').length")
        else:
            self.settle()

    def arrive(self, hash: str) -> None:
        """Wait until the address has this hash, and its lists are there."""
        self.until("location.hash === arguments[0]", hash)
        self.settle()

    def until(self, script: str, *words: Any) -> Any:
        end = time.monotonic() + TIMEOUT
        while not (value := self.run(f"return {script}", *words)):
            assert time.monotonic() < end, (script, words, self.run("return document.body.innerText"))
            time.sleep(0.02)
        return value

    def settle(self) -> None:
        self.until("document.getElementById('lists')?.getAttribute('aria-busy') === 'false'")

    def press(self, *keys: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def write_over(self, text: str) -> None:
        """In place of what the field has."""
        ActionChains(self.driver, duration=0).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
        self.press(text)

    def tab_to(self, selector: str) -> None:
        for _ in range(40):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        pytest.fail(f"{selector} is not reached by the tab key")

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def lists(self) -> dict[str, list[str]]:
        """Head, or agreed -> item ids as they are shown."""
        rows = "[...list.querySelectorAll('.row')].map((row) => row.dataset.item)"
        return dict(
            self.run(f"return [...document.querySelectorAll('.list')].map((list) => [list.dataset.by, {rows}])")
        )

    def history(self) -> Any:
        return self.run("return [...document.querySelectorAll('#history li > span')].map((each) => each.textContent)")

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def hash(self) -> str:
        return str(self.run("return location.hash"))

    def complaints(self) -> list[str]:
        """The errors in the console since the last call."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each["message"] for each in entries if each["level"] == "SEVERE"]


def expected_lists(view: dict[str, Any]) -> dict[str, list[str]]:
    """The lists that the page should show, from the answer of the service."""
    agreed = {"agreed": view["consensus"]["items"]} if view["consensus"] else {}
    named = agreed | {each["by"]: each["items"] for each in view["lists"]}
    return {by: [str(item["item"]) for item in items] for by, items in named.items()}


VERSION = "4.14.0"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def axe_script(cache: pytest.Cache) -> str:
    """The script; a download is kept with what pytest keeps."""
    script = cache.mkdir("axe-core") / f"axe-{VERSION}.js"
    if not script.exists():
        with TemporaryDirectory(dir=script.parent) as folder:  # other processes may be at it too
            npm, archive = shutil.which("npm"), Path(folder) / f"axe-core-{VERSION}.tgz"
            if npm is not None:
                words = [npm, "pack", f"axe-core@{VERSION}", "--silent"]
                subprocess.run(words, cwd=folder, capture_output=True, check=False)
            if not archive.exists():
                absent("axe-core", "install npm, and let it reach its registry")
            with tarfile.open(archive) as files:
                files.extract("package/axe.min.js", folder, filter="data")
            (Path(folder) / "package" / "axe.min.js").replace(script)
    return script.read_text(encoding="utf-8")


def violations(page: Page, script: str) -> list[dict[str, Any]]:
    """What axe finds wrong with the page as it is now: the rule, and the first elements that break it.

    The inside of a chart is left out: it is one picture with a label, and axe measures no contrast in SVG.
    """
    page.run(script)
    page.driver.set_script_timeout(30)
    found = page.driver.execute_async_script(  # type: ignore[no-untyped-call]
        "axe.run({exclude: [['.chart > *']]}, {runOnly: arguments[0], resultTypes: ['violations']}).then(arguments[1])",
        TAGS,
    )
    nodes = {each["id"]: each["nodes"] for each in found["violations"]}
    return [{"rule": rule, "elements": [node["html"][:120] for node in each[:3]]} for rule, each in nodes.items()]
