"""The report of a run: its figures are the run's own, and the page holds whatever it is given."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from browsing import browser
from page_reader import Page, read_page
from small_run import SMALL, contents, history

from concf.data.prepare import prepare
from concf.data.protocols import DROPPED, TEST
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.ranking import rank
from concf.inference.recommender import Recommender
from concf.report.gather import FIGURES, gather
from concf.report.page import page
from concf.training.checkpoint import CHECKPOINT, HISTORY, RunFolder, load_run
from concf.training.config.presets import choose_settings
from concf.training.run import Run
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1).select("user_id", "item_id")
LISTS = "Lists, each at its own best epoch"
NASTY = "</td></style><script>alert(\"{}\")</script><b onmouseover='x'>&amp;]]>\u202e\x01"


def trained(folder: Path, *words: str, log: pl.DataFrame = LOG, preset: str = "reference") -> Path:
    split = prepare(log, protocol="random", out=folder / "data")
    train(split, choose_settings(preset, words=[*SMALL, *words]), out=folder / "run", data_folder=folder / "data")
    return folder / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("report"), 'consensus.non_voting=["cml"]', "training.metric=ndcg@5")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def found(folder: Path, run: Run) -> dict[str, Any]:
    return gather(run, RunFolder(folder).description(), name="mine", examples=3)


@pytest.fixture(scope="module")
def shown(found: dict[str, Any]) -> Page:
    return read_page(page(found))


def reported(concf: CLI, folder: Path, *words: object) -> tuple[dict[str, Any], Page]:
    """What the command says as JSON, and the page that it writes."""
    out = folder.parent / "page.html"
    code, said, err = concf("report", folder, "--json", "--out", out, *words)
    assert code == 0, err
    assert "NaN" not in said
    return json.loads(said), read_page(out.read_text(encoding="utf-8"))


def test_figures_are_those_of_the_run(run: Run, found: dict[str, Any], shown: Page) -> None:
    assert [each["name"] for each in found["recommenders"]] == run.rows()
    for on, caption in (("test", "Test part"), ("valid", "Validation part")):
        evaluated, rows = run.evaluate(on=on), shown.tables["figures", caption]  # type: ignore[arg-type]
        assert rows[0] == ["", "Recall@20", "Recall@50", "NDCG@20", "NDCG@50", "best epoch"]
        for each, row in zip(found["recommenders"], rows[1:], strict=True):
            expected, best = evaluated[each["name"]], run.best[each["name"]]
            assert (each["validation"], each["epoch"], row[-1]) == (best.validation, best.epoch, str(best.epoch))
            for column, (figure, cell) in enumerate(zip(FIGURES, row[1:-1], strict=True), 1):
                low, high = expected.interval(figure)
                assert each[on][figure] == {"mean": expected.means()[figure], "low": low, "high": high}
                assert cell == f"{expected.means()[figure]:.4f} {low:.4f} to {high:.4f}"
                best_of_all = expected.means()[figure] == max(each.means()[figure] for each in evaluated.values())
                assert (("figures", caption, rows.index(row), column) in shown.marked) == best_of_all
            assert row[0] == each["name"] + (" best head" if each["name"] == run.best_head() else "")


def test_curves_are_the_history(run: Run, found: dict[str, Any], shown: Page) -> None:
    for kind in ("validation", "agreement", "loss", "weight", "gradient", "consensus_loss"):
        records = [(each["epoch"], each[kind]) for each in run.history if any(each.get(kind, {}).values())]
        names = [name for name in run.rows() if any(values.get(name) for _, values in records)]
        assert list(found["curves"][kind]) == names
        rows = shown.tables["course", f"curve-{kind}"]
        assert rows[0] == ["epoch", *names]
        assert [row[0] for row in rows[1:]] == [str(epoch) for epoch, _ in records]
        for row, (_, values) in zip(rows[1:], records, strict=True):
            told = [float(cell.replace(",", "")) for cell in row[1:]]
            assert told == pytest.approx([values[name] for name in names], rel=1e-3, abs=5e-5)
            assert len({len(cell.partition(".")[2]) for cell in row[1:]} - {0, 2, 4}) == 0


def test_what_heads_know_of_each_other_against_sets(run: Run, found: dict[str, Any], shown: Page) -> None:
    held_out = {(user, item) for user, item in zip(*run.data.test.nonzero(), strict=True)}
    hits = {
        name: {(user, item) for user, row in zip(each.users, each.lists, strict=True) for item in row} & held_out
        for name, each in run.evaluate().items()
        if name != "R-consensus"
    }
    known = set().union(*(hits[name] for name in run.model.names))
    rows = shown.tables["complementarity", "PER@50"]
    assert rows[0] == ["", *hits, "hits", "missed"]
    for row, (x, mine) in zip(rows[1:], hits.items(), strict=True):
        expected = {y: len(mine - theirs) / len(mine) for y, theirs in hits.items()}
        assert found["complementarity"]["per"][x] == pytest.approx(expected)
        missed = len(known - mine) / len(known)
        assert found["complementarity"]["chr"][x] == pytest.approx(missed)
        cells = ["–" if x == y else f"{value:.3f}" for y, value in expected.items()]
        assert row == [x, *cells, str(len(mine)), f"{missed:.1%}"]


def test_groups_are_those_of_the_evaluation(run: Run, shown: Page) -> None:
    evaluated = {name: each.by_activity() for name, each in run.evaluate().items()}
    for figure in ("recall@50", "ndcg@50"):
        rows = shown.tables["groups", f"group-{figure.replace('@', '-')}"]
        assert rows[0] == ["group", "users", "interactions", *evaluated]
        for place, row in enumerate(rows[1:]):
            assert row[3:] == [f"{each[place][figure]:.4f}" for each in evaluated.values()]
            first = evaluated["bpr"][place]
            assert row[:3] == [f"G-{place + 1}", str(first["users"]), f"{first['activity']:.1f}"]


def test_examples_are_lists_and_votes_of_the_run(run: Run, found: dict[str, Any], shown: Page) -> None:
    model, data = Recommender(run), run.data
    users = [model.user_ids.values.tolist().index(each["user"]) for each in found["examples"]]
    activity = np.diff(data.train.indptr)[users]
    assert len(set(users)) == 3
    assert sorted(activity, reverse=True) == activity.tolist()
    for place, (user, told) in enumerate(zip(users, found["examples"], strict=True)):
        own = data.test[[user]].indices
        assert [each["item"] for each in told["history"]] == model.item_ids.named(data.train[[user]].indices)
        lists = {
            name: rank(run.recommender(name), np.array([user]), 50, seen=data.seen("test"))[0] for name in run.rows()
        }
        for name, items in told["lists"].items():
            assert [each["item"] for each in items] == model.item_ids.named(lists[name][:10])
            assert [each["hit"] for each in items] == np.isin(lists[name][:10], own)[: len(items)].tolist()
        ranks = [lists["consensus"].tolist().index(item) + 1 if item in lists["consensus"] else None for item in own]
        assert [each["rank"] for each in told["held_out"]] == ranks
        caption = "Consensus, with each head's rank and consistency C; – for no vote"
        key = ("examples", caption + "+" * place)
        rows, voters = shown.tables[key], [name for name in run.model.names if name != "cml"]
        assert rows[0] == ["", "consensus", "importance", *voters]
        for number, (item, row) in enumerate(zip(told["lists"]["consensus"], rows[1:], strict=True)):
            why = model.explain(told["user"], item["item"])
            assert told["votes"][number] == {part: why[part] for part in ("importance", "reranked", "heads")}
            votes = [f"{each['rank']} C {each['C']:.2f}" if each["vote"] else "–" for each in why["heads"]]
            assert row == [str(number + 1), f"{item['item']}{' ✓' * item['hit']}", f"{why['importance']:.3f}", *votes]
            if place == 0:
                assert (("examples", caption, number + 1, 1) in shown.marked) == item["hit"]


def test_settings_are_told_by_what_differs_from_the_nearest_preset(found: dict[str, Any], shown: Page) -> None:
    assert found["settings"]["preset"] == "reference"
    changed = {each["name"]: (each["value"], each["preset"]) for each in found["settings"]["changes"]}
    assert changed["consensus.non_voting"] == (["cml"], [])
    assert changed["training.metric"] == ("ndcg@5", "auto")
    assert set(changed) == {word.partition("=")[0] for word in (*SMALL, "consensus.non_voting=", "training.metric=")}
    rows = shown.tables["about", "Settings that differ from the preset reference"]
    assert ["consensus.non_voting", "cml", "none"] in rows
    assert len(rows) == len(changed) + 1


def test_what_the_run_is_stands_on_the_page(run: Run, found: dict[str, Any], shown: Page) -> None:
    data, about = dict(shown.tables["about", "Data"]), dict(shown.tables["about", "Run"])  # type: ignore[arg-type]
    counts = run.data.counts()
    assert data["train / validation / test"] == f"{counts['train']} / {counts['valid']} / {counts['test']}"
    assert data["split hash"] == run.data.hash[:16]
    assert data["dropped by the split"] == str(counts["dropped"])  # what filters left out is no part of it
    assert about["heads"] == ", ".join(run.model.names)
    assert about["do not vote"] == "cml"
    assert found["provenance"]["versions"]["torch"] in about["versions"]
    assert f"{found['recommenders'][-1]['test']['recall@50']['mean']:.4f}" in shown.text


def test_the_same_run_gives_the_same_bytes_and_is_only_read(concf: CLI, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    before = contents(copy)
    for out in ("first.html", "second.HTM"):
        assert concf("report", copy, "--out", tmp_path / out)[:2] == (0, f"Report: {tmp_path / out}\n")
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.HTM").read_bytes()
    assert contents(copy) == before
    assert concf("report", copy)[0] == 0
    assert (copy / "report.html").read_bytes() == (tmp_path / "first.html").read_bytes()
    assert concf("train", "--resume", "--out", copy)[0] == 0
    assert contents(copy) == before | {"report.html": (copy / "report.html").read_bytes()}


@pytest.mark.parametrize("out", ["run/run.json", "run/checkpoint.safetensors", "notes.txt", "run"])
def test_nothing_but_a_page_is_overwritten(concf: CLI, folder: Path, tmp_path: Path, out: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    before = contents(copy)
    code, said, err = concf("report", copy, "--out", tmp_path / out)
    assert (code, said, "choose a name that ends in .html" in err) == (2, "", True)
    assert contents(copy) == before


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


def test_on_a_phone_the_page_is_no_wider_and_its_captions_can_be_read(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(found), encoding="utf-8")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    with browser(tmp_path / "profile") as driver:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        driver.get(f"file://{tmp_path}/page.html")
        reach = "const reach = (each) => each.getBoundingClientRect().right; return "
        assert driver.execute_script("return document.documentElement.scrollWidth") == 390  # type: ignore[no-untyped-call]
        captions = driver.execute_script(f"{reach} [...document.querySelectorAll('caption')].map(reach)")  # type: ignore[no-untyped-call]
    assert captions
    assert max(captions) <= 390


def test_titles_stand_before_the_ids(concf: CLI, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text(
        "code,label\n" + "".join(f"{item},Item no. {item}\n" for item in range(0, 30, 2))
    )
    words = ["--catalogue", tmp_path / "names.csv", "--catalogue-item", "code", "--catalogue-title", "label"]
    told, shown = reported(concf, shutil.copytree(folder, tmp_path / "run"), *words)
    items = [item for each in told["examples"] for item in each["lists"]["bpr"]]
    for item in items:
        assert item["title"] == (f"Item no. {item['item']}" if item["item"] % 2 == 0 else None)
    assert f"Item no. {next(item['item'] for item in items if item['title'])}" in shown.text
    code, _, err = concf("report", folder, "--out", tmp_path / "x.html", "--catalogue", tmp_path / "none.csv")
    assert (code, f"{tmp_path / 'none.csv'}: no such file" in err) == (2, True)
    assert not (tmp_path / "x.html").exists()


def test_one_head_alone(concf: CLI, tmp_path: Path) -> None:
    told, shown = reported(concf, trained(tmp_path, "objectives=bpr", "training.watch=bpr"))
    assert [each["name"] for each in told["recommenders"]] == ["bpr"]
    assert told["complementarity"] is None
    assert {key for section, key in shown.tables if section == "course"} == {"curve-validation", "curve-loss"}
    assert "One head alone" in shown.text
    assert shown.tables["examples", LISTS][0] == ["", "bpr"]


def test_a_softmax_consensus_has_no_votes(concf: CLI, tmp_path: Path) -> None:
    told, shown = reported(concf, trained(tmp_path, "objectives=multinomial#1,multinomial#2", "consensus.by=softmax"))
    assert [each["name"] for each in told["recommenders"]] == ["multinomial#1", "multinomial#2", "consensus"]
    assert told["examples"][0]["votes"] is None
    assert shown.tables["examples", LISTS][0] == ["", "multinomial#1", "multinomial#2", "consensus"]
    assert ("course", "curve-agreement") in shown.tables


def test_a_judged_consensus_shows_what_it_is_ordered_by(concf: CLI, tmp_path: Path) -> None:
    told, shown = reported(concf, trained(tmp_path, "training.metric=recall@5", preset="strong"))
    rows = shown.tables["examples", "Consensus, with each head's rank and consistency C; – for no vote"]
    assert rows[0][2] == "reranked"
    given = [each["reranked"] for each in told["examples"][0]["votes"]]
    assert sorted(given, reverse=True) == given
    assert [row[2] for row in rows[1:]] == [f"{each:.3f}" for each in given]


def test_a_run_of_an_older_version(concf: CLI, folder: Path, tmp_path: Path) -> None:
    """No votes, no agreement, no provenance."""
    copy = shutil.copytree(folder, tmp_path / "run")
    run = load_run(copy)
    for each in run.best.values():
        each.votes = {}
    RunFolder(copy).save(run)
    lines = [{name: value for name, value in each.items() if name != "agreement"} for each in history(copy)]
    lines[0]["validation"]["bpr"] = 0.0
    (copy / HISTORY).write_text("".join(json.dumps(each | {"seconds": 0.5}) + "\n" for each in lines))
    said = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({name: value for name, value in said.items() if name != "provenance"}))
    told, shown = reported(concf, copy)
    assert told["examples"][0]["votes"] is None
    assert told["curves"]["agreement"] == {}
    assert told["curves"]["validation"]["bpr"][0] == [0, 0.0]
    assert ("course", "curve-agreement") not in shown.tables
    assert "does not say how much the heads agreed" in shown.text


def test_a_run_killed_half_way(concf: CLI, folder: Path, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 5:
            raise KeyboardInterrupt

    data = folder.parent / "data"
    with pytest.raises(KeyboardInterrupt):
        train(Split.load(data), choose_settings("reference", words=SMALL), out=tmp_path / "run", checkpoint_seconds=0,
              watch=stop, data_folder=data)  # fmt: skip
    told, shown = reported(concf, tmp_path / "run")
    assert (told["run"]["finished"], told["run"]["epochs"], told["run"]["at_most"]) == (False, 6, 10)
    assert "not finished: it shows the last checkpoint, after 6 of at most 10 epochs" in shown.text
    (tmp_path / "run" / CHECKPOINT).unlink()
    code, _, err = concf("report", tmp_path / "run")
    assert (code, "no checkpoint.safetensors yet. Go on with" in err) == (2, True)


def test_a_single_epoch(concf: CLI, tmp_path: Path) -> None:
    told, shown = reported(concf, trained(tmp_path, "training.epochs=1", preset="paper"), "--examples", 0)
    assert told["run"]["first_consensus_epoch"] is None
    assert told["examples"] == []
    assert told["settings"]["preset"] == "paper"
    assert {len(points) for points in told["curves"]["loss"].values()} == {1}
    assert "examples" not in shown.ids()


def test_nothing_held_out_to_test_on(folder: Path) -> None:
    whole = load_run(folder)
    parts = np.where(whole.data.parts == TEST, DROPPED, whole.data.parts).astype(np.uint8)
    run = Run(replace(whole.data, parts=parts), whole.settings, whole.seed, whole.model)
    run.best, run.history, run.epoch, run.finished = whole.best, whole.history, whole.epoch, whole.finished
    found = gather(run, RunFolder(folder).description())
    shown = read_page(page(json.loads(json.dumps(found))))
    assert "holds nothing out to test on" in shown.text
    assert not {"groups", "examples", "complementarity"} & set(shown.ids())
    rows = shown.tables["figures", ""]
    assert rows[1][:2] == ["bpr", f"{whole.best['bpr'].validation:.4f}"]


def test_more_examples_than_users_and_lists_that_end(concf: CLI, tmp_path: Path) -> None:
    log = LOG.filter(pl.col("item_id") < 12)
    told, _ = reported(concf, trained(tmp_path, "training.epochs=2", log=log), "--examples", 100)
    assert len(told["examples"]) == told["data"]["evaluated_users"] <= 40
    assert len({each["user"] for each in told["examples"]}) == len(told["examples"])
    assert any(len(items) < 10 for each in told["examples"] for items in each["lists"].values())


def test_what_is_no_run_is_refused(concf: CLI, tmp_path: Path) -> None:
    code, out, err = concf("report", tmp_path)
    assert (code, out, "not a run (no run.json)" in err) == (2, "", True)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
