"""README and documents are true: commands of the most read pages run, links lead somewhere, generated pages are new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import architecture
import pytest
import reference
from document_runner import PAGES, ROOT, Page, blocks_of, small_world
from small_run import CLI
from typer.main import get_command

from concf.cli.app import app
from concf.models import choose_settings
from concf.strong.settings import StrongSettings

pytestmark = pytest.mark.usefixtures("quick_collections")

RUN = ("README", "guide-practitioners", "guide-researchers", "recommending", "new-data")
COMMANDS: Any = get_command(app)
GENERATED = {**reference.PAGES, "architecture.svg": architecture.picture}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in RUN], ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, concf: CLI) -> None:
    small_world(tmp_path, monkeypatch)
    Page(concf, monkeypatch).run(page)


def spans(page: Path) -> Iterator[str]:
    """Code within sentences and tables, on one line each, and the commands of blocks."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose))
    yield from (command for block in blocks_of(page) for command in block.commands())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_options_and_settings_that_are_named_exist(page: Path) -> None:
    for span in spans(page):
        sets = [quoted or plain for quoted, plain in re.findall(r"--set (?:'([^']+)'|(\S+))", span)]
        base = "strong" if any(word.partition("=")[0] in StrongSettings.model_fields for word in sets) else "reference"
        choose_settings(base, words=[word for word in sets if "my_" not in word])  # a module of the reader's own
        if not span.startswith("concf ") or (words := re.split(r" [|&]", span)[0].split()[1:])[0].isupper():
            continue
        command = COMMANDS
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        assert not hasattr(command, "commands") or not words or words[0].startswith("-"), f"no such command: {span}"
        assert {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} <= options, span


@cache
def anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    titles = {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in re.findall(r"(?m)^#+ (.+)$", text)}
    return titles | set(re.findall(r"(?:id=\"|\{ ?#)([\w-]+)", text))


def test_links_lead_somewhere() -> None:
    pattern, pages = r"\]\(([^)#:\s]*)#?([^):\s]*)\)", [*PAGES, ROOT / "CHANGELOG.md"]
    links = [(page, *link) for page in pages for link in re.findall(pattern, page.read_text(encoding="utf-8"))]
    assert len(links) > 200
    for page, file, anchor in links:
        target = page.parent / file if file else page
        assert target.exists() or file.endswith(".html"), (page.name, file)
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), (page.name, file, anchor)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_that_of_the_code(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == GENERATED[name](), f"docs/{name} is out of date; run: make docs"
