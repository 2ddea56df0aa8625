"""The report of the default run: an overview that is right, honest validation figures, a page that fits a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe import axe_script, violations
from browsing import Page, browser
from page_reader import read_page
from small_recipe import data, trained
from small_report import CLI

from concf.consensus.voters import NEIGHBOURS
from concf.evaluation.evaluate import evaluate
from concf.inference.recommender import Recommender
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.neighbours import RP3beta
from concf.report.gather import gather
from concf.report.page import page
from concf.training.checkpoint import RunFolder

pytestmark = pytest.mark.usefixtures("on_one_thread")

DESCRIPTION = {"device": "cpu"}


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return gather(trained(), DESCRIPTION, examples=2, titles={item: f"Item no. {item}" for item in range(40)})


def test_the_overview_is_what_evaluate_says(content: dict[str, Any]) -> None:
    run, shown = trained(), read_page(page(content))
    ours, walks = run.evaluate()["consensus"], RP3beta(**run.chosen["rp3beta"], neighbours=NEIGHBOURS).fit(run.log)
    known = {
        "consensus": ours,
        run.best_head(): run.evaluate()[run.best_head()],
        "rp3beta": evaluate(walks, data()),
        "popularity": evaluate(Popularity().fit(run.log), data()),
    }
    overview = content["overview"]
    assert {each["name"]: each["mean"] for each in overview["rows"]} == pytest.approx(
        {name: each.means()["recall@50"] for name, each in known.items()}
    )
    best = max(("rp3beta", "popularity"), key=lambda name: known[name].means()["recall@50"])
    assert overview["best_baseline"] == best
    gain = ours.means()["recall@50"] / known[best].means()["recall@50"] - 1
    assert overview["gain"] == pytest.approx(gain)
    recalled = [
        len(set(row.tolist()) & set(data().test[[user]].indices.tolist()))
        for user, row in zip(ours.users.tolist(), ours.lists, strict=True)
    ]
    assert overview["without_hit"] == pytest.approx(np.mean([hits == 0 for hits in recalled]))
    assert f"{overview['without_hit']:.1%} of the users have none of their test items" in shown.text
    values = [group["recall@50"] for group in ours.by_activity()]
    assert [group["recall@50"] for group in overview["groups"]] == values
    assert f"the group G-{values.index(min(values)) + 1} (" in shown.text
    assert next(each for each in shown.ids() if each in ("overview", "results")) == "overview"


def test_the_report_shows_the_figures_of_evaluate(concf: CLI, tmp_path: Path) -> None:
    run = trained()
    folder = RunFolder(tmp_path / "run")
    folder.begin(run)
    for record in run.history:
        folder.record(record)
    folder.save(run)
    data().save(tmp_path / "data")
    words = (tmp_path / "run", "--data", tmp_path / "data")
    code, output, err = concf("evaluate", *words, "--json")
    assert code == 0, err
    code, written, err = concf("report", *words, "--examples", 0, "--json", "--out", tmp_path / "page.html")
    assert code == 0, err
    shown = read_page((tmp_path / "page.html").read_text(encoding="utf-8")).tables["results", "Test part"]
    figures = {each["name"]: each for each in json.loads(output)["recommenders"]}
    for each, row in zip(json.loads(written)["recommenders"], shown[1:], strict=True):
        theirs = figures[each["name"]]
        means = {name: each["test"][name]["mean"] for name in each["test"]}
        assert means == pytest.approx({name: theirs["means"][name] for name in means})
        assert each["validation"] == theirs["validation"]
        assert row[5] == f"{theirs['validation']:.4f}" + " cross-fitted" * (each["name"] in ("student", "consensus"))


def test_figures_on_what_the_reranker_was_fitted_on_are_not_shown() -> None:
    run = trained(refit="none")
    content = gather(run, DESCRIPTION, examples=1)
    assert all(each["valid"] is None and each["test"] is not None for each in content["recommenders"])
    shown = read_page(page(content))
    assert ("results", "Validation part") not in shown.tables
    assert "figures on it are the cross-fitted ones alone" in shown.text


def test_examples_say_why(content: dict[str, Any]) -> None:
    shown, model = read_page(page(content)), Recommender(trained())
    for number, example in enumerate(content["examples"], 1):
        rows = shown.tables["examples", f"Votes, user {number}"]
        assert rows[0][-2:] == ["liked because of", "lifted most by"]
        for item, row in zip(example["lists"]["consensus"], rows[1:], strict=True):
            why = model.explain(example["user"], item["item"])
            assert row[-2] == "; ".join(f"Item no. {each['item']}" for each in why["because"])
            totals: dict[str, float] = {}
            for each in why["contributions"] or []:
                key = f"{each['voter']}'s rank" if each["kind"] == "rank" else each["kind"]
                totals[key] = totals.get(key, 0.0) + each["value"]
            largest = sorted((value for value in totals.values() if value > 0), reverse=True)[:2]
            assert [word.split()[-1] for word in row[-1].split(",") if word] == [f"{value:+.2f}" for value in largest]


OVERLAPS = """
return [...document.querySelectorAll('.chart')].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll('text')].map((each) => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], n) => boxes.slice(n + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
    .map(([other]) => [text, other]));
})
"""


def test_the_page_fits_every_window_and_axe_finds_nothing_wrong(
    content: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script = axe_script(request.config.cache)  # type: ignore[arg-type]
    (tmp_path / "page.html").write_text(page(content), encoding="utf-8")
    with browser(tmp_path / "profile") as driver:
        shown = Page(driver, "")
        for width, scheme in ((1400, "dark"), (390, "light"), (320, "dark")):
            size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            driver.get(f"file://{tmp_path}/page.html")
            assert shown.run("return document.documentElement.scrollWidth") <= width
            assert shown.run(OVERLAPS) == []
            if width < 500:  # tables that are open need no scrolling
                tables = "[...document.querySelectorAll('.wide')].filter((each) => !each.closest('details'))"
                wide = f"{tables}.filter((each) => each.scrollWidth > each.clientWidth + 1)"
                assert shown.run(f"return {wide}.map((each) => each.getAttribute('aria-label'))") == []
            if width != 320:
                assert violations(shown, script) == []
