"""The demo: the default preset beside tuned baselines, in words that the metrics make, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_run import CLI

import concf.cli.demo_run as subject
from concf.data.simulate import DEMO
from concf.models import PRESETS, load_run
from concf.service.loading import Loader

SHORT = {"dimensions": 8}
SMALL = DEMO.model_copy(update={"users": 150, "items": 120, "events": 3500, "tastes": 8})
ALL = {"popularity", "itemknn", "ease", "rp3beta", "puresvd", "ials"}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A demo that is too short to be good."""
    grids = {name: type(each)(each.make, {k: v[:1] for k, v in each.grid.items()})
             for name, each in subject.SMALL_GRIDS.items()}  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("concf.data.prepare.DEMO", SMALL)
        patched.setattr(subject, "CHANGES", SHORT)
        patched.setattr(subject, "SMALL_GRIDS", grids)
        return subject.run(tmp_path_factory.mktemp("demo") / "demo")


def test_what_it_compares(short: dict[str, Any]) -> None:
    rows = {(row["kind"], row["name"]): row for row in short["rows"]}
    assert {name for kind, name in rows if kind == "baseline"} == ALL
    assert [name for kind, name in rows if kind == "ConCF"] == [*PRESETS["strong"].heads, "R-consensus", "consensus"]
    learned = load_run(short["run"]).best
    assert all(rows["ConCF", name]["validation"] == pytest.approx(best.validation) for name, best in learned.items())
    baselines = {row["name"]: row["means"]["recall@50"] for row in short["rows"] if row["kind"] == "baseline"}
    best = max(baselines, key=lambda name: baselines[name])
    assert short["rival"] == best
    assert short["gain"] == pytest.approx(rows["ConCF", "consensus"]["means"]["recall@50"] / baselines[best] - 1)
    assert 0 <= short["p"] <= 1


def test_what_it_leaves_behind(short: dict[str, Any]) -> None:
    assert Path(short["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((Path(short["out"]) / "demo.json").read_text()) == json.loads(json.dumps(short))
    assert Loader()(Path(short["run"])).recommender  # what `concf serve` does
    assert sorted(path.name for path in Path(short["out"]).parent.iterdir()) == ["demo"]


def test_it_replaces_no_folder_but_its_own(concf: CLI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("x")
    monkeypatch.chdir(tmp_path)
    code, _, err = concf("demo")
    assert (code, "not a folder that concf made" in err, "--out" in err) == (2, True, True)
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["thesis.tex"]


def test_the_words_follow_the_metrics(short: dict[str, Any], concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    for gain, p, words in ((0.1, 1e-6, "10.0% above"), (-0.1, 0.3, "10.0% below")):
        monkeypatch.setattr(subject, "run", lambda out, more={"gain": gain, "p": p}: short | more)
        code, said, _ = concf("demo")
        assert (code, words in said, "which may be chance" in said) == (0, True, p > 0.05)
