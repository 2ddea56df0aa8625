"""Fill in the tables of a page, and list the commits at which its results were measured."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import RESULTS

from concf.runtime.provenance import DIGITS
from concf.runtime.text_tables import markdown

NOT_RECORDED = "commit not recorded"
CHANGED = "A + at a commit: measured with uncommitted changes. The code may have changed since a commit."
MARKED = re.compile(
    r"(<!-- commits of ([\w -]+): written by benchmarks/render\.py -->\n).*?(<!-- end of commits -->)", re.S
)
DOCS = Path(__file__).parents[1] / "docs"
Line = dict[str, Any]


def lines(name: str, results: Path = RESULTS) -> list[Line]:
    """The lines of results/NAME.jsonl; none if there is no such file."""
    path = results / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def commit_of(line: Mapping[str, Any]) -> str:
    """The commit of a measurement, with a + if there were uncommitted changes."""
    commit = str((line.get("provenance") or {}).get("commit") or "")
    return commit.rstrip("+")[:DIGITS] + "+" * commit.endswith("+") or NOT_RECORDED


def commits_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """The commits of measurements, with their numbers: "`54d8bab5f2ac` (3), commit not recorded (1)"."""
    counts = Counter(map(commit_of, lines))
    return ", ".join(
        f"{commit if commit == NOT_RECORDED else f'`{commit}`'} ({count:,})" for commit, count in counts.items()
    )


def commits_table(shown: Mapping[str, Sequence[Line]]) -> str:
    """Name of a file -> its lines that a page shows. In Markdown: the commits of each, and how many lines of each."""
    rows = [[f"`benchmarks/results/{name}.jsonl`", commits_of(each)] for name, each in shown.items() if each]
    return f"{markdown(['lines of', 'commits (lines)'], rows)}\n{CHANGED}\n"


def filled(text: str, script: str, tables: Mapping[str, str]) -> str:
    """Return a page with each table between its marks, which name the table and the script of benchmarks/."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by benchmarks/{script}.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for {name}; expected {begin} and {end}")
        text = f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"
    return text


def with_commits(text: str) -> str:
    """Return a page with its tables of commits, between marks that name the files of results."""

    def table(match: re.Match[str]) -> str:
        begin, names, end = match.groups()
        return f"{begin}\n{commits_table({name: lines(name) for name in names.split()})}\n{end}"

    return MARKED.sub(table, text)


def render(script: str, pages: Mapping[Path, Mapping[str, str]]) -> None:
    """Renew the tables of a script, and all tables of commits, in pages whose words are written by hand."""
    for page, tables in pages.items():
        text = page.read_text(encoding="utf-8")
        page.write_text(with_commits(filled(text, script, tables)), encoding="utf-8")
