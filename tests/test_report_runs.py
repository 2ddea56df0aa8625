"""Reports of runs of every kind: one head, long names, hostile ids, killed half way, nothing to test on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from page_reader import read_page
from small_report import CLI, LOG, reported, trained
from small_run import SMALL, history

from concf.data.protocols import TEST, UNEVALUATED
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.report.gather import gather
from concf.report.page import page
from concf.training.checkpoint import CHECKPOINT, HISTORY, RunFolder, load_run
from concf.training.config.presets import choose_settings
from concf.training.run import Run
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

NASTY = "</td></style><script>alert(\"{}\")</script><b onmouseover='x'>&amp;]]>\u202e\x01"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("report"), 'consensus.non_voting=["cml"]', "training.metric=ndcg@5")


def test_hostile_ids_titles_and_names_are_only_text(concf: CLI, tmp_path: Path) -> None:
    nasty = LOG.select(user_id=pl.format(NASTY, "user_id"), item_id=pl.format(NASTY, "item_id"))
    made = trained(tmp_path, "training.epochs=2", log=nasty)
    folder = made.rename(made.with_name("<img src=x>&'\""))
    titles = pl.DataFrame({"item": nasty["item_id"].unique(), "title": '<i>T</i>\u2066" onload=x'})
    titles.write_parquet(tmp_path / "titles.parquet")
    plainly, page_of_ids = reported(concf, folder)
    _, with_titles = reported(concf, folder, "--catalogue", tmp_path / "titles.parquet")
    user = plainly["examples"][0]["user"].replace("\u202e\x01", "\\u202e\\u0001")
    for each in (page_of_ids, with_titles):
        assert f"User {user}" in each.text
        assert folder.name in each.text
    assert '<i>T</i>\\u2066" onload=x' in with_titles.text
    assert with_titles.style == page_of_ids.style


def test_one_head_alone_has_no_consensus(concf: CLI, tmp_path: Path) -> None:
    content, shown = reported(concf, trained(tmp_path, "objectives=bpr", "training.watch=bpr"))
    assert [each["name"] for each in content["recommenders"]] == ["bpr"]
    assert content["complementarity"] is None
    assert "complementarity" not in shown.ids()
    assert {label for section, label in shown.tables if section == "curves"} >= {"Validation", "Own loss"}
    switched_off = ("Agreement", "Consensus loss", "Balancing weights", "Gradient norms")
    assert not {("curves", label) for label in switched_off} & shown.tables.keys()
    assert "This run has one head" in shown.text
    assert shown.tables["examples", "Lists, user 1"][0] == ["", "bpr"]


def test_heads_of_the_default_preset_stand_beside_what_they_are(concf: CLI, tmp_path: Path) -> None:
    content, shown = reported(concf, trained(tmp_path, "training.metric=recall@5", preset="strong"))
    rows = {row[0].split()[0]: row[0] for row in shown.tables["results", "Test part"][1:5]}
    assert rows["als-a"].startswith("als-a least squares, unobserved ")
    assert rows["student"] == "student distilled from the consensus best head"
    assert ("results", "Validation part") not in shown.tables, "the run was refitted on it"
    stages = shown.tables["stages", "What each stage chose and measured"][1:]
    assert [row[0] for row in stages] == ["search", "als", "softmax-a", "rerank", "student", "refit", "final"]
    assert ("curves", "Validation") not in shown.tables, "stages have no curves"
    assert ("curves", "Balancing weights") not in shown.tables, "the preset does not balance"
    votes = shown.tables["examples", "Votes, user 1"]
    assert votes[0][2] == "score"
    scores = [each["reranked"] for each in content["examples"][0]["votes"]]
    assert sorted(scores, reverse=True) == scores
    assert [row[2] for row in votes[1:]] == [f"{each:.3f}" for each in scores]


def test_very_long_names(concf: CLI, tmp_path: Path) -> None:
    names = [f"{letter * 70}-head" for letter in "ab"]
    heads = ",".join(f"{name}={objective}" for name, objective in zip(names, ("bpr", "cml"), strict=True))
    content, shown = reported(concf, trained(tmp_path, f"objectives={heads}", "training.epochs=3"))
    assert content["run"]["heads"] == names
    assert [row[0].split()[0] for row in shown.tables["results", "Test part"][1:3]] == names
    assert "aaaaaaaa…aaaa-head" in shown.text, "shortened beside a chart"


def test_thousands_of_users(concf: CLI, tmp_path: Path) -> None:
    log = Simulation(users=3000, items=60, events=24_000, tastes=4).draw(1).select("user_id", "item_id")
    content, shown = reported(concf, trained(tmp_path, "training.epochs=1", "training.batch=4096", log=log))
    assert content["data"]["users"] > 2000
    assert f"{content['data']['users']:,} × 60" in shown.text
    assert len(content["examples"]) == 4
    assert (tmp_path / "page.html").stat().st_size < 400_000


def test_a_long_run_has_tables_of_some_epochs(folder: Path) -> None:
    content = gather(load_run(folder), RunFolder(folder).description())
    curve = [(epoch, 1.0 / (epoch + 1)) for epoch in range(7, 1000)]
    shown = read_page(page(content | {"curves": content["curves"] | {"loss": {"bpr": curve}}}))
    rows = shown.tables["curves", "Own loss"]
    assert len(rows) <= 202
    assert (rows[1][0], rows[2][0], rows[-1][0]) == ("7", "12", "999")
    assert "Table of the losses themselves, 1 row in 5" in shown.text


def test_a_run_without_votes_and_provenance(concf: CLI, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    run = load_run(copy)
    for each in run.best.values():
        each.votes = {}
    RunFolder(copy).save(run)
    records = [{name: value for name, value in each.items() if name != "agreement"} for each in history(copy)]
    records[0]["validation"]["bpr"] = 0.0
    (copy / HISTORY).write_text("".join(json.dumps(each | {"seconds": 0.5}) + "\n" for each in records))
    description = json.loads((copy / "run.json").read_text())
    del description["provenance"]
    (copy / "run.json").write_text(json.dumps(description))
    content, shown = reported(concf, copy)
    assert content["examples"][0]["votes"] is None
    assert content["curves"]["agreement"] == {}
    assert content["curves"]["validation"]["bpr"][0] == [0, 0.0]
    assert ("curves", "Agreement") not in shown.tables


def test_a_run_killed_half_way(concf: CLI, folder: Path, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 5:
            raise KeyboardInterrupt

    data = folder.parent / "data"
    with pytest.raises(KeyboardInterrupt):
        train(Split.load(data), choose_settings("reference", words=SMALL), out=tmp_path / "run", checkpoint_seconds=0,
              watch=stop, data_folder=data)  # fmt: skip
    content, shown = reported(concf, tmp_path / "run")
    assert (content["run"]["finished"], content["run"]["epochs"], content["run"]["at_most"]) == (False, 6, 10)
    assert "not finished. The report shows the last checkpoint, after 6 of at most 10 epochs" in shown.text
    (tmp_path / "run" / CHECKPOINT).unlink()
    code, _, err = concf("report", tmp_path / "run")
    assert (code, "no checkpoint.safetensors yet. Go on with" in err) == (2, True)


def test_a_single_epoch(concf: CLI, tmp_path: Path) -> None:
    content, shown = reported(concf, trained(tmp_path, "training.epochs=1", preset="paper"), "--examples", 0)
    assert content["run"]["first_consensus_epoch"] is None
    assert content["examples"] == []
    assert content["settings"]["preset"] == "paper"
    assert {len(points) for points in content["curves"]["loss"].values()} == {1}
    assert "examples" not in shown.ids()


def test_nothing_held_out_to_test_on(folder: Path) -> None:
    whole = load_run(folder)
    parts = np.where(whole.data.parts == TEST, TEST + UNEVALUATED, whole.data.parts).astype(np.uint8)
    run = Run(replace(whole.data, parts=parts), whole.settings, whole.seed, whole.model)
    run.best, run.history, run.epoch, run.finished = whole.best, whole.history, whole.epoch, whole.finished
    content = gather(run, RunFolder(folder).description())
    shown = read_page(page(json.loads(json.dumps(content))))
    assert "has no test part" in shown.text
    assert not {"groups", "examples", "complementarity"} & set(shown.ids())
    rows = shown.tables["results", "Validation"]
    assert rows[1][:2] == ["bpr", f"{whole.best['bpr'].validation:.4f}"]


def test_more_examples_than_users_and_lists_that_end(concf: CLI, tmp_path: Path) -> None:
    log = LOG.filter(pl.col("item_id") < 12)
    content, _ = reported(concf, trained(tmp_path, "training.epochs=2", log=log), "--examples", 100)
    assert len(content["examples"]) == content["data"]["evaluated_users"] <= 40
    assert len({each["user"] for each in content["examples"]}) == len(content["examples"])
    assert any(len(items) < 10 for each in content["examples"] for items in each["lists"].values())
