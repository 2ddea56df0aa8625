"""What benchmarks and examples import is there, and pages and pictures are those of their lines."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
from collections.abc import Callable
from importlib import import_module
from importlib import import_module as benchmark
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

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


def whole(script: ModuleType, page: Path) -> str:
    """A page that is rendered as a whole."""
    return str(script.page())


def leaderboard(script: ModuleType, page: Path) -> str:
    return str(script.page("leaderboard_words.md"))


def essay(script: ModuleType, page: Path) -> str:
    text: str = script.filled(page.read_text(encoding="utf-8"), script.drawings())
    assert {match[1] for match in script.MARKED.findall(text)} == set(script.PICTURES)
    assert {path.stem for path in page.with_suffix("").iterdir()} == set(script.PICTURES)
    return text


def between(script: ModuleType, page: Path) -> str:
    """A page of which a table between two marks is rendered."""
    begin, end = (page.read_text(encoding="utf-8").partition(mark) for mark in script.MARKS)
    return f"{begin[0]}{script.MARKS[0]}\n\n{script.body()}\n{script.MARKS[1]}{end[2]}"


def items(script: ModuleType, page: Path) -> str:
    return str(script.filled(page.name, page.read_text(encoding="utf-8")))


def commits(script: ModuleType, page: Path) -> str:
    """A page that names the commits of its lines."""
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copy(page, folder))
        script.fill_in(copy)
        return copy.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "page", "rendered"),
    [
        ("render", "benchmarks", whole), ("render_strong", "strong", whole), ("render_new_users", "new-users", whole),
        ("render_update", "update", whole), ("render_combine", "combine", whole),
        ("render_strong", "leaderboard", leaderboard), ("render_how_it_works", "how-it-works", essay),
        ("render_sampled", "", between), ("render_weights", "", between),
        ("render_items", "new-items", items), ("render_items", "recommending", items),
        ("sources", "scale", commits), ("sources", "processes", commits), ("sources", "evaluation", commits),
    ],
)  # fmt: skip
def test_a_page_is_that_of_its_lines(script: str, page: str, rendered: Callable[[ModuleType, Path], str]) -> None:
    module = import_module(script)
    path = DOCS / f"{page}.md" if page else module.PAGE
    assert path.read_text(encoding="utf-8") == rendered(module, path), f"run: python benchmarks/{script}.py"


def test_a_row_of_the_leaderboard_comes_of_one_line() -> None:
    script, sources = benchmark("render_strong"), benchmark("sources")
    measured = set()
    for line in [each for name in ("strong", "strong-alone", "strong-baselines") for each in sources.lines(name)]:
        for row in line.get("rows", {"": line}).values():
            figures = row["test"]["recall@20"], row["test"]["ndcg@20"]
            measured.add((*figures, line["seconds"], sources.commit_of(line)))
    shown = {(row.recall, row.ndcg, row.seconds, row.commit) for row in script.ours()}
    assert shown
    assert shown <= measured


def test_a_line_of_gpu_tests_says_whether_its_pytest_is_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned,) = re.findall(r"^pytest==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for version in (pinned, pinned.rpartition(".")[0]):
        monkeypatch.setattr(pytest, "__version__", version)
        assert benchmark("gpu_tests").pytest_used() == {"pytest": version, "pinned": version == pinned}
