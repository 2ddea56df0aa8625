"""The demo: the default preset beside tuned baselines, in words that the metrics make, and what it leaves behind."""

from __future__ import annotations

import json
from copy import deepcopy
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
    baselines = [row["means"] for row in short["rows"] if row["kind"] == "baseline"]
    for name in ("consensus", short["best_head"]):
        for figure, gain in short["gains"][name].items():
            assert gain["its"] == max(each[figure] for each in baselines)
            assert gain["mean"] == rows["ConCF", name]["means"][figure]
            assert gain["gain"] == pytest.approx(gain["mean"] / gain["its"] - 1)
            assert 0 <= gain["p"] <= 1


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


def changed(report: dict[str, Any], factor: float, p: float) -> dict[str, Any]:
    """The same with other metrics of ConCF."""
    other = deepcopy(report)
    for gains in other["gains"].values():
        for gain in gains.values():
            gain.update(mean=gain["its"] * factor, gain=factor - 1, p=p)
    return other


def test_the_words_follow_the_metrics(short: dict[str, Any], concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(report: dict[str, Any]) -> str:
        monkeypatch.setattr(subject, "run", lambda out: report)
        code, out, _ = concf("demo")
        assert code == 0
        return out

    good, bad = said(changed(short, 1.1, 1e-6)), said(changed(short, 0.9, 0.3))
    assert (good.count("10.0% above the best baseline"), good.count("which may be chance")) == (4, 0)
    assert (bad.count("10.0% below the best baseline"), bad.count("which may be chance")) == (4, 4)
