"""README and documents are true: commands run, names exist, generated pages are up to date, the site is complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from pkgutil import resolve_name
from shutil import which
from typing import Any, get_args

import architecture
import pytest
import reference
from document_runner import PAGES, ROOT, Page, blocks_of, reason_not_to_run, small_world
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait
from skipping import absent
from typer.main import get_command

import concf
from concf.cli.app import app
from concf.training.config.presets import PRESETS, choose_settings
from concf.training.config.settings import ConCFSettings

pytestmark = pytest.mark.usefixtures("on_one_thread", "quick_collections")

COMMANDS: Any = get_command(app)
CLI = Callable[..., tuple[int, str, str]]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
GLOSSARY = ROOT / "docs" / "glossary.md"
EVERYDAY = {"log", "run", "vote"}  # terms that are English words as well: they alone call for no link
LOADS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "use": "href",
    "object": "data",
}


@each_page
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concf: CLI) -> None:
    small_world(tmp_path, monkeypatch)
    Page(concf, monkeypatch).run(page)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nconcf train log.csv --out run --set training.epoch=1\n```\n", "unknown setting 'training.epoch'"),
        ("```\nconcf evaluate nowhere\n```\n", "nowhere"),
        ("```sh\ndocker run concf\n```\n", "neither runs here nor is an exception"),
        ("```\n    rank  item\n```\n", "neither runs here nor is an exception"),  # output is marked as such
        ("```python\nimport concf\n\nconcf.recommend()\n```\n", "has no attribute 'recommend'"),
    ],
)
def test_a_page_with_a_mistake_fails(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concf: CLI
) -> None:
    small_world(tmp_path, monkeypatch)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises((AssertionError, AttributeError, pytest.fail.Exception), match=message):
        Page(concf, monkeypatch).run(page)


def spans(page: Path) -> Iterator[str]:
    """Code within sentences and tables, on one line each."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))


def code_of(page: Path) -> list[str]:
    """The spans, and the commands of the blocks."""
    return [*spans(page), *(command for block in blocks_of(page) for command in block.commands())]


@each_page
def test_commands_in_sentences_exist_with_their_options(page: Path) -> None:
    for span in spans(page):
        if not span.startswith("concf ") or (words := span.partition(" |")[0].split()[1:])[0].isupper():
            continue
        command = COMMANDS
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert not hasattr(command, "commands") or not words or words[0].startswith("-"), f"no such command: {span}"
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} <= options, span


@each_page
def test_settings_that_are_set_exist(page: Path) -> None:
    for span in code_of(page):
        words = [quoted or plain for quoted, plain in re.findall(r"--set (?:'([^']+)'|(\S+))", span)]
        base = "strong" if any(word.startswith("recipe.") for word in words) else "reference"
        choose_settings(base, words=[word for word in words if "my_" not in word])  # a module of the reader's own


@each_page
def test_targets_extras_names_and_files_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for span in code_of(page):
        assert set(re.findall(r"^make (\w+)", span)) <= targets, span
        for named in re.findall(r"^pip install .*\[([\w,]+)\]", span):
            assert set(named.split(",")) <= extras.keys(), span
        for dotted in re.findall(r"^concf(?:\.\w+)+", span):
            resolve_name(dotted)
        for path in re.findall(r"^(?:src|tests|docs|benchmarks|examples)/[\w/.-]+(?= |$)", span):
            assert (ROOT / path).exists(), span


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[0].read_text(encoding="utf-8"))
    assert len(links) > 20
    assert not [link for link in links if not (ROOT / link).exists()]


def test_an_exception_is_for_commands_that_documents_have() -> None:
    commands = {command for page in PAGES for command in code_of(page)}
    assert {reason_not_to_run(command) for command in commands} > {None}
    assert reason_not_to_run("make demo && rm -r x") is None


def terms() -> list[str]:
    """The headings of the glossary, in lower case."""
    return re.findall(r"^### (.+)$", GLOSSARY.read_text(encoding="utf-8").lower(), re.MULTILINE)


@each_page
def test_a_page_that_uses_a_term_links_to_the_glossary(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = [term for term in terms() if term not in EVERYDAY and re.search(rf"\b{term}s?\b", text, re.IGNORECASE)]
    assert page == GLOSSARY or not used or "glossary.md" in text, (
        f"{page.name} uses {used} without a link to the glossary"
    )
    anchors = {re.sub(r"[^\w-]", "", term.replace(" ", "-")) for term in terms()}
    assert set(re.findall(r"glossary\.md#([\w-]+)", text)) <= anchors


@pytest.mark.parametrize("word", ["re-ranking", "stacking", "distillation", "ensemble", "listmle", "plackett-luce"])
def test_the_words_of_the_field_are_found_in_the_glossary(word: str) -> None:
    assert word in GLOSSARY.read_text(encoding="utf-8").lower()


def test_the_glossary_is_alone_with_each_term() -> None:
    assert len(terms()) == len(set(terms())) > 40


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 120


GENERATED = {**reference.PAGES, "architecture.svg": architecture.picture}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_that_of_the_code(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == GENERATED[name](), f"docs/{name} is out of date; run: make docs"


def test_the_picture_shows_every_import_and_refuses_one_that_runs_up() -> None:
    graph = architecture.imports()
    arrows = architecture.reduced(graph)

    def reached(room: str) -> set[str]:
        return arrows[room].union(*(reached(below) for below in arrows[room]))

    assert all(below <= reached(room) for room, below in graph.items())
    with pytest.raises(SystemExit, match="data imports service, which is not below it"):
        architecture.reduced(graph | {"data": {"service"}})


def settings_rows() -> dict[str, list[str]]:
    """Setting -> its further cells in the page of settings."""
    lines = [
        re.split(r"(?<!\\)\|", line)[1:-1] for line in reference.settings_page().splitlines() if line.startswith("| `")
    ]
    return {name.strip(" `"): [cell.strip() for cell in cells] for name, *cells in lines}


def test_the_page_of_settings_has_all_of_them_with_values_that_can_be_set() -> None:
    rows = settings_rows()
    kinds = {
        name: (field.annotation, *get_args(field.annotation)) for name, field in ConCFSettings.model_fields.items()
    }
    groups = {name: [each for each in some if hasattr(each, "model_fields")] for name, some in kinds.items()}
    expected = [
        f"{name}.{below}" if group else name
        for name, group in groups.items() for below in (group[0].model_fields if group else [""])
    ]  # fmt: skip
    assert list(rows) == expected
    for name, (kind, *values, meaning) in rows.items():
        assert kind, name
        assert meaning, f"{name}: say what it means, at the end of its line"
        for preset, shown in zip(("reference", "paper", "released", "strong"), values, strict=True):
            assert shown.startswith("**") == (shown.strip("*") != values[0]), (name, preset)
            group, _, setting = name.rpartition(".")
            assert (shown.strip("*") == "no recipe") == (group == "recipe" and PRESETS[preset].recipe is None)
            if shown.strip("*") == "no recipe":
                continue
            chosen, wanted = choose_settings(preset, words=[f"{name}={shown.strip('*`')}"]), PRESETS[preset]
            values_set = [getattr(getattr(each, group) if group else each, setting) for each in (chosen, wanted)]
            assert values_set[0] == values_set[1], (name, preset)


def test_the_page_of_commands_has_every_option() -> None:
    text = reference.commands_page()

    def check(command: Any, path: str) -> None:
        section = text.partition(f"# {path}\n")[2].partition("\n#")[0]
        for each in command.params:
            assert f"| `{each.opts[0]}`" in section or f"| `{each.metavar or each.name.upper()}` |" in section, path
        for name, below in getattr(command, "commands", {}).items():
            check(below, f"{path} {name}")

    for name, command in COMMANDS.commands.items():
        check(command, f"concf {name}")


def test_the_index_for_programs_has_every_name_and_command_with_what_it_says() -> None:
    found = json.loads((ROOT / "docs" / "api.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in found["python"]] == concf.__all__
    described = [each for each in found["python"] if each["kind"] != "constant"]
    described += [member for each in described for member in each.get("members", [])] + found["commands"]
    assert [each["name"] for each in described if not each["doc"] or "0x" in each.get("signature", "")] == []
    commands = {each["name"]: {option["name"] for option in each["options"]} for each in found["commands"]}
    assert commands["concf doctor"] == {"--json"}
    for name in COMMANDS.commands:
        assert f"concf {name}" in commands or any(each.startswith(f"concf {name} ") for each in commands)


def test_the_file_for_language_models_links_to_every_page_with_a_sentence() -> None:
    title, summary, *lines = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8").split("\n\n")
    assert title == "# concf"
    assert summary.startswith("> ")
    links = re.findall(r"^- \[[^]]+\]\(([\w-]+)\.html\): \w.+\.$", "\n\n".join(lines), re.MULTILINE)
    nav = re.findall(r": ([\w-]+)\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(links) == sorted(nav), "docs/llms.txt: a line for each page of mkdocs.yml"
    assert "(api.json)" in lines[0]


class Loaded(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("rel") not in ("canonical", "prev", "next"):
            self.links.append(named.get(LOADS.get(tag, "")) or "")
        self.links += re.findall(r"url\(['\"]?([^'\")]+)", named.get("style") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_is_complete_and_needs_no_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {page.stem for page in PAGES[1:]} <= {page.stem for page in pages}
    for page in pages:
        for link in filter(None, Loaded(page).links):
            assert not re.match(r"(\w+:)?//", link), (page.name, link)
            root = site if link.startswith("/") else page.parent  # 404.html may be shown anywhere
            file = root / re.sub("[?#].*", "", link.lstrip("/"))
            assert file.exists() or link.startswith("data:"), (page.name, link)
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_the_search_works_from_a_folder(site: Path) -> None:
    driver, browser = which("chromedriver"), which("chromium") or which("google-chrome")
    if driver is None or browser is None:
        absent("a browser", "install chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(browser)
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,900"):
        options.add_argument(word)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(str(driver))) as chrome:
        chrome.get((site / "index.html").as_uri())
        box = chrome.find_element("css selector", "input.md-search__input")
        chrome.execute_script("arguments[0].focus()", box)
        box.send_keys("consensus.consistency_temperature")
        results = WebDriverWait(chrome, 30).until(
            lambda it: it.find_elements("css selector", ".md-search-result__link")
        )
        assert any("settings.html" in str(link.get_attribute("href")) for link in results)
