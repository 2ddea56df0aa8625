"""Rendering the paper's tables, figures and claims from lines made here, with figures known beforehand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from concf.experiments import published
from concf.experiments.claims import CLAIMS
from concf.experiments.figures import draw
from concf.experiments.measured import CITEULIKE, PLACES, Measured
from concf.experiments.published import BEST, CONSENSUS, HEADS, METRICS, R_CONSENSUS
from concf.experiments.rendering import SECTIONS, render
from concf.experiments.tables import TABLES, Table, escape
from concf.experiments.verdicts import FAILS, HOLDS, IN_PART, UNKNOWN

Line = dict[str, Any]
SHIFTS = (0.0, 0.004, -0.002, 0.001, 0.003)  # of the splits


def line(
    variant: str, figures: dict[str, float], place: tuple[str, str] = CITEULIKE, seed: int = 0, **fields: Any
) -> Line:
    """R@50 of each row; the other metrics and the groups are shares of it, G-4 gains with the rows' own `gains`."""
    preset, gains = fields.pop("preset", "reference"), fields.pop("gains", (0.9, 1.0, 1.1, 1.2))
    rows = {}
    for row, value in figures.items():
        test = dict(zip(METRICS, (0.6 * value, 0.35 * value, value, 0.45 * value), strict=True))
        groups = [
            {"users": 500, "activity": 40.0 - 10 * k} | {m: v * gains[k] for m, v in test.items()} for k in range(4)
        ]
        rows[row] = {"validation": value, "epoch": 50, "test": test, "groups": groups}
    heads = [row for row in figures if row not in (CONSENSUS, R_CONSENSUS)]
    cell = {"variant": variant, "data": place[0], "protocol": place[1], "seed": seed, "preset": preset}
    return {
        "cell": cell, "split_hash": "ab", "changes": [], "rows": rows, "seconds": 12.5, "device": "NVIDIA H200",
        "best_head": max(heads, key=lambda head: figures[head], default=""),
        "provenance": {"commit": "abc123", "versions": {"torch": "2.13"}, "machine": {"processor": "x", "cores": 8}},
    } | fields  # fmt: skip


def five(place: tuple[str, str], scheme: str, shift: float = 0.0) -> dict[str, float]:
    """The paper's own R@50, moved by a shift."""
    printed = (published.SINGLE if scheme == "SingleCF" else published.CONCF)[place[0]]
    found = {head: printed[head][2] + shift for head in HEADS}
    best = max(found.values())
    return found | {R_CONSENSUS: best - 0.004, CONSENSUS: best + 0.012}


def complements(ratio: float) -> dict[str, Any]:
    return {
        "per": {x: {y: 0.0 if x == y else 0.35 for y in HEADS} for x in HEADS},
        "chr": dict.fromkeys(HEADS, ratio),
        "user_chr": {head: [k / 100 * (0.9 + 0.02 * n) for k in range(101)] for n, head in enumerate(HEADS)},
    }


def steadiness() -> dict[str, Any]:
    bins = {"correct": [0.6 - 0.05 * k for k in range(10)], "incorrect": [0.5 - 0.05 * k for k in range(10)]}
    rising = [0.1 + 0.02 * k for k in range(10)]
    curves = {"R": rising, "RC": [1.08 * value for value in rising]}
    all_curves = {"R": rising, "RC": [1.16 * value for value in rising]}
    return {
        "consistency": {"one": bins, "all": bins},
        "curves": {"epoch": [5 * k for k in range(10)], "one": curves, "all": all_curves},
    }


def everything() -> list[Line]:
    """Lines as the paper would have them, so that its claims hold."""
    lines = []
    for place in (("citeulike", "paper"), *PLACES):
        printed = published.STATISTICS[place[0]]
        parts = {"train": 100, "valid": 20, "test": 20, "evaluated_users": 50}
        lines.append(line("statistics", {}, place, statistics={**printed, **parts}))
    for seed, shift in enumerate(SHIFTS):
        for place in PLACES:
            single, concf = five(place, "SingleCF", shift), five(place, "ConCF", 1.1 * shift)
            for preset in ("reference", "paper", "released"):
                lines.append(line("SingleCF", single, place, seed, preset=preset, **complements(0.56)))
                sizes = {"all": 1000, "embeddings": 995}
                lines.append(line("ConCF", concf, place, seed, preset=preset, gains=(0.9, 1.0, 1.1, 1.6),
                                  parameters=sizes, **complements(0.18)))  # fmt: skip
            lines.append(
                line("without CL", {k: v + 0.004 for k, v in single.items()}, place, seed, **complements(0.42))
            )
            if seed < 3:
                lines.append(line("initial conditions", {"bpr#1": 0.25}, place, seed, chr={"bpr#1": 0.30}))
                lines.append(line("model sizes", {"bpr d=64": 0.25}, place, seed, chr={"bpr d=64": 0.32}))
    for seed, shift in enumerate(SHIFTS[:3]):
        lines += only_citeulike(seed, shift)
    return lines


def only_citeulike(seed: int, shift: float) -> list[Line]:
    consensus = five(CITEULIKE, "ConCF", 1.1 * shift)[CONSENSUS]
    lines = [line("consistency", {}, seed=seed, **steadiness())]
    for variant in ("PCL", "homogeneous"):
        printed = {row: four[2] + shift for (who, row), four in published.HOMOGENEOUS.items() if who == variant}
        lines.append(line(variant, printed, seed=seed))
    noise = 0.02 * (seed - 1)  # a pupil is better or worse than its teacher by chance
    taught = {row: value + shift + noise * (">" in row) for row, value in published.DISTILLATION.items()}
    taught = {row: min(value, 0.3700 + shift) if ">" in row else value for row, value in taught.items()}
    lines.append(line("distillation", taught, seed=seed))
    for variant, (best, both) in published.HYPERPARAMETERS.items():
        lines.append(line(variant, {"bpr": best + shift, CONSENSUS: both + shift}, seed=seed))
    lines.append(line("weights per epoch", {"bpr": 0.36 + shift, CONSENSUS: 0.37 + shift}, seed=seed))
    for variant in ("ConCF-S", "AutoML"):
        figures = {"bpr": published.SELECTION[variant, BEST][2], CONSENSUS: published.SELECTION[variant, CONSENSUS][2]}
        lines.append(line(variant, {row: value + shift for row, value in figures.items()}, seed=seed))
    for variant, (best, r, rc) in published.SHARING.items():
        if variant != "ConCF":
            figures = {"bpr": best + shift, R_CONSENSUS: r + shift, CONSENSUS: rc + shift}
            lines.append(line(variant, figures, seed=seed, parameters={"all": 1000, "embeddings": 900}))
    for variant, effect in (("paper: alpha", 0.01), ("released: window_[x]", -0.02)):
        lines.append(line(variant, {CONSENSUS: consensus + effect}, seed=seed, changes=["consensus.weight=0.01"]))
    return lines


LINES = everything()


def verdicts(lines: list[Line]) -> dict[str, str]:
    return {claim.id: claim.verdict(Measured(lines)).word for claim in CLAIMS}


def changed(variant: str, add: float, row: str | None = None) -> list[Line]:
    """The lines with a variant's test figures moved."""
    found = []
    for each in LINES:
        if each["cell"]["variant"] == variant:
            rows = {
                name: old if row not in (None, name) else old | {"test": {m: v + add for m, v in old["test"].items()}}
                for name, old in each["rows"].items()
            }
            each = each | {"rows": rows}
        found.append(each)
    return found


def table(experiment: str, name: str, lines: list[Line] = LINES) -> Table:
    return next(each for each in TABLES[experiment](Measured(lines)) if each.name == name)


def cell(found: Table, column: str, *labels: str) -> str:
    row = next(row for row in found.rows if row[: len(labels)] == list(labels))
    return row[found.header.index(column)]


@pytest.mark.parametrize("data", published.SINGLE)
@pytest.mark.parametrize("place", range(4), ids=METRICS)
def test_printed_gains_follow_from_the_printed_figures(data: str, place: int):
    single = {head: four[place] for head, four in published.SINGLE[data].items()}
    best = max(single, key=lambda head: single[head])
    concf = published.CONCF[data]
    assert concf[best][place] / single[best] - 1 == pytest.approx(published.GAIN_BEST[data][place], abs=6e-5)
    assert concf[CONSENSUS][place] / single[best] - 1 == pytest.approx(published.GAIN_CONSENSUS[data][place], abs=6e-5)


def test_printed_figures_agree_between_tables():
    assert published.GAIN_CONSENSUS["citeulike"][2] == 0.2255
    assert published.HYPERPARAMETERS["Q=5,p=20"] == published.HYPERPARAMETERS["alpha=0.01"]
    assert published.SHARING["ConCF"][::2] == published.HYPERPARAMETERS["alpha=0.01"]
    assert published.DISTILLATION["T1"] == published.SINGLE["citeulike"]["multinomial"][2]
    assert published.SELECTION["ConCF", CONSENSUS] == published.CONCF["citeulike"][CONSENSUS]
    assert published.CHR["SingleCF"] == published.CHR_BY_SCHEME["SingleCF"]
    for name, printed in published.STATISTICS.items():
        density = printed["events"] / printed["users"] / printed["items"]
        assert density == pytest.approx(printed["density"], abs=6e-6), name


def test_known_figures_give_known_cells():
    found = table("main", "main-citeulike-released-reference-50")
    assert cell(found, "R@50 paper", "SingleCF", "CF-A") == "0.2513"
    assert cell(found, "R@50 ours", "SingleCF", "CF-A") == "0.2525 ± 0.0024"  # the shifts: mean 0.0012
    assert cell(found, "R@50 difference", "SingleCF", "CF-A") == "+0.0012"
    assert cell(found, "splits", "SingleCF", "CF-A") == "5"
    assert cell(found, "R@50 paper", "ConCF", R_CONSENSUS) == "not given"
    best, head = 0.3179 + 0.0012, 0.3721 + 1.1 * 0.0012
    assert cell(found, "R@50 ours", "ConCF", "Gain.Best").startswith(f"{100 * (head / best - 1):.2f} % ± ")
    assert cell(found, "R@50 paper", "ConCF", "Gain.Con.") == "22.55 %"


def test_foursquare_is_another_data_set():
    found = table("main", "main-foursquare-released-reference-50")
    assert {row[found.header.index("R@50 difference")] for row in found.rows} == {"other data", "–"}


def test_what_is_missing_says_so_and_what_is_partly_there_says_how_much():
    for experiment, tables in TABLES.items():
        for each in tables(Measured([])):
            assert any("not measured" in row for row in each.rows), (experiment, each.name)
    two = [each for each in LINES if each["cell"]["seed"] < 2]
    assert cell(table("main", "main-ciao-paper-reference-50", two), "splits", "ConCF", "CF-A") == "2 of 5"
    one = [each for each in LINES if each["cell"]["seed"] == 0]
    assert cell(table("main", "main-ciao-paper-reference-50", one), "R@50 ours", "ConCF", "CF-A") == "0.2237"


def test_a_groups_gain_is_the_ratio_of_its_means():
    found = table("groups", "groups")
    ratio = 1.6 / 1.2 * (0.3721 + 1.1 * 0.0012) / (0.3179 + 0.0012)
    assert cell(found, "gain", "CiteULike, released", "G-4").startswith(f"{100 * (ratio - 1):.2f} %")


def test_the_best_single_is_that_of_the_mean_validation():
    lines = [line("SingleCF", {"bpr": 0.30, "cml": 0.29}), line("SingleCF", {"bpr": 0.20, "cml": 0.29}, seed=1)]
    assert Measured(lines).best_single(CITEULIKE) == "cml"


def test_a_line_measured_again_counts_once_and_trials_do_not_count():
    again = [line("SingleCF", {"bpr": 0.1}), line("SingleCF", {"bpr": 0.2})]
    trial = line("SingleCF", {"bpr": 0.9}) | {"key": {"set": ["training.epochs=2"]}}
    assert Measured([*again, trial]).test("SingleCF", CITEULIKE, "bpr") == {0: 0.2}


def test_differences_are_sorted_by_their_effect():
    found = table("differences", "differences")
    assert [row[0] for row in found.rows] == ["paper: alpha", "paper: all", "released: all", "released: window_[x]"]
    assert cell(found, "consensus R@50", "paper: alpha") == "+0.0100 ± 0.0000"


def test_the_papers_own_figures_make_its_claims_hold():
    found = verdicts(LINES)
    assert {name: word for name, word in found.items() if word != HOLDS} == {}


@pytest.mark.parametrize(
    ("claim", "variant", "add", "row", "word"),
    [
        ("every-head", "ConCF", -0.2, None, FAILS),
        ("every-head", "ConCF", -0.2, "cml", IN_PART),
        ("gain-consensus", "ConCF", -0.3, CONSENSUS, FAILS),
        ("gain-best", "SingleCF", 0.3, None, FAILS),
        ("without-cl", "without CL", 0.2, None, FAILS),
        ("single-ensemble", "SingleCF", 0.2, CONSENSUS, FAILS),
        ("rc-over-r", "ConCF", 0.1, R_CONSENSUS, IN_PART),
        ("het-over-homogeneous", "homogeneous", 0.1, None, FAILS),
        ("homogeneous-over-pcl", "PCL", 0.1, None, FAILS),
        ("kd-teacher", "distillation", -0.2, "T2", IN_PART),
        ("kd-concf", "distillation", 0.2, "T2 > ConCF consensus", IN_PART),
        ("balancing", "without balancing", 0.1, None, FAILS),
        ("per-batch", "weights per epoch", 0.1, None, FAILS),
        ("alpha", "alpha=1", 0.1, None, FAILS),
        ("all-rankings", "Q=all,p=1", 0.1, None, IN_PART),
        ("concf-s", "ConCF-S", 0.1, None, IN_PART),
        ("automl", "AutoML", -0.1, CONSENSUS, IN_PART),
        ("sharing", "sharing=none", 0.1, None, IN_PART),
    ],
)
def test_verdicts_turn_with_the_figures(claim: str, variant: str, add: float, row: str | None, word: str):
    assert verdicts(changed(variant, add, row))[claim] == word


@pytest.mark.parametrize(
    ("claim", "variant", "fields", "word"),
    [
        ("chr-objective", "model sizes", {"chr": {"bpr d=64": 0.9}}, IN_PART),
        ("chr-lowest", "ConCF", {"chr": {"bpr": 0.9}}, FAILS),
        ("chr-users", "SingleCF", {"user_chr": dict.fromkeys(HEADS, [0.1] * 101)}, FAILS),
        ("per-high", "SingleCF", {"per": {x: dict.fromkeys(HEADS, 0.1) for x in HEADS}}, FAILS),
        ("embeddings", "ConCF", {"parameters": {"all": 100, "embeddings": 98}}, FAILS),
        ("statistics", "statistics", {"statistics": {"users": 1, "items": 2, "events": 3}}, FAILS),
        ("steadier", "consistency", {"consistency": {"all": {"correct": [0.1] * 10, "incorrect": [0.2] * 10}}}, FAILS),
        ("rc-over-training", "consistency", {"curves": {"epoch": [1], "all": {"R": [0.2], "RC": [0.1]}}}, FAILS),
    ],
)
def test_verdicts_turn_with_other_fields(claim: str, variant: str, fields: dict[str, Any], word: str):
    lines = [each | fields if each["cell"]["variant"] == variant else each for each in LINES]
    assert verdicts(lines)[claim] == word


def test_sparse_users_must_gain_the_most():
    flat = [line("SingleCF", {"bpr": 0.2}), line("ConCF", {"bpr": 0.3, CONSENSUS: 0.4}, gains=(2.0, 1.0, 1.0, 1.0))]
    found = verdicts(flat)
    assert found["sparse-users"] == FAILS
    assert found["all-groups"] == HOLDS
    assert found["gain-best"] == IN_PART  # a gain, but one split is no test
    assert found["sharing"] == UNKNOWN


def test_only_on_average_is_in_part():
    ours = [line("ConCF", {"bpr": v, CONSENSUS: v}, seed=k) for k, v in enumerate((0.5, 0.1, 0.5))]
    theirs = [line("without balancing", {"bpr": 0.2, CONSENSUS: 0.2}, seed=k) for k in range(3)]
    assert verdicts([*ours, *theirs])["balancing"] == IN_PART


def test_csv_reads_back_and_latex_is_whole():
    found = Table("t", "50 % of a_b", ["a|b", "c,d"], [["x & y", 'say "1"'], ["[z]", "0.1 ± 0.2"]], "A note #1.")
    assert list(csv.reader(io.StringIO(found.csv()))) == [found.header, *found.rows]
    text = found.latex()
    assert r"\caption{50 \% of a\_b. A note \#1.}" in text
    assert r"x \& y" in text
    assert r"0.1 $\pm$ 0.2" in text
    assert r"{[}z{]}" in text
    assert "\\|" in Table("t", "", ["a"], [["x|y"]]).markdown()
    assert escape("\\") == r"\textbackslash{}"
    for tables in TABLES.values():
        for each in tables(Measured(LINES)):
            rows = each.latex().split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
            assert len(rows) == len(each.rows)
            assert all(len(re.split(r"(?<!\\)&", row)) == len(each.header) for row in rows)
            assert all(len(row) == len(each.header) for row in each.rows)


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_rendering_twice_gives_the_same_bytes(tmp_path: Path):
    for name in ("a", "b"):
        paths = render(LINES, tmp_path / name / "docs", tmp_path / name / "results")
        assert {path for path in (tmp_path / name).rglob("*") if path.is_file()} == set(paths)
    first = written(tmp_path / "a")
    assert first == written(tmp_path / "b")
    text = first["docs/reproduction.md"].decode()
    shown = re.findall(r"\]\((reproduction/[^)]+)\)", text)
    assert len(shown) == 2 * 8
    files = re.findall(r"\]\((\.\./results/[^)]+)\)", text)
    assert all((tmp_path / "a" / "docs" / path).is_file() for path in (*shown, *files))
    assert [text.index(f"## {title}\n") for title in SECTIONS.values()] == sorted(
        text.index(f"## {title}\n") for title in SECTIONS.values()
    )
    assert f"Of the paper's {len(CLAIMS)} claims {len(CLAIMS)} hold, 0 hold in part" in text
    assert "NVIDIA H200, x, 8 cores | abc123 | torch 2.13" in text


@pytest.mark.parametrize("lines", [[], LINES[:1], [LINES[5]], [each for each in LINES if each["cell"]["seed"] == 0]],
                         ids=["nothing", "statistics", "a line", "a split"])  # fmt: skip
def test_little_is_enough(tmp_path: Path, lines: list[Line]):
    render(lines, tmp_path / "docs", tmp_path / "results")
    assert "not measured" in (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8")


def test_a_persons_summary_stands_at_the_top(tmp_path: Path):
    own = tmp_path / "docs" / "reproduction" / "summary.md"
    own.parent.mkdir(parents=True)
    own.write_text("Read by a **person**.\n", encoding="utf-8")
    render([], tmp_path / "docs", tmp_path)
    text = (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert text.index("Read by a **person**.") < text.index("## How it is made")
    render([], tmp_path / "docs", tmp_path, summary="Said by hand.")
    text = (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert "Said by hand." in text
    assert "person" not in text.split("## How")[0]


def test_drawing_leaves_matplotlib_as_it_was():
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert [drawing.name for drawing in draw("chr", Measured(LINES))] == ["user-chr"]
    assert draw("chr", Measured([])) == []
    assert draw("stats", Measured(LINES)) == []
    assert dict(matplotlib.rcParams) == before


def test_the_page_and_tables_in_the_repository_are_those_of_its_lines(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    summary = (root / "docs/reproduction/summary.md").read_text(encoding="utf-8")
    text = (root / "results/reproduction.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    written = render(lines, tmp_path / "docs", tmp_path / "results", summary)
    for path in written:
        there = root / path.relative_to(tmp_path)
        assert there.exists(), f"{there} is missing: make reproduction"
        if path.suffix in (".md", ".csv", ".tex"):
            assert path.read_text(encoding="utf-8") == there.read_text(encoding="utf-8"), f"{there}: make reproduction"
