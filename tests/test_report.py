"""The report of a run: its metrics are the run's own, of every kind of run; the command writes a page and no more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import small_recipe
from browsing import Page as Browsed
from browsing import axe_script, browser, on_a_screen, violations
from page_reader import Page, read_page
from small_run import CLI, SMALL, contents, stopped_run

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import RP3beta
from concf.data.parts import TEST, UNEVALUATED
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation.evaluate import evaluate
from concf.evaluation.ranking import rank
from concf.inference.recommender import Recommender
from concf.models import choose_settings, load_run, train
from concf.report.gather import COLUMNS, gather
from concf.report.page import CURVES, page
from concf.runs.checkpoint import CHECKPOINT, RunFolder
from concf.runs.run import Run

LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1).select("user_id", "item_id")
NASTY = "</td></style><script>alert(\"{}\")</script><b onmouseover='x'>&amp;]]>\u202e\x01"
CHANGES = ('consensus.non_voting=["cml"]', "training.metric=ndcg@5")


def trained(folder: Path, *words: str, log: pl.DataFrame = LOG, preset: str = "reference") -> Path:
    split = prepare(log, protocol="random", out=folder / "data")
    train(split, choose_settings(preset, words=[*SMALL, *words]), out=folder / "run")
    return folder / "run"


def reported(concf: CLI, folder: Path, *words: object) -> tuple[dict[str, Any], Page]:
    """The command's JSON, and the page that it writes."""
    path = folder.parent / "page.html"
    code, out, err = concf("report", folder, "--json", "--out", path, *words)
    assert code == 0, err
    assert "NaN" not in out
    return json.loads(out), read_page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("report"), *CHANGES)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def content(folder: Path, run: Run) -> dict[str, Any]:
    return gather(run, RunFolder(folder).description(), name="x" * 300, examples=3)


@pytest.fixture(scope="module")
def pages(content: dict[str, Any], default: dict[str, Any]) -> dict[str, str]:
    return {"reference": page(content), "default": page(default)}


@pytest.fixture(scope="module")
def shown(pages: dict[str, str]) -> Page:
    return read_page(pages["reference"])


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lines", "bars"):
        monkeypatch.setattr(f"concf.report.page.{name}", lambda *_, **__: "<svg></svg>")


@pytest.fixture(scope="module")
def default() -> dict[str, Any]:
    titles = {item: f"Item no. {item}" for item in range(40)}
    return gather(small_recipe.trained(), {"device": "cpu"}, examples=2, titles=titles)


def test_metrics_are_those_of_the_run(run: Run, content: dict[str, Any], shown: Page) -> None:
    assert [each["name"] for each in content["recommenders"]] == run.rows()
    for on, label in (("test", "Test part"), ("valid", "Validation part")):
        evaluated, rows = run.evaluate(on=on), shown.tables["results", label]  # type: ignore[arg-type]
        assert rows[0] == ["", "Recall@20", "Recall@50", "NDCG@20", "NDCG@50", "validation", "best epoch"]
        for number, (each, row) in enumerate(zip(content["recommenders"], rows[1:], strict=True), 1):
            expected, best = evaluated[each["name"]], run.best[each["name"]]
            assert (each["validation"], each["epoch"]) == (best.validation, best.epoch)
            assert row[-2:] == [f"{best.validation:.4f}", str(best.epoch)]
            for column, (metric, cell) in enumerate(zip(COLUMNS, row[1:-2], strict=True), 1):
                low, high = expected.interval(metric)
                assert each[on][metric] == {"mean": expected.means()[metric], "low": low, "high": high}
                assert cell == f"{expected.means()[metric]:.4f} {low:.4f} to {high:.4f}"
                best_of_all = expected.means()[metric] == max(each.means()[metric] for each in evaluated.values())
                assert (("results", label, number, column) in shown.marked) == best_of_all
            assert row[0] == each["name"] + (" best head" if each["name"] == run.best_head() else "")
    seconds = [each["seconds"] + each.get("ranking_seconds", 0) for each in run.history]
    assert content["run"]["seconds"] == pytest.approx(sum(seconds))
    assert sum(each.get("ranking_seconds", 0) for each in run.history) > 0
    changed = {each["name"] for each in content["settings"]["changes"]}
    assert changed == {word.partition("=")[0] for word in (*SMALL, *CHANGES)}


def test_curves_are_the_history(run: Run, content: dict[str, Any], shown: Page) -> None:
    for kind, title, _, _ in CURVES:
        records = [(each["epoch"], each[kind]) for each in run.history if any(each.get(kind, {}).values())]
        names = [name for name in run.rows() if any(values.get(name) for _, values in records)]
        assert list(content["curves"][kind]) == names
        for name in names:
            points = [(epoch, values[name]) for epoch, values in records if values.get(name)]
            assert content["curves"][kind][name] == points
        assert any(label.startswith(title) for label in shown.charts)


def test_examples_are_lists_of_the_run(run: Run, content: dict[str, Any], shown: Page) -> None:
    model, data = Recommender(run), run.data
    users = [model.user_ids.values.tolist().index(each["user"]) for each in content["examples"]]
    activity = np.diff(data.train.indptr)[users]
    assert len(set(users)) == 3
    assert sorted(activity, reverse=True) == activity.tolist()
    for number, (user, example) in enumerate(zip(users, content["examples"], strict=True), 1):
        own = data.test[[user]].indices
        assert [each["item"] for each in example["history"]] == model.item_ids.named(data.train[[user]].indices)
        lists = {
            name: rank(run.recommender(name), np.array([user]), 50, seen=data.seen("test"))[0] for name in run.rows()
        }
        for name, items in example["lists"].items():
            assert [each["item"] for each in items] == model.item_ids.named(lists[name][:10])
            assert [each["hit"] for each in items] == np.isin(lists[name][:10], own)[: len(items)].tolist()
        ranks = [lists["consensus"].tolist().index(item) + 1 if item in lists["consensus"] else None for item in own]
        assert [each["rank"] for each in example["held_out"]] == ranks
        rows = shown.tables["examples", f"Lists, user {number}"]
        at = rows[0].index("consensus")
        expected = [f"{each['item']}{' ✓' * each['hit']}" for each in example["lists"]["consensus"]]
        assert [row[at] for row in rows[1:]][: len(expected)] == expected


def test_the_overview_of_the_default_is_what_evaluate_says(default: dict[str, Any]) -> None:
    run, data = small_recipe.trained(), small_recipe.data()
    ours, walks = run.evaluate()["consensus"], RP3beta(**run.chosen["rp3beta"]).fit(run.log)
    known = {
        "consensus": ours,
        run.best_head(): run.evaluate()[run.best_head()],
        "rp3beta": evaluate(walks, data),
        "popularity": evaluate(Popularity().fit(run.log), data),
    }
    means, overview = {name: each.means()["recall@50"] for name, each in known.items()}, default["overview"]
    assert {each["name"]: each["mean"] for each in overview["rows"]} == pytest.approx(means)
    best = max(("rp3beta", "popularity"), key=lambda name: means[name])
    assert overview["best_baseline"] == best
    assert overview["gain"] == pytest.approx(means["consensus"] / means[best] - 1)
    hits = [
        len(set(row.tolist()) & set(data.test[[user]].indices.tolist()))
        for user, row in zip(ours.users.tolist(), ours.lists, strict=True)
    ]
    assert overview["without_hit"] == pytest.approx(np.mean([each == 0 for each in hits]))
    assert [group["recall@50"] for group in overview["groups"]] == [each["recall@50"] for each in ours.by_activity()]
    assert default["groups"]["consensus"] == ours.by_activity()


def test_the_page_of_the_default_shows_no_figure_it_was_fitted_on(
    default: dict[str, Any], pages: dict[str, str]
) -> None:
    tables = read_page(pages["default"]).tables
    assert [row[0] for row in tables["stages", "What each stage chose and measured"][1:]] == small_recipe.STAGES
    assert not {("curves", "Validation"), ("results", "Validation part")} & tables.keys()  # it was refitted on it
    for row in tables["results", "Test part"][1:]:
        assert row[5].endswith("cross-fitted") == (row[0].split()[0] in ("student", "consensus"))
    unfitted = gather(small_recipe.trained(refit="none"), {"device": "cpu"}, examples=1)
    assert all(each["valid"] is None and each["test"] is not None for each in unfitted["recommenders"])


def test_the_same_run_gives_the_same_bytes_and_is_only_read(concf: CLI, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "run")
    before = contents(copy)
    assert concf("report", copy, "--out", tmp_path / "first.HTM")[:2] == (0, f"Report: {tmp_path / 'first.HTM'}\n")
    assert contents(copy) == before
    for out in ("run/run.json", "notes.txt", "run"):
        code, output, err = concf("report", copy, "--out", tmp_path / out)
        assert (code, output, "choose a name that ends in .html" in err) == (2, "", True)
    assert contents(copy) == before
    assert concf("report", copy)[0] == 0
    assert contents(copy) == before | {"report.html": (tmp_path / "first.HTM").read_bytes()}


def test_hostile_ids_titles_and_names_are_only_text(concf: CLI, tmp_path: Path) -> None:
    nasty, long = LOG.select(user_id=pl.format(NASTY, "user_id"), item_id=pl.format(NASTY, "item_id")), "a" * 70
    made = trained(tmp_path, "training.epochs=2", f"objectives={long}=bpr,cml", log=nasty)
    folder = made.rename(made.with_name("<img src=x>&'\""))
    titles = pl.DataFrame({"code": nasty["item_id"].unique()[:15], "label": '<i>T</i>\u2066" onload=x'})
    titles.write_parquet(tmp_path / "titles.parquet")
    words = ("--catalogue", tmp_path / "titles.parquet", "--catalogue-item", "code", "--catalogue-title", "label")
    content, shown = reported(concf, folder, *words)
    user = content["examples"][0]["user"].replace("\u202e\x01", "\\u202e\\u0001")
    assert all(text in shown.text for text in (f"User {user}", folder.name, '<i>T</i>\\u2066" onload=x'))
    assert [row[0].split()[0] for row in shown.tables["results", "Test part"][1:3]] == [long, "cml"]
    code, _, err = concf("report", folder, "--out", tmp_path / "x.html", "--catalogue", tmp_path / "none.csv")
    assert (code, "no such file" in err, (tmp_path / "x.html").exists()) == (2, True, False)


@pytest.mark.usefixtures("no_charts")
def test_one_head_alone_has_no_consensus(concf: CLI, tmp_path: Path) -> None:
    words = ("objectives=bpr", "training.epochs=1")
    content, shown = reported(concf, trained(tmp_path, *words, preset="paper"), "--examples", 100)
    assert [each["name"] for each in content["recommenders"]] == ["bpr"]
    assert content["complementarity"] is None
    assert "complementarity" not in shown.ids()
    assert {"validation", "loss"} <= {kind for kind, curves in content["curves"].items() if curves}
    assert shown.tables["examples", "Lists, user 1"][0] == ["", "bpr"]
    assert len({each["user"] for each in content["examples"]}) == content["data"]["evaluated_users"]


@pytest.mark.usefixtures("no_charts")
def test_a_run_killed_half_way(concf: CLI, folder: Path, tmp_path: Path) -> None:
    out = stopped_run(folder.parent / "data", tmp_path / "run")
    content, shown = reported(concf, out, "--examples", 0)
    assert (content["run"]["finished"], content["run"]["epochs"], content["run"]["at_most"]) == (False, 6, 10)
    assert "not finished" in shown.text
    assert (content["examples"], "examples" in shown.ids()) == ([], False)
    (out / CHECKPOINT).unlink()
    code, _, err = concf("report", out)
    assert (code, "no checkpoint.safetensors yet. Continue with" in err) == (2, True)


@pytest.mark.usefixtures("no_charts")
def test_nothing_held_out_to_test_on(folder: Path) -> None:
    whole = load_run(folder)
    parts = np.where(whole.data.parts == TEST, TEST + UNEVALUATED, whole.data.parts).astype(np.uint8)
    run = type(whole)(replace(whole.data, parts=parts), whole.settings, whole.seed, whole.device)
    run.best, run.history, run.epoch, run.finished = whole.best, whole.history, whole.epoch, whole.finished
    content = gather(run, RunFolder(folder).description())
    shown = read_page(page(json.loads(json.dumps(content))))
    assert "has no test part" in shown.text
    assert not {"groups", "examples", "complementarity"} & set(shown.ids())
    assert shown.tables["results", "Validation"][1][:2] == ["bpr", f"{whole.best['bpr'].validation:.4f}"]


OVERLAPS = """
return [...document.querySelectorAll('.chart')].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll('text')].map((each) => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], n) => boxes.slice(n + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
    .map(([other]) => [text, other]));
})
"""


def test_the_page_fits_every_window_and_axe_finds_nothing_wrong(
    pages: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = axe_script(request.config.cache)  # type: ignore[arg-type]
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    with browser(tmp_path / "profile") as driver:
        browsed = Browsed(driver, "")
        for name, width, dark in (("reference", 390, False), ("default", 1400, True), ("default", 320, False)):
            on_a_screen(driver, width, dark)
            driver.get(f"file://{tmp_path}/{name}.html")
            assert browsed.run("return document.documentElement.scrollWidth") <= width
            assert name == "reference" or browsed.run(OVERLAPS) == []
            assert width != 1400 or violations(browsed, script) == []
        assert browsed.complaints() == []
