"""The command line: teaches, reports metrics as JSON, and stays quiet where nobody watches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import CLI

from concf.data.catalogue import HOME_VARIABLE
from concf.data.simulate import Simulation
from concf.errors import ConcfWarning, command_line, note, option
from concf.runtime.provenance import VERSION, provenance

ROOT = Path(__file__).parents[1]


def test_prepare_then_compare(concf: CLI, tmp_path: Path) -> None:
    Simulation(users=100, items=80, events=3000).draw(0).write_csv(tmp_path / "log.csv")
    assert concf("prepare", tmp_path / "log.csv", "--protocol", "random", "--out", tmp_path / "d")[0] == 0
    words = ["compare", tmp_path / "d", "--models", "popularity,ease", "--seeds", 2]
    code, out, err = concf(*words, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert [model["model"] for model in report["models"]] == ["ease", "popularity"]
    assert report["models"][0]["p_against_first"]["recall@50"] is None
    assert {model["fitted_on"] for model in report["models"]} == {"train and valid"}
    code, out, _ = concf(*words)
    assert (code, "Holm" in out, "fitted on training and validation pairs" in out) == (0, True, True)


def test_statistics_of_a_log(concf: CLI, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,a\n2,b\n1,b\n")
    code, out, _ = concf("data", "stats", tmp_path / "log.csv")
    assert (code, "75.000%" in out) == (0, True), out


def test_data_commands(concf: CLI, real_data: Path) -> None:
    code, out, _ = concf("data", "list", "--json")
    assert code == 0
    assert {row["name"]: row["here"] for row in json.loads(out)["data"]}["citeulike"] is True
    code, out, _ = concf("data", "stats", "ciao", "--json")
    rows = json.loads(out)["statistics"]
    assert [row["interactions"] for row in rows] == [282_650]
    code, out, _ = concf("data", "stats", real_data / "citeulike" / "users.dat")
    assert code == 0
    assert "134,860" in out
    code, out, _ = concf("data", "fetch", "citeulike")
    assert out.strip().endswith("users.dat")


@pytest.mark.parametrize(("imports", "unwanted"), [
    ("concf", "torch polars pydantic rich"), ("concf.cli.app", "numpy pydantic rich importlib.metadata"),
    ("concf.cli.app, concf.data.prepare", "torch implicit pandas"), ("concf.models", "torch._dynamo"),
    ("concf.inference.recommender", "torch pandas polars scipy.linalg"), ("concf.service.server", "torch scipy polars"),
])  # fmt: skip
def test_importing_brings_no_more_than_is_needed(imports: str, unwanted: str) -> None:
    script = f"import sys, {imports}; print(set({unwanted.split()}) & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONCF_COMMIT", raising=False)
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert head.startswith(str(provenance()["commit"]).rstrip("+"))
    monkeypatch.setenv("CONCF_COMMIT", "abc")
    assert provenance()["commit"] == "abc"


def test_a_note_is_a_warning_in_python_and_a_line_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(ConcfWarning, match=r"^few users$"):
        note("few users")
    with command_line():
        note("few users")
        assert option("min_item") == "--min-item"
    assert capsys.readouterr().err == "note: few users\n"
    assert option("min_item") == "min_item="


def test_doctor_says_versions_devices_and_places(concf: CLI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "not" / "made"))
    code, out, err = concf("doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["concf"], found["python"]) == (VERSION, sys.version.split()[0])
    assert found["data home"] == str(tmp_path / "not" / "made")
    assert "GiB of memory free" in found["cpu"]
    assert "torch" in found["libraries"]
    assert all(name in concf("doctor")[1] for name in found)
