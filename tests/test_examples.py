"""The examples run as they are, and do what they say."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("on_one_thread")

FOLDER = Path(__file__).parents[1] / "examples"
LINES = 30
Run = Callable[..., list[str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """What an example prints, line by line."""

    def run(name: str, *words: str) -> list[str]:
        monkeypatch.setattr("sys.argv", [name, *words])
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_a_log_becomes_lists_reasons_and_a_newcomers_list(run: Run) -> None:
    lines = run("recommend_from_csv.py")
    ranks = [match[1] for line in lines if (match := re.search(r"┆ (\d+) +│$", line))]
    assert ranks == ["1", "2", "3"] * 3  # two users and the newcomer
    assert any("'als-a': " in line for line in lines)


def test_the_objective_of_ones_own_learns_alone_and_together(run: Run) -> None:
    lines = [line.split() for line in run("own_objective.py")]
    names = [(line[0], line[4]) for line in lines]
    heads = ["bpr", "multinomial", "smooth-hinge", "R-consensus", "consensus"]
    assert names == [("alone:", "smooth-hinge"), *(("together:", head) for head in heads)]
    assert all(float(line[5]) > 0.2 for line in lines)  # a list of 20 of 200 items by chance: 0.1


def test_numpy_gives_the_list_of_the_library(run: Run) -> None:
    ours, theirs = (line.partition(": ")[2] for line in run("serve_vectors.py"))
    assert ours == theirs
    assert len(ours.strip("[]").split()) == 5


def test_models_of_several_libraries_agree(run: Run) -> None:
    *figures, votes = run("combine_models.py")
    found = {line.partition(":")[0]: float(line.split()[-1]) for line in figures}
    assert list(found)[-3:] == ["student", "R-consensus", "consensus"]
    assert found["consensus"] > max(found["als"], found["popularity"])
    assert all(f"'{name}': " in votes for name in ("als-a", "als", "popularity", "rp3beta", "ease"))


def test_cells_of_a_notebook_run_in_order_and_are_kept_with_what_they_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = json.loads((FOLDER / "combine.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), "combine.ipynb", "exec"), names)
        capsys.readouterr()
        plain = [line for kept in cell["outputs"] for line in kept.get("text", [])]
        assert not any("Error" in line or str(Path.home()) in line for line in plain)
    assert names["tested"]["consensus"].means()["recall@20"] > max(
        names["tested"][name].means()["recall@20"] for name in ("als", "bpr", "als-a")
    )
    assert sum("image/png" in kept.get("data", {}) for cell in cells for kept in cell.get("outputs", [])) == 2


def test_examples_are_short_and_all_of_them_are_tested() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.iterdir():
        if path.suffix == ".py":
            assert f'run("{path.name}"' in tested
            assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES
