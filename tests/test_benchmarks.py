"""Benchmarks and examples import, name their preset and have the options that pages name; pages name their commits."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from document_runner import PAGES, ROOT
from sources import NOT_RECORDED, commit_of, commits_of

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HELPERS = {"measuring.py", "service_run.py", "sources.py"}  # are imported, never run
each_script = pytest.mark.parametrize("script", [*BENCHMARKS, *EXAMPLES], ids=lambda path: path.stem)
each_command = pytest.mark.parametrize(
    "script", [path for path in BENCHMARKS if path.name not in HELPERS], ids=lambda path: path.stem
)


@pytest.fixture(autouse=True)
def beside_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other as scripts do."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def benchmark(name: str) -> ModuleType:
    return import_module(name)


@cache
def parsed(script: Path) -> ast.Module:
    return ast.parse(script.read_text(encoding="utf-8"))


@each_script
def test_what_a_script_imports_is_there(script: Path) -> None:
    """All of concf and of the benchmarks that it names anywhere; a script runs only as __main__."""
    if script in BENCHMARKS:
        runpy.run_path(str(script), run_name="imported")
    ours = {"concf", *(path.stem for path in BENCHMARKS)}
    for node in ast.walk(parsed(script)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ours:
            for name in node.names:
                assert hasattr(import_module(node.module), name.name), f"{script.name}: {node.module}.{name.name}"


def called(node: ast.AST) -> str:
    """`train` of `train(...)` and of `concf.train(...)`; "" of anything else."""
    target = node.func if isinstance(node, ast.Call) else None
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""


class Settled:
    """Which expressions of a script are settings that began with a named preset."""

    def __init__(self, script: ast.Module) -> None:
        self.functions, self.names = {"choose_settings"}, set[str]()
        for node in ast.walk(script):
            if isinstance(node, ast.FunctionDef) and self._annotated(node.returns):
                self.functions.add(node.name)
            elif isinstance(node, ast.arg) and self._annotated(node.annotation):
                self.names.add(node.arg)
        for node in ast.walk(script):
            if isinstance(node, ast.Assign):
                self.names |= {name for target in node.targets for name in self._from(target, node.value)}

    @staticmethod
    def _annotated(annotation: ast.expr | None) -> bool:
        return isinstance(annotation, ast.Name) and annotation.id == "ConCFSettings"

    def _from(self, target: ast.expr, value: ast.expr) -> Iterator[str]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for inner, given in zip(target.elts, value.elts, strict=True):
                yield from self._from(inner, given)
        elif isinstance(target, ast.Name) and called(value) in self.functions:
            yield target.id

    def __contains__(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.value in self:
            return True  # settings.single(...)
        return called(value) in self.functions or (isinstance(value, ast.Name) and value.id in self.names)


def without_preset(script: ast.Module) -> list[str]:
    """The calls that train, or make settings, with whatever the default is."""
    settled, calls = Settled(script), []
    for node in ast.walk(script):
        if not isinstance(node, ast.Call):
            words = [each.value for each in getattr(node, "elts", []) if isinstance(each, ast.Constant)]
            if "train" in words[words.index("concf") :] if "concf" in words else False:
                calls += [] if "--preset" in words else [ast.unparse(node)]
            continue
        named = {each.arg: each.value for each in node.keywords}
        match called(node):
            case "choose_settings" | "ConCF":
                first = node.args[0] if node.args else named.get("base", named.get("preset"))
                right = first is not None and not (isinstance(first, ast.Constant) and first.value is None)
            case "train" | "Trainer":
                second = node.args[1] if len(node.args) > 1 else named.get("settings")
                right = "preset" in named or (second is not None and second in settled)
            case _:
                right = True
        calls += [] if right else [ast.unparse(node)]
    return calls


@each_script
def test_every_benchmark_names_its_preset(script: Path) -> None:
    assert without_preset(parsed(script)) == []


@pytest.mark.parametrize(
    "text",
    [
        "train(data)",
        "train(data, {'training': {'epochs': 3}})",
        "changes = {}\ntrain(data, changes)",
        "concf.train(data, seed=3)",
        "choose_settings()",
        "choose_settings(None, words=words)",
        "settings = {'a': 1}\nTrainer(data, settings, 0)",
        "concf.ConCF(seed=0).fit(log)",
        "run([sys.executable, '-m', 'concf', 'train', 'log.csv', '--out', out])",
    ],
)
def test_a_call_without_a_preset_is_found(text: str) -> None:
    assert len(without_preset(ast.parse(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "train(data, choose_settings('strong'))",
        "train(data, preset='reference')",
        "data, settings = load(), choose_settings(chosen.preset)\ntrain(data, settings.single('bpr'), seed=1)",
        "def work(settings: ConCFSettings): Trainer(data, settings, 0)",
        "run(['-m', 'concf', 'train', 'log.csv', '--preset', 'reference'])",
        "run(['-m', 'concf', 'recommend', 'run'])",
    ],
)
def test_a_call_with_a_preset_is_not(text: str) -> None:
    assert without_preset(ast.parse(text)) == []


@cache
def options_of(script: Path) -> set[str]:
    """What --help of a benchmark names; it does nothing else."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), "--help"])
        patch.setattr("argparse.ArgumentParser._print_message", lambda _, message, file=None: printed.append(message))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0
    return set(re.findall(r"--?[a-z][\w-]*", "".join(printed)))


@each_command
def test_every_benchmark_has_help(script: Path) -> None:
    assert "--help" in options_of(script)


def test_benchmarks_that_pages_name_exist_with_their_options() -> None:
    commands = [
        (page.name, *command)
        for page in [*PAGES, ROOT / "Makefile"]
        for command in re.findall(r"benchmarks/(\w+\.py)([^`\n)]*)", page.read_text(encoding="utf-8"))
    ]
    assert len(commands) > 20
    for page, name, words in commands:
        assert ROOT / "benchmarks" / name in BENCHMARKS, f"{page}: {name}"
        options = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", words))
        assert name in HELPERS or options <= options_of(ROOT / "benchmarks" / name), f"{page}: {name}{words}"


def test_mypy_reads_every_folder_of_scripts() -> None:
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["files"]
    expected = [name for name in ("benchmarks", "examples", "tools") if (ROOT / name).is_dir()]
    assert {"src/concf", *expected} <= set(read)


@pytest.mark.parametrize(
    ("provenance", "commit"),
    [
        ({"commit": "0123456789abcdef0123456789abcdef01234567"}, "0123456789ab"),
        ({"commit": "0123456789abcdef+"}, "0123456789ab+"),
        ({"commit": "012345"}, "012345"),
        ({"commit": None}, NOT_RECORDED),
        ({}, NOT_RECORDED),
        (None, NOT_RECORDED),
    ],
)
def test_the_commit_of_a_line(provenance: Any, commit: str) -> None:
    assert commit_of({"provenance": provenance}) == commit


def test_commits_are_counted_and_those_without_one_are_named() -> None:
    lines: list[dict[str, Any]] = [{"provenance": {"commit": commit}} for commit in ("abc", "def+", "abc", None)]
    assert commits_of([*lines, {}]) == "`abc` (2), `def+` (1), commit not recorded (2)"


def test_a_file_without_lines_is_not_named() -> None:
    table = benchmark("sources").commits_table({"one": [{"provenance": {"commit": "abc"}}], "none": []})
    assert "| `benchmarks/results/one.jsonl` | `abc` (1) |" in table
    assert "none" not in table


def files_of(page: str) -> list[str]:
    """The files of results whose lines a page shows."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^\| `benchmarks/results/([\w-]+)\.jsonl` \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        "benchmarks.md", "training.md", "strong.md", "new-users.md", "baselines.md", "scale.md", "processes.md",
        "update.md", "combine.md", "new-items.md", "recommending.md", "evaluation.md",
    ],
)  # fmt: skip
def test_a_page_names_the_commits_of_its_lines(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    files, sources = files_of(page), benchmark("sources")
    named = {path for path in re.findall(r"benchmarks/results/([\w-]+)\.jsonl", text) if "*" not in path}
    assert files
    assert named <= set(files)
    for name in files:
        row = next(line for line in text.splitlines() if line.startswith(f"| `benchmarks/results/{name}.jsonl`"))
        newest = name in benchmark("render").NEWEST
        lines = sources.lines(name)[-1:] if newest and page != "scale.md" else sources.lines(name)
        assert row == f"| `benchmarks/results/{name}.jsonl` | {commits_of(lines)} |"


def test_every_file_of_results_is_on_a_page() -> None:
    shown = {name for page in (ROOT / "docs").glob("*.md") for name in files_of(page.name)}
    assert shown == {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.jsonl")}


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("render", "benchmarks.md"),
        ("render_strong", "strong.md"),
        ("render_new_users", "new-users.md"),
        ("render_update", "update.md"),
        ("render_combine", "combine.md"),
    ],
)
def test_a_rendered_page_is_that_of_its_lines(script: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == benchmark(script).page(), f"docs/{page} is old; run: python benchmarks/{script}.py"


def test_the_leaderboard_is_that_of_its_lines() -> None:
    text = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    assert text == benchmark("render_strong").page("leaderboard_words.md"), "run: benchmarks/render_strong.py"


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


def test_pictures_of_the_essay_are_described_by_their_lines() -> None:
    render = benchmark("render_how_it_works")
    text = render.PAGE.read_text(encoding="utf-8")
    assert text == render.filled(text, render.drawings()), "run: python benchmarks/render_how_it_works.py"
    assert {match[1] for match in render.MARKED.findall(text)} == set(render.PICTURES)
    drawn = {path.stem for path in (ROOT / "docs" / "how-it-works").iterdir()}
    assert drawn == set(render.PICTURES)


def test_tables_within_pages_are_those_of_their_lines(tmp_path: Path) -> None:
    sources = benchmark("sources")
    for script in map(benchmark, ("render_sampled", "render_weights")):
        assert f"{script.MARKS[0]}\n\n{script.body()}\n{script.MARKS[1]}" in script.PAGE.read_text(encoding="utf-8")
    items = benchmark("render_items")
    for name in items.PAGES:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert text == items.filled(name, text), f"docs/{name} is old; run: benchmarks/render_items.py"
    for name in ("scale.md", "processes.md", "evaluation.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text, encoding="utf-8")
        sources.fill_in(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == text, f"docs/{name} is old; run: benchmarks/render.py"


def test_the_reproduction_names_the_commits_of_its_lines() -> None:
    lines = benchmark("sources").lines("results", ROOT / "reproduction")
    rows = (
        (ROOT / "reproduction" / "README.md").read_text(encoding="utf-8").partition("## Where the lines come from")[2]
    )
    shown = [line.split(" | ") for line in rows.splitlines() if line.startswith("| ")][2:]
    counted: dict[str, int] = {}
    for row in shown:
        counted[row[1]] = counted.get(row[1], 0) + int(row[3])
    expected = [commit_of(line) for line in lines]
    assert counted == {commit: expected.count(commit) for commit in expected}


def test_a_line_of_gpu_tests_says_whether_its_pytest_is_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned,) = re.findall(r"^pytest==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    for version in (pinned, pinned.rpartition(".")[0]):
        monkeypatch.setattr(pytest, "__version__", version)
        assert benchmark("gpu_tests").pytest_used() == {"pytest": version, "pinned": version == pinned}
