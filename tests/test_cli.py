"""The command line: teaches, reports figures as JSON, and stays quiet where nobody watches."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from conftest import on_a_terminal
from skipping import posix

from concf.data.catalogue import load
from concf.data.simulate import Simulation
from concf.runtime.provenance import VERSION

Run = Callable[..., tuple[int, str, str]]


def test_the_acceptance_example(concf: Run, real_data: Path, tmp_path: Path) -> None:
    code, out, _ = concf(
        "prepare", "citeulike", "--protocol", "released", "--seed", 0, "--out", tmp_path / "x", "--json"
    )
    report = json.loads(out)
    assert code == 0
    assert (report["users"], report["items"], report["interactions"]) == (2735, 3024, 52133)
    data = load("citeulike")
    pairs = pl.DataFrame({"user_id": data.user_ids.values[data.user], "item_id": data.item_ids.values[data.item]})
    pairs.sample(fraction=1.0, shuffle=True, seed=8).write_csv(tmp_path / "shuffled.csv")
    code, out, _ = concf("prepare", tmp_path / "shuffled.csv", "--seed", 0, "--out", tmp_path / "y", "--json")
    assert code == 0
    assert json.loads(out)["split_hash"] == report["split_hash"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_paper_s_protocol_on_citeulike_whatever_the_seed(
    concf: Run, real_data: Path, tmp_path: Path, seed: int
) -> None:
    words = ("--protocol", "paper", "--seed", seed, "--out", tmp_path / "x", "--json")
    report = json.loads(concf("prepare", "citeulike", *words)[1])
    counts = {name: report[name] for name in ("users", "items", "train", "valid", "test", "evaluated_users")}
    assert counts == {
        "users": 5219, "items": 25181, "train": 107_638, "valid": 8_971, "test": 8_971, "evaluated_users": 2_139
    }  # fmt: skip


def test_prepare_then_compare(concf: Run, tmp_path: Path) -> None:
    Simulation(users=300, items=200, events=9000).draw(0).write_csv(tmp_path / "log.csv")
    assert concf("prepare", tmp_path / "log.csv", "--protocol", "random", "--out", tmp_path / "d")[0] == 0
    words = ["compare", tmp_path / "d", "--models", "popularity,ease", "--seeds", 2, "--markdown", tmp_path / "t.md"]
    code, out, err = concf(*words, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert [model["model"] for model in report["models"]] == ["ease", "popularity"]
    assert report["models"][0]["p_against_first"]["recall@50"] is None
    assert (tmp_path / "t.md").read_text().startswith("| model |")
    code, out, _ = concf(*words)
    assert "ease" in out
    assert "Holm" in out
    assert report["split_hashes"][0][:8] in out
    assert "fitted on training and validation pairs" in out
    assert {model["fitted_on"] for model in report["models"]} == {"train and valid"}
    alone = json.loads(concf(*words, "--no-refit", "--json")[1])
    assert {model["fitted_on"] for model in alone["models"]} == {"train"}
    assert "fitted on training pairs" in concf(*words, "--no-refit")[1]


def test_statistics_of_a_log(concf: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,a\n2,b\n1,b\n")
    code, out, _ = concf("data", "stats", tmp_path / "log.csv")
    assert (code, "75.000%" in out) == (0, True), out


def test_data_commands(concf: Run, real_data: Path) -> None:
    code, out, _ = concf("data", "list", "--json")
    assert code == 0
    assert {row["name"]: row["here"] for row in json.loads(out)["data"]}["citeulike"] is True
    code, out, _ = concf("data", "stats", "ciao", "--json")
    rows = json.loads(out)["statistics"]
    assert [row["interactions"] for row in rows] == [282_650, 147_989, 92_157]
    code, out, _ = concf("data", "stats", real_data / "citeulike" / "users.dat")
    assert code == 0
    assert "134,860" in out
    code, out, _ = concf("data", "fetch", "citeulike")
    assert out.strip().endswith("users.dat")


def test_help_teaches(concf: Run) -> None:
    for words in ([], ["prepare"], ["train"], ["evaluate"], ["compare"], ["demo"], ["data"], ["data", "stats"]):
        code, out, _ = concf(*words, "--help")
        assert code == 0
        assert "Usage: concf" in out
    assert "citeulike" in concf("prepare", "--help")[1]
    assert "--resume" in concf("train", "--help")[1]
    assert concf("--version")[1].strip() == VERSION


def test_wrong_words_end_with_code_2(concf: Run, tmp_path: Path) -> None:
    assert concf("prepair")[0] == 2
    assert concf("compare", tmp_path)[0] == 2
    assert "not a prepared data set" in concf("compare", tmp_path)[2]
    code, _, err = concf("compare", tmp_path, "--test", "magic")
    assert (code, "'magic' is not one of" in err) == (2, True)


PARTS_ALONE = """
import sys
for name in ("polars", "pyarrow", "rich", "typer", "implicit", "pandas", "threadpoolctl"):
    sys.modules[name] = None
import concf.evaluation.evaluate, concf.data.split, concf.experiments.compare
import concf.model.baselines.table, concf.data.simulate
"""


def test_evaluation_needs_no_reader_and_no_extra() -> None:
    subprocess.run([sys.executable, "-c", PARTS_ALONE], check=True)


@pytest.mark.parametrize(
    ("imports", "unwanted"),
    [
        ("concf", "torch polars pydantic rich"),
        ("concf.cli.app, concf.runtime.text_tables, concf.data.prepare", "torch implicit pandas"),
        ("concf.training.train, concf.inference.ranker", "polars implicit pandas"),
    ],
)
def test_importing_brings_no_more_than_is_needed(imports: str, unwanted: str) -> None:
    script = f"import sys, {imports}; print(set({unwanted.split()}) & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


SLOW = """
import time
from concf.runtime.progress import working
import concf.runtime.progress
concf.runtime.progress.PATIENCE = 0.2
with working("outer", 4) as advance:
    for step in range(4):
        with working("inner"):
            time.sleep(0.3)
        advance(1)
print("done")
"""


@posix
def test_progress_shows_on_a_terminal_and_nowhere_else() -> None:
    quiet = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=True)
    assert quiet.stderr == ""
    shown, out, code = on_a_terminal([sys.executable, "-c", SLOW])
    assert (out.strip(), code) == ("done", 0)
    assert b"outer" in shown
    assert b"inner" in shown
