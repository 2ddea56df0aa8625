"""`python -m reproduction`: cells are measured once, in the paper's order, and shown beside the published figures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from document_runner import ROOT
from small_run import CLI
from test_experiments_small import SMALL, measured_again

from concf.cli.app import main
from concf.comparison.results_log import ResultsLog
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.models import PRESETS, choose_settings
from concf.reference.objectives import FORMULATIONS, Formulation
from reproduction.__main__ import app
from reproduction.plan import EXPERIMENTS, Cell, cells_of, choose_reference
from reproduction.running import is_current, run_cells
from reproduction.variants import PAPER_ROWS, RELEASED_ROWS, SIDE_BY_SIDE, SIZES, VARIANTS

CELLS = [Cell(variant, "demo", "released", seed) for variant in ("statistics", "PCL") for seed in (0, 1)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small splits under the names that the runner looks for."""
    home = tmp_path_factory.mktemp("data")
    for seed in (0, 1):
        split = prepare(Simulation(users=70, items=150, events=2000, tastes=4).draw(3), protocol="random", seed=seed)
        split.save(home / f"demo-released-{seed}")
    return home


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    """Run `python -m reproduction` in this process: (exit code, standard output, standard error)."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["reproduction", *map(str, words)])
        capsys.readouterr()
        try:
            main(app, "reproduction")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def home(prepared: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    for folder in prepared.iterdir():
        Split.load(folder).save(tmp_path / "data" / folder.name)
    return tmp_path / "data"


def run(cells: list[Cell], book: Path, home: Path, *more: str, **options: Any) -> list[str]:
    return run_cells(cells, ResultsLog(book), home, device="cpu", changes=[*SMALL, *more], **options)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_cell(path: Path) -> dict[str, dict[str, Any]]:
    return {json.dumps(line["cell"]): measured_again(line) for line in lines_of(path)}


def test_what_is_in_the_log_is_not_measured_again(prepared: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    assert run(CELLS[:3], tmp_path / "book", prepared, minutes=0) == []
    assert not (tmp_path / "book").exists()  # no cell is begun after the minutes
    assert run(CELLS[:3], tmp_path / "book", prepared, say=messages.append) == []
    before = (tmp_path / "book").read_bytes()
    assert run(CELLS, tmp_path / "book", prepared, say=messages.append) == []
    after = (tmp_path / "book").read_bytes()
    assert after.startswith(before)
    assert len(messages) == len(lines_of(tmp_path / "book")) == 4
    for cell, line in zip(CELLS, lines_of(tmp_path / "book"), strict=True):
        assert line["key"] == line["cell"] | {"set": list(SMALL)}
        assert line["cell"]["variant"] == cell.variant
        assert line["split_hash"] == Split.load(prepared / cell.folder).hash


def test_cells_that_were_measured_with_settings_that_are_constants_now_are_not_measured_again() -> None:
    log = ResultsLog(ROOT / "reproduction" / "results.jsonl")
    cells = cells_of(["all"])
    stale = [cell for cell in cells if not is_current(log.find(cell.key()), cell)]
    assert all(log.find(cell.key()) is None and cell in EXPERIMENTS["ten"].cells() and cell.seed > 4 for cell in stale)
    assert len(stale) == 14  # of the splits beyond the fifth, which were not measured
    line = log.find(cells[0].key())
    assert line is not None
    per_epoch = line["settings"] | {"balance": line["settings"]["balance"] | {"update": "epoch"}}
    assert not is_current(line | {"settings": per_epoch}, cells[0])


@pytest.mark.usefixtures("quick_processes")
def test_two_processes_give_the_lines_of_one_and_tell_of_cells_that_fail(home: Path, tmp_path: Path) -> None:
    Split.load(home / "demo-released-0").save(home / "demo-released-2")
    (home / "demo-released-2" / "part.npy").write_bytes(b"")
    bad = [Cell(variant, "demo", "released", 2) for variant in ("statistics", "PCL")]
    cells = [*bad, *CELLS]
    for workers in (1, 2):
        failures = run(cells, tmp_path / str(workers), home, workers=workers)
        assert len(failures) == 2
        assert all("split 2" in failure and "part.npy was changed or cut short" in failure for failure in failures)
    assert by_cell(tmp_path / "1") == by_cell(tmp_path / "2")
    assert len(by_cell(tmp_path / "2")) == 4


# The plan


@pytest.mark.parametrize(("preset", "rows"), [("paper", PAPER_ROWS), ("released", RELEASED_ROWS)])
def test_the_rows_together_are_the_preset_and_each_is_a_part_of_it(
    preset: str, rows: dict[str, tuple[str, ...]]
) -> None:
    """So the experiment `differences` leaves none out."""
    words = [word for row in rows.values() for word in row]
    points = [word.partition("=")[2] for word in words if word.startswith("formulation=")]
    others = [word for word in words if not word.startswith("formulation=")]
    assert choose_settings("reference", words=[*others, f"formulation={preset}"]) == PRESETS[preset]
    assert len({word.partition("=")[0] for word in (*points, *others)}) == len(words)
    together = {name: getattr(FORMULATIONS[point], name) for point in points for name in [point.partition("=")[0]]}
    assert Formulation(**together) == FORMULATIONS[preset]
    for name, row in rows.items():
        for word in row:
            assert choose_settings("reference", words=[word]) != PRESETS["reference"], (name, word)
        assert VARIANTS[f"{preset}: {name}"] == row


def test_every_variant_is_valid_under_the_presets_it_is_planned_for() -> None:
    planned = {(cell.variant, cell.preset) for cell in cells_of(["all"])}
    assert {variant for variant, _ in planned} == {*VARIANTS}
    for variant, preset in planned:
        chosen = choose_settings(preset, words=VARIANTS[variant])
        assert (chosen == PRESETS[preset]) == (not VARIANTS[variant]), variant
        if variant == "distillation":
            choose_settings(preset, words=SIDE_BY_SIDE)
        if variant == "model sizes":
            assert [choose_reference(preset, [f"model.dimensions={size}"]).model.dimensions for size in SIZES]


# The command


def test_an_unknown_experiment_is_refused_and_writes_nothing(program: CLI, tmp_path: Path) -> None:
    code, out, err = program("mian", "--results", tmp_path / "book", "--data", tmp_path / "data")
    assert (code, "no experiment is called 'mian'" in err, "Traceback" in err + out) == (2, True, False)
    assert not any(tmp_path.iterdir())


def test_an_experiment_is_measured_and_then_only_counted(program: CLI, prepared: Path, tmp_path: Path) -> None:
    words = ["homogeneous", "--seeds", 1, "--dataset", "demo", "--data", prepared, "--results", tmp_path / "book"]
    words += ["--device", "cpu", "--json", *(word for each in SMALL for word in ("--set", each))]
    for new in (6, 0):
        code, out, err = program(*words)
        answer = json.loads(out)
        figures = answer.pop("figures")
        assert (code, answer) == (
            0, {"cells": 6, "measured_now": new, "failures": [], "results": str(tmp_path / "book")},
        )  # fmt: skip
        assert err.count("R@50 ") == new
        assert {figure["variant"] for figure in figures} == {*EXPERIMENTS["homogeneous"].variants}
        assert {figure["splits"] for figure in figures} == {1}
        assert {figure["paper"] for figure in figures} == {None}  # the paper has no such data


def test_measured_figures_are_shown_beside_the_published_ones(program: CLI, tmp_path: Path) -> None:
    log = ResultsLog(tmp_path / "book")
    for seed, recall in enumerate((0.37, 0.39)):
        row = {"validation": recall, "test": {"recall@50": recall}}
        line = {"rows": {"bpr": row, "consensus": row}, "best_head": "bpr", "chr": {"bpr": 0.2}, "provenance": {}}
        cell = Cell("ConCF", "citeulike", "released", seed)
        log.add(cell.key(), {"cell": asdict(cell)} | line)
    code, out, err = program("--json", "--results", tmp_path / "book")
    answer = json.loads(out)
    assert (code, err, answer["measured_now"]) == (0, "", 0)
    ours = {(figure["row"], figure["figure"]): figure for figure in answer["figures"]}
    assert {which: (figure["paper"], figure["splits"]) for which, figure in ours.items()} == {
        ("bpr", "R@50"): (0.3701, 2), ("consensus", "R@50"): (0.3896, 2), ("best head", "R@50"): (0.3763, 2),
        ("bpr", "CHR"): (0.18, 2),
    }  # fmt: skip
    assert ours["bpr", "R@50"]["mean"] == pytest.approx(0.38)
    assert ours["bpr", "R@50"]["std"] == pytest.approx(0.02 / 2**0.5)
