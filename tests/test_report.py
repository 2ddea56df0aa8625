"""The report of a run: its figures are the run's own, and the command writes a page and nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import browser
from page_reader import Page, read_page
from small_report import CLI, reported, trained
from small_run import SMALL, contents

from concf.evaluation.ranking import rank
from concf.inference.recommender import Recommender
from concf.report.gather import FIGURES, gather
from concf.report.page import CURVES, page
from concf.training.checkpoint import RunFolder, load_run
from concf.training.run import Run

pytestmark = pytest.mark.usefixtures("on_one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("report"), 'consensus.non_voting=["cml"]', "training.metric=ndcg@5")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load_run(folder)


@pytest.fixture(scope="module")
def content(folder: Path, run: Run) -> dict[str, Any]:
    return gather(run, RunFolder(folder).description(), name="mine", examples=3)


@pytest.fixture(scope="module")
def shown(content: dict[str, Any]) -> Page:
    return read_page(page(content))


def test_figures_are_those_of_the_run(run: Run, content: dict[str, Any], shown: Page) -> None:
    assert [each["name"] for each in content["recommenders"]] == run.rows()
    for on, label in (("test", "Test part"), ("valid", "Validation part")):
        evaluated, rows = run.evaluate(on=on), shown.tables["results", label]  # type: ignore[arg-type]
        assert rows[0] == ["", "Recall@20", "Recall@50", "NDCG@20", "NDCG@50", "validation", "best epoch"]
        for number, (each, row) in enumerate(zip(content["recommenders"], rows[1:], strict=True), 1):
            expected, best = evaluated[each["name"]], run.best[each["name"]]
            assert (each["validation"], each["epoch"]) == (best.validation, best.epoch)
            assert row[-2:] == [f"{best.validation:.4f}", str(best.epoch)]
            for column, (figure, cell) in enumerate(zip(FIGURES, row[1:-2], strict=True), 1):
                low, high = expected.interval(figure)
                assert each[on][figure] == {"mean": expected.means()[figure], "low": low, "high": high}
                assert cell == f"{expected.means()[figure]:.4f} {low:.4f} to {high:.4f}"
                best_of_all = expected.means()[figure] == max(each.means()[figure] for each in evaluated.values())
                assert (("results", label, number, column) in shown.marked) == best_of_all
            assert row[0] == each["name"] + (" best head" if each["name"] == run.best_head() else "")


def test_every_chart_is_named_and_has_its_figures_as_text(content: dict[str, Any], shown: Page) -> None:
    titles = ["Test Recall@50", "Test NDCG@50"]
    curves = ["Validation", "Agreement", "Own loss", "Consensus loss", "Balancing weights", "Gradient norms"]
    assert [label.partition(".")[0] for label in shown.charts] == [titles[0], *titles, *curves, *titles]
    for each in content["recommenders"]:
        assert f"{each['test']['recall@50']['mean']:.4f}" in shown.text
        assert sum(f"{each['name']}: " in label for label in shown.charts) >= 3, "where its lines begin and end"
    assert {("curves", title) for title in curves} <= shown.tables.keys()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_and_text_stand_out_in_light_and_dark_mode(shown: Page, scheme: str) -> None:
    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * each for each in colour[1:])
        parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(name: str) -> float:
        one, other = sorted((luminance(colours[name]), luminance(colours["--paper"])))
        return (other + 0.05) / (one + 0.05)

    colours = shown.colours(scheme)
    assert min(contrast(name) for name in ("--ink", "--soft", "--accent")) >= 4.5  # as WCAG asks of text ...
    assert min(contrast(f"--c{number}") for number in range(6)) >= 3  # ... and of lines


def test_curves_are_the_history(run: Run, content: dict[str, Any], shown: Page) -> None:
    for kind, title, _, _ in CURVES:
        records = [(each["epoch"], each[kind]) for each in run.history if any(each.get(kind, {}).values())]
        names = [name for name in run.rows() if any(values.get(name) for _, values in records)]
        assert list(content["curves"][kind]) == names
        rows = shown.tables["curves", title]
        assert rows[0] == ["epoch", *names]
        assert [row[0] for row in rows[1:]] == [str(epoch) for epoch, _ in records]
        for row, (_, values) in zip(rows[1:], records, strict=True):
            numbers = {name: float(cell.replace(",", "")) for name, cell in zip(names, row[1:], strict=True) if cell}
            assert numbers == pytest.approx(
                {name: values[name] for name in names if name in values}, rel=1e-3, abs=5e-5
            )
            assert len({len(cell.partition(".")[2]) for cell in row[1:]} - {0, 2, 4}) == 0


def test_complementarity_against_sets(run: Run, content: dict[str, Any], shown: Page) -> None:
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
        assert content["complementarity"]["per"][x] == pytest.approx(expected)
        missed = len(known - mine) / len(known)
        assert content["complementarity"]["chr"][x] == pytest.approx(missed)
        cells = ["–" if x == y else f"{value:.3f}" for y, value in expected.items()]
        assert row == [x, *cells, str(len(mine)), f"{missed:.1%}"]


def test_groups_are_those_of_the_evaluation(run: Run, shown: Page) -> None:
    evaluated = {name: each.by_activity() for name, each in run.evaluate().items()}
    for figure, title in (("recall@50", "Test Recall@50"), ("ndcg@50", "Test NDCG@50")):
        rows = shown.tables["groups", title]
        assert rows[0] == ["group", "users", "interactions", *evaluated]
        for number, row in enumerate(rows[1:]):
            assert row[3:] == [f"{each[number][figure]:.4f}" for each in evaluated.values()]
            first = evaluated["bpr"][number]
            assert row[:3] == [f"G-{number + 1}", str(first["users"]), f"{first['activity']:.1f}"]


def test_examples_are_lists_and_votes_of_the_run(run: Run, content: dict[str, Any], shown: Page) -> None:
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
        label, voters = f"Votes, user {number}", [name for name in run.model.names if name != "cml"]
        rows = shown.tables["examples", label]
        assert rows[0] == ["", "consensus", "importance", *voters, "liked because of"]
        for place, (item, row) in enumerate(zip(example["lists"]["consensus"], rows[1:], strict=True), 1):
            why = model.explain(example["user"], item["item"])
            vote = example["votes"][place - 1]
            assert {part: vote[part] for part in ("importance", "reranked", "heads")} == {
                part: why[part] for part in ("importance", "reranked", "heads")
            }
            because = [each["item"] for each in why["because"]]
            assert [each["item"] for each in vote["because"]] == because
            ranks_and_c = [(each["rank"], f" C {each['C']:.2f}" * bool(each["C"])) for each in why["heads"]]
            voted = [bool(each["vote"]) for each in why["heads"]]
            cells = [f"{rank}{c}" if vote else "–" for (rank, c), vote in zip(ranks_and_c, voted, strict=True)]
            first = [str(place), f"{item['item']}{' ✓' * item['hit']}", f"{why['importance']:.3f}"]
            assert row == [*first, *cells, "; ".join(map(str, because))]
            assert (("examples", label, place, 1) in shown.marked) == item["hit"]
        heads = shown.tables["examples", f"Lists, user {number}"]
        assert heads[0] == ["", *run.model.names]
        assert [row[1].removesuffix(" ✓") for row in heads[1:]] == [
            str(each["item"]) for each in example["lists"]["bpr"]
        ]


def test_settings_are_shown_by_how_they_differ_from_the_nearest_preset(content: dict[str, Any], shown: Page) -> None:
    assert content["settings"]["preset"] == "reference"
    changed = {each["name"]: (each["value"], each["preset"]) for each in content["settings"]["changes"]}
    assert changed["consensus.non_voting"] == (["cml"], [])
    assert changed["training.metric"] == ("ndcg@5", "auto")
    assert set(changed) == {word.partition("=")[0] for word in (*SMALL, "consensus.non_voting=", "training.metric=")}
    rows = shown.tables["details", "Settings that differ from the preset reference"]
    assert ["consensus.non_voting", "cml", "none"] in rows
    assert len(rows) == len(changed) + 1
    assert len(shown.tables["details", "All settings"]) == len(content["settings"]["all"]) + 1


def test_what_the_run_is_stands_on_the_page(run: Run, content: dict[str, Any], shown: Page) -> None:
    data, about = dict(shown.tables["details", "Data"]), dict(shown.tables["details", "Run"])  # type: ignore[arg-type]
    counts = run.data.counts()
    assert data["train / validation / test"] == f"{counts['train']} / {counts['valid']} / {counts['test']}"
    assert data["split hash"] == run.data.hash[:16]
    assert data["held out, not evaluated"] == str(counts["unevaluated"])  # what filters left out is no part of it
    assert about["heads"] == "; ".join(run.model.names)
    assert about["heads that do not vote"] == "cml"
    seconds = [record[name] for record in run.history for name in ("seconds", "ranking_seconds") if name in record]
    assert content["run"]["seconds"] == pytest.approx(sum(seconds))
    assert len(seconds) > len(run.history)
    assert content["provenance"]["versions"]["torch"] in about["libraries"]


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
    code, output, err = concf("report", copy, "--out", tmp_path / out)
    assert (code, output, "choose a name that ends in .html" in err) == (2, "", True)
    assert contents(copy) == before


def test_on_a_phone_the_page_is_no_wider_and_its_captions_can_be_read(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(content | {"run": content["run"] | {"name": "x" * 300}}), encoding="utf-8")
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    with browser(tmp_path / "profile") as driver:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        driver.get(f"file://{tmp_path}/page.html")
        reach = "const reach = (each) => each.getBoundingClientRect().right; return "
        width = driver.execute_script("return document.documentElement.scrollWidth")  # type: ignore[no-untyped-call]
        read = f"{reach} [...document.querySelectorAll('caption, svg, .chart text')].map(reach)"
        reached = driver.execute_script(read)  # type: ignore[no-untyped-call]
        assert driver.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert width == 390
    assert len(reached) > 50
    assert max(reached) <= 390


def test_titles_stand_before_the_ids(concf: CLI, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text(
        "code,label\n" + "".join(f"{item},Item no. {item}\n" for item in range(0, 30, 2))
    )
    words = ["--catalogue", tmp_path / "names.csv", "--catalogue-item", "code", "--catalogue-title", "label"]
    content, shown = reported(concf, shutil.copytree(folder, tmp_path / "run"), *words)
    items = [item for each in content["examples"] for item in each["lists"]["bpr"]]
    for item in items:
        assert item["title"] == (f"Item no. {item['item']}" if item["item"] % 2 == 0 else None)
    named = next(item["item"] for item in items if item["title"])
    assert any(
        cell.startswith(f"Item no. {named}{named}") for rows in shown.tables.values() for row in rows for cell in row
    )
    code, _, err = concf("report", folder, "--out", tmp_path / "x.html", "--catalogue", tmp_path / "none.csv")
    assert (code, f"{tmp_path / 'none.csv'}: no such file" in err) == (2, True)
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_without_the_extra_it_is_named(concf: CLI, folder: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    for name in ("concf.report.page", "concf.report.charts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    code, out, err = concf("report", folder)
    assert (code, out) == (2, "")
    assert f"needs the library '{library}'" in err
    assert "pip install 'concf[report]'" in err


def test_what_is_no_run_is_refused(concf: CLI, tmp_path: Path) -> None:
    code, out, err = concf("report", tmp_path)
    assert (code, out, "not a run (no run.json)" in err) == (2, "", True)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
