"""Rendering the paper's tables, figures and claims from lines made here, with figures known beforehand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from reproduction_lines import LINES, Line, line

from reproduction import published
from reproduction.drawing import Drawing
from reproduction.figures import draw
from reproduction.lines import CITEULIKE, Lines
from reproduction.page import render
from reproduction.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS, printed
from reproduction.table import Table, escape
from reproduction.tables import TABLES


def table(experiment: str, name: str, lines: list[Line] = LINES) -> Table:
    return next(each for each in TABLES[experiment](Lines(lines)) if each.name == name)


def cell(shown: Table, column: str, *labels: str) -> str:
    row = next(row for row in shown.rows if row[: len(labels)] == list(labels))
    return row[shown.header.index(column)]


@pytest.mark.parametrize("data", published.STATISTICS)
@pytest.mark.parametrize("metric", METRICS)
def test_printed_gains_follow_from_the_printed_figures(data: str, metric: str):
    single = {head: printed(data, "SingleCF", head, metric) for head in HEADS}
    best = max(single, key=lambda head: single[head])
    for name, row in (("Gain.Best", best), ("Gain.Con.", CONSENSUS)):
        gain = printed(data, "ConCF", row, metric) / single[best] - 1
        assert gain == pytest.approx(printed(data, "ConCF", name, metric), abs=6e-5)


def test_known_figures_give_known_cells():
    shown = table("main", "main-citeulike-released-reference-50")
    assert cell(shown, "R@50 paper", "SingleCF", "CF-A") == "0.2513"
    assert cell(shown, "R@50 ours", "SingleCF", "CF-A") == "0.2525 ± 0.0024"  # the shifts: mean 0.0012
    assert cell(shown, "R@50 difference", "SingleCF", "CF-A") == "+0.0012"
    assert cell(shown, "splits", "SingleCF", "CF-A") == "5"
    assert cell(shown, "R@50 paper", "ConCF", R_CONSENSUS) == "not given"
    best, head = 0.3179 + 0.0012, 0.3721 + 1.1 * 0.0012
    assert cell(shown, "R@50 ours", "ConCF", "Gain.Best").startswith(f"{100 * (head / best - 1):.2f} % ± ")
    assert cell(shown, "R@50 paper", "ConCF", "Gain.Con.") == "22.55 %"


def test_what_is_missing_says_so_and_what_is_partly_there_says_how_much():
    for experiment, tables in TABLES.items():
        for each in tables(Lines([])):
            assert any("not measured" in row for row in each.rows), (experiment, each.name)
    two = [each for each in LINES if each["cell"]["seed"] < 2]
    assert cell(table("main", "main-ciao-paper-reference-50", two), "splits", "ConCF", "CF-A") == "2 of 5"
    one = [each for each in LINES if each["cell"]["seed"] == 0]
    assert cell(table("main", "main-ciao-paper-reference-50", one), "R@50 ours", "ConCF", "CF-A") == "0.2237"


def test_the_best_single_is_that_of_the_mean_validation():
    lines = [line("SingleCF", {"bpr": 0.30, "cml": 0.29}), line("SingleCF", {"bpr": 0.20, "cml": 0.29}, seed=1)]
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
    assert r"x \& y" in text
    assert r"0.1 $\pm$ 0.2" in text
    assert r"{[}z{]}" in text
    assert "\\|" in Table("t", "", ["a"], [["x|y"]]).markdown()
    assert escape("\\") == r"\textbackslash{}"
    for tables in TABLES.values():
        for each in tables(Lines(LINES)):
            rows = each.latex().split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
            assert len(rows) == len(each.rows)
            assert all(len(re.split(r"(?<!\\)&", row)) == len(each.header) for row in rows)
            assert all(len(row) == len(each.header) for row in each.rows)


def test_the_page_is_whole_and_a_figure_drawn_again_has_the_same_bytes(tmp_path: Path):
    paths = render(LINES, tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(paths)
    for drawing in draw("main", Lines(LINES).common("main")):
        for kind in ("png", "svg"):
            drawing.save(tmp_path / "again", kind)
            assert (tmp_path / "again").read_bytes() == (tmp_path / "pictures" / f"{drawing.name}.{kind}").read_bytes()
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\((pictures/[^)]+)\)", text)
    assert len(shown) == 2 * 9
    files = re.findall(r"\]\((tables/[^)]+)\)", text)
    assert all((tmp_path / path).is_file() for path in (*shown, *files))
    assert sorted(re.findall(r'<a id="(\w+)">', text)) == sorted(TABLES)
    assert text.count("<details") == text.count("</details>") == len(TABLES) + 2
    assert "{{" not in text
    assert "has R@50 0.3896 (paper 0.3896), its best head" in " ".join(text.split())
    assert "[Every head of ConCF" not in text  # nothing that holds is listed as what does not
    noise = "0.0050 (consensus; at most 0.0050), 0.0050 (best head; at most 0.0050) on average"
    assert noise in " ".join(text.split())
    assert "NVIDIA H200, x, 8 cores | abc123 | torch 2.13" in text


@pytest.mark.parametrize("lines", [[], LINES[:1], [LINES[5]]],
                         ids=["nothing", "statistics", "a line"])  # fmt: skip
def test_little_is_enough(tmp_path: Path, lines: list[Line]):
    render(lines, tmp_path)
    assert "not measured" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_page_and_tables_in_the_repository_are_those_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drawing, "save", lambda self, path, kind: path.touch())  # their bytes depend on the fonts there
    home = Path(published.__file__).parent
    text = (home / "results.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    written = render(lines, tmp_path)
    for path in written:
        there = home / path.relative_to(tmp_path)
        assert there.exists(), f"{there} is missing: make reproduction"
        if path.suffix in (".md", ".csv", ".tex"):
            assert path.read_text(encoding="utf-8") == there.read_text(encoding="utf-8"), f"{there}: make reproduction"
