"""The model card, README.md in the folder of a run: its metrics are those of the summary, its commands work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_recipe import data as recipe_data
from small_recipe import small
from small_run import CLI, SMALL, contents, stopped_run

from concf.data.prepare import prepare
from concf.data.split import Split
from concf.inference.recommender import Recommender
from concf.models import PRESETS, choose_settings, load_run, train
from concf.runs.checkpoint import CARD, RunFolder
from concf.runs.model_card import model_card
from concf.runs.run import Run


@pytest.fixture(scope="module", params=["stages", "epochs", "everything"])
def run(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    out = tmp_path_factory.mktemp("runs") / "run"
    if request.param == "epochs":
        chosen = choose_settings("reference", words=[*SMALL, "training.epochs=3"])
        return train(Split.load(data), chosen, seed=5, out=out), out
    RunFolder(out).keep(recipe_data())
    refit = "everything" if request.param == "everything" else "validation"
    return train(recipe_data(), small(refit=refit, budget="fast"), seed=5, out=out), out


def table(card: str, heading: str) -> dict[str, list[str]]:
    """First cell -> the others, of the table of a section."""
    section = card.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in section.splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| "): [cell.removesuffix(" |") for cell in row[1:]] for row in rows[2:]}


def test_metrics_data_and_settings_are_those_of_the_run(run: tuple[Run, Path]) -> None:
    trained, folder = run
    card, summary = (folder / CARD).read_text(encoding="utf-8"), trained.summary()
    metrics = {name: row[1] for name, row in table(card, "Metrics").items()}
    assert metrics == {each["name"]: f"{each['validation']:.4f}" for each in summary["recommenders"]}
    if trained.unit == "epochs":
        epochs = {name: int(row[2].removesuffix("|")) for name, row in table(card, "Metrics").items()}
        assert epochs == {each["name"]: each["epoch"] for each in summary["recommenders"]}
    split, rows = trained.data, table(card, "Data")
    assert rows["split hash"] == [split.hash]
    assert rows["SHA-256 of the source"] == list(split.recipe.source["sha256"].values())
    assert rows["pairs to train, validate, test"] == [f"{split.train.nnz}, {split.valid.nnz}, {split.test.nnz}"]
    assert rows["users, items, pairs"] == [f"{split.train.shape[0]}, {split.train.shape[1]}, {len(split.parts)}"]
    base = PRESETS[trained.settings.kind]
    changes = {name.strip("`"): row[0] for name, row in table(card, "Settings").items()}
    assert choose_settings(base, words=[f"{name}={value}" for name, value in changes.items()]) == trained.settings


def test_its_commands_work_in_the_folder(run: tuple[Run, Path], concf: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, folder = run
    card, before = (folder / CARD).read_text(encoding="utf-8"), set(folder.iterdir())
    monkeypatch.chdir(folder)
    shell, python = re.findall(r"```(?:python)?\n(.*?)```", card, re.DOTALL)
    commands = [line.split() for line in shell.splitlines()]
    assert [words[1] for words in commands] == ["evaluate", "recommend"]["test" in trained.learned :]
    for _, *words in commands:
        assert concf(*words)[0] == 0, words
    names: dict[str, Any] = {}
    exec(python, names)
    assert isinstance(names["model"], Recommender)
    assert {path.name for path in set(folder.iterdir()) - before} == {"lists.parquet"}
    (folder / "lists.parquet").unlink()


def test_a_run_under_way_says_so_and_a_card_is_written_again_when_it_goes_on(data: Path, tmp_path: Path) -> None:
    out = stopped_run(data, tmp_path / "run")
    stopped = (out / CARD).read_text(encoding="utf-8")
    assert "**Not finished**: 6 epochs so far." in stopped
    assert stopped == model_card(load_run(out))
    assert "Recommender.load" not in stopped
    (out / CARD).unlink()  # as if it had been killed before it was written
    run = train(Split.load(data), out=out, resume=True)
    assert (out / CARD).read_text(encoding="utf-8") == model_card(run) != stopped
    finished = contents(out)
    (out / CARD).write_text("damaged")
    train(Split.load(data), out=out, resume=True)
    assert contents(out) == finished


def test_a_strange_name_breaks_no_table_and_a_run_without_metrics_has_a_card(tmp_path: Path) -> None:
    log = tmp_path / "a|b <img src=x>.csv"
    pairs = [(user, (user + k) % 12) for user in range(9) for k in range(8)]
    pl.DataFrame(pairs, schema=["user", "item"], orient="row").write_csv(log)
    run = train(prepare(log, protocol="random"), choose_settings("reference", words=[*SMALL, "training.epochs=1"]))
    card = model_card(run)
    assert card.startswith("# Recommender trained on a\\|b &lt;img src=x>.csv\n")
    assert "<img" not in card
    run.best, run.epoch, run.finished = {}, 0, False
    assert "## Metrics\n\nNone yet.\n" in model_card(run)
