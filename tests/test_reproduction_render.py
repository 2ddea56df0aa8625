"""Rendering the paper's tables, figures and claims."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from test_reproduction_verdicts import LINES, line

from reproduction import paper_page, published
from reproduction.drawing import Drawing
from reproduction.lines import CITEULIKE, Lines
from reproduction.page import render
from reproduction.published import BEST, CONSENSUS, HEADS, METRICS, printed
from reproduction.table import Table, escape
from reproduction.tables import TABLES


@pytest.mark.parametrize("data", published.STATISTICS)
@pytest.mark.parametrize("metric", METRICS)
def test_printed_gains_follow_from_the_printed_figures(data: str, metric: str):
    single = {head: printed(data, "SingleCF", head, metric) for head in HEADS}
    best = max(single, key=lambda head: single[head])
    for name, row in (("Gain.Best", best), ("Gain.Con.", CONSENSUS)):
        gain = printed(data, "ConCF", row, metric) / single[best] - 1
        assert gain == pytest.approx(printed(data, "ConCF", name, metric), abs=6e-5)


def test_the_best_single_is_that_of_the_mean_validation():
    lines = [line("SingleCF", {"bpr": 0.30, "cml": 0.29}), line("SingleCF", {"bpr": 0.20, "cml": 0.29}, 1)]
    assert Lines(lines).test("SingleCF", CITEULIKE, BEST) == {0: 0.29, 1: 0.29}


def test_a_line_measured_again_counts_once_and_trials_do_not_count():
    again = [line("SingleCF", {"bpr": 0.1}), line("SingleCF", {"bpr": 0.2})]
    trial = line("SingleCF", {"bpr": 0.9}) | {"key": {"set": ["training.epochs=2"]}}
    assert Lines([*again, trial]).test("SingleCF", CITEULIKE, "bpr") == {0: 0.2}


def test_csv_reads_back_and_latex_is_whole():
    shown = Table("t", "50 % of a_b", ["a|b", "c,d"], [["x & y", 'say "1"'], ["[z]", "0.1 ± 0.2"]], "A note #1.")
    assert list(csv.reader(io.StringIO(shown.csv()))) == [shown.header, *shown.rows]
    text = shown.latex()
    assert r"\caption{50 \% of a\_b. A note \#1.}" in text
    assert all(cell in text for cell in (r"x \& y", r"0.1 $\pm$ 0.2", r"{[}z{]}"))
    assert escape("\\") == r"\textbackslash{}"
    for tables in TABLES.values():
        for each in tables(Lines(LINES)):
            rows = each.latex().split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
            assert len(rows) == len(each.rows)
            assert all(len(re.split(r"(?<!\\)&", row)) == len(each.header) for row in rows)
            assert all(len(row) == len(each.header) for row in each.rows)


def test_the_page_and_tables_in_the_repository_are_those_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drawing, "save", lambda self, path, kind: path.touch())  # their bytes depend on the fonts there
    home = Path(published.__file__).parent
    written = render(LINES, tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    for path in written:
        there = home / path.relative_to(tmp_path)
        assert there.exists(), f"{there} is missing: make reproduction"
        if path.suffix in (".md", ".csv", ".tex"):
            assert path.read_text(encoding="utf-8") == there.read_text(encoding="utf-8"), f"{there}: make reproduction"
    page = paper_page.PAGE.read_text(encoding="utf-8")
    assert page == paper_page.filled(page, Lines(LINES)), "make reproduction"
    text = (home / "README.md").read_text(encoding="utf-8")
    assert {f'id="{name}"' for name in re.findall(r"`#(\w+)`", page)} <= set(re.findall(r'id="\w+"', text))
    assert all((home / path).is_file() for path in re.findall(r"\]\(((?:pictures|tables)/[^)]+)\)", text))
    assert "{{" not in text
