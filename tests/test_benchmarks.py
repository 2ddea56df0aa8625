"""Imports of benchmarks and examples exist; tables and pictures of pages match their result lines."""

from __future__ import annotations

import ast
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from document_runner import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def beside_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other as scripts do."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.mark.parametrize("script", [*BENCHMARKS, *EXAMPLES], ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(script: Path) -> None:
    """All of concf and of the benchmarks that it names anywhere; a script runs only as __main__."""
    if script in BENCHMARKS:
        runpy.run_path(str(script), run_name="imported")
    ours = {"concf", *(path.stem for path in BENCHMARKS)}
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ours:
            for name in node.names:
                assert hasattr(import_module(node.module), name.name), f"{script.name}: {node.module}.{name.name}"


SCRIPTS = (
    "render", "render_strong", "render_new_users", "render_update", "render_combine",
    "render_weights", "render_items", "staleness", "dense",
)  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_tables_of_a_page_are_those_of_their_lines(script: str) -> None:
    for page, tables in import_module(script).pages().items():
        text = page.read_text(encoding="utf-8")
        assert text == import_module("sources").filled(text, script, tables), f"run: python benchmarks/{script}.py"


def test_every_table_of_a_page_is_written_by_a_script_and_every_table_of_commits_is_new() -> None:
    pages = {script: import_module(script).pages() for script in SCRIPTS}
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        written = set(re.findall(r"<!-- ([\w-]+): written by benchmarks/(\w+)\.py -->", text))
        ours = {(name, script) for script in SCRIPTS for name in pages[script].get(page, {})}
        assert written == ours, page.name
        assert text == import_module("sources").with_commits(text), "run: python benchmarks/render.py"


def test_the_pictures_of_how_it_works_are_those_of_their_lines() -> None:
    script = import_module("render_how_it_works")
    text = "\n".join(page.read_text(encoding="utf-8") for page in script.PAGES)
    assert text == script.filled(text, script.drawings()), "run: python benchmarks/render_how_it_works.py"
    assert {match[1] for match in script.MARKED.findall(text)} == set(script.PICTURES)
    assert {path.stem for path in script.FOLDER.iterdir()} == set(script.PICTURES)
