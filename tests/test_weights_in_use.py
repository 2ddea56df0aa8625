"""Weights on the command line, in the estimator and in comparisons; and weights that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array
from small_recipe import LOG, SMALL

from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.reading.scan import Reading
from concf.data.split import Split
from concf.data.weights import UNWEIGHTED, Weighting
from concf.errors import ConfigError, DataError
from concf.experiments.compare import compare
from concf.inference.estimator import ConCF
from concf.training.checkpoint import load_run
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread")

CLI = Callable[..., tuple[int, str, str]]
COUNTED = LOG.draw(1).with_columns(weight=pl.int_range(pl.len()) % 4 + 0.5)
SETS = [word for name in ("model.dimensions=8", "training.metric=recall@5") for word in ("--set", name)]
SETS += [word for name in ("top_k", "kept", "shown") for word in ("--set", f"consensus.{name}=12")]
FAST = ("--budget", "fast", *SETS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    COUNTED.write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def test_a_run_knows_its_weights_and_is_loaded_with_them(log: Path, tmp_path: Path, concf: CLI) -> None:
    words = ("--weights", "log", "--half-life", "60d")
    code, _, err = concf("train", log, *words, *FAST, "--out", tmp_path / "run")
    assert code == 0, err
    run, settings = load_run(tmp_path / "run"), Weighting(function="log", half_life="60d")
    assert run.settings.weights == run.data.weights == settings
    frame = ConCF(recipe={"budget": "fast"}, weights={"function": "log", "half_life": "60d"}, **SMALL).fit(COUNTED)
    assert (frame.run.log != run.log).nnz == 0
    assert len(np.unique(run.log.data)) > 20
    other = train(run.data.weighted(UNWEIGHTED), run.settings, seed=0)  # the settings decide
    assert other.data.weights == settings
    assert frame.recommend(k=9).equals(ConCF.load(tmp_path / "run").recommend(k=9))
    code, _, err = concf("train", "--resume", "--out", tmp_path / "run")
    assert code == 0, err
    assert load_run(tmp_path / "run").settings.weights == settings
    assert "weights.half_life" in (tmp_path / "run" / "README.md").read_text()


def test_a_rating_may_be_the_weight(log: Path) -> None:
    rated = COUNTED.rename({"weight": "rating"})
    found = read(rated, Reading(count="rating", min_rating=2, dislike_below=1))
    plain = read(COUNTED.filter(pl.col("weight") >= 2))
    assert np.array_equal(found.count, plain.count)
    assert found.dislikes is not None
    assert np.array_equal(read(rated, Reading(count="rating")).count, read(log).count)
    with pytest.raises(ConfigError, match="cannot be user and count at once"):
        read(rated, Reading(count="user_id"))


def test_a_comparison_weighs_every_model(tmp_path: Path, concf: CLI) -> None:
    data = prepare(COUNTED, protocol="random", out=tmp_path / "data")
    options: dict[str, Any] = {"seeds": 1, "at": (5,), "log": tmp_path / "cells.jsonl"}
    models = ("popularity", "ease", "itemknn")
    plain = compare(data, models, **options)
    weighted = compare(data.weighted(Weighting(half_life="20d")), models, **options)
    figures = [
        {each.name: each.per_user["recall@5"].tolist() for each in found.entrants} for found in (plain, weighted)
    ]
    assert all(figures[0][name] != figures[1][name] for name in models)
    assert compare(data, models, **options).entrants[0].tests == plain.entrants[0].tests  # cells of both are kept apart
    words = ("--models", ",".join(models), "--seeds", 1, "--at", 5, "--half-life", "20d", "--json")
    code, out, err = concf("compare", tmp_path / "data", *words)
    assert code == 0, err
    assert json.loads(out)["models"][0]["mean"] == weighted.as_dict()["models"][0]["mean"]


def test_a_compared_run_of_concf_has_the_weights_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from concf.experiments.contenders import Trained

    asked: list[Any] = []
    monkeypatch.setattr("concf.training.train.train", lambda split, changes, **_: asked.append(changes))
    data = prepare(COUNTED, protocol="random").weighted(Weighting(function="log"))
    for preset in ("strong", "reference"):
        Trained(preset=preset, ship="head").train(data, refit=True)
    assert [each.weights.function for each in asked] == ["log", "log"]
    assert [each.recipe is not None for each in asked] == [True, False]


@pytest.mark.parametrize("bad", ["-1", "nan", "inf", "-inf", "many", ""])
def test_a_weight_that_is_none_is_refused_with_its_row(bad: str, tmp_path: Path, concf: CLI) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"user_id,item_id,weight\n1,2,1.5\n1,3,{bad}\n")
    message = r":3: column 'weight': not a count, found .*Counts and weights are finite numbers, 0 or more"
    with pytest.raises(DataError, match=message):
        read(path)
    code, _, err = concf("train", path, "--weights", "linear", "--out", tmp_path / "run")
    assert (code, "column 'weight': not a count" in err, (tmp_path / "run").exists()) == (2, True, False)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_frames_and_matrices_are_checked_alike(bad: float) -> None:
    for log in (COUNTED.with_columns(weight=pl.lit(bad)), csr_array(np.array([[1, bad], [0, 2]]))):
        with pytest.raises(DataError, match="not a count"):
            read(log)
    with pytest.raises(DataError, match="not a time"):
        read(COUNTED.with_columns(timestamp=pl.lit(np.inf)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--half-life", "0d"), "weights.half_life = '0d': expected a duration above 0 such as 90d"),
        (("--half-life", "-3"), "weights.half_life = -3: expected a duration above 0"),
        (("--weights", "cubic"), "'cubic' is not one of"),
        (("--set", "weights.dislike=-1"), "weights.dislike = -1: Input should be greater than 0"),
        (("--half-life", "9d", "--timestamp", "none"), "a half-life (9d) needs times and the log has none. Name their"),
    ],
)
def test_a_clear_message_and_no_run(
    words: tuple[str, ...], message: str, log: Path, tmp_path: Path, concf: CLI
) -> None:
    code, _, err = concf("train", log, *words, *FAST, "--out", tmp_path / "run")
    assert (code, message in " ".join(err.split())) == (2, True), err
    assert not (tmp_path / "run" / "checkpoint.json").exists()


def test_a_compared_half_life_without_times_is_refused(tmp_path: Path, concf: CLI) -> None:
    prepare(COUNTED.drop("timestamp"), protocol="random", out=tmp_path / "data")
    assert Split.load(tmp_path / "data").interactions.timestamp is None
    code, _, err = concf("compare", tmp_path / "data", "--models", "popularity", "--half-life", "9d", "--seeds", 1)
    assert (code, "needs times and the log has none" in err) == (2, True), err
