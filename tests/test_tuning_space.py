"""Spaces that `concf tune` searches, and settings as TOML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import optuna
import pytest

from concf.errors import ConfigError
from concf.experiments.search_space import DEFAULT_SPACE, as_toml, contains, default_space, differences, read_space
from concf.training.config.presets import PRESETS, choose_settings

RATE = "training.learning_rate"
ODD = [
    "recipe=none", "consensus.consistency_temperature=none", "consensus.clip=40",
    'consensus.non_voting=["bpr"]', "consensus.undistilled=[]",
    "objectives=bpr,cml", "consensus.weight_range=[0.25, 4]", "balance.on=false", "training.weight_decay=1e-7",
    'model.encoder=a "b":\\c\x7fé𝄞',
]  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_toml_round_trip(preset: str, tmp_path: Path) -> None:
    for words in ([], ODD):
        for base in PRESETS:
            settings = choose_settings(base, words=words)
            (tmp_path / "file.toml").write_text(as_toml(differences(settings, PRESETS[preset])), "utf-8")
            assert choose_settings(preset, file=tmp_path / "file.toml") == settings


def test_the_default_space_fits_the_settings() -> None:
    assert read_space(DEFAULT_SPACE).keys() == DEFAULT_SPACE.keys()
    base = choose_settings("reference")
    assert default_space(base, ()) == DEFAULT_SPACE
    assert all(contains(each, value(base, name)) for name, each in read_space(DEFAULT_SPACE).items())
    assert default_space(base, {RATE}).keys() == DEFAULT_SPACE.keys() - {RATE}
    alone = choose_settings(single="bpr", words=["model.encoder=mf"])
    assert list(default_space(alone, ())) == [RATE, "training.weight_decay", "model.dimensions"]
    recipe = default_space(choose_settings("strong"), ())  # its voters' settings are searched by the run itself
    assert recipe.keys() == {"consensus.temperature", "model.dimensions"}


def value(settings: Any, name: str) -> Any:
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def test_a_space_is_read_by_full_names_or_by_tables(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        "model.dimensions = { low = 8, high = 32, step = 8 }\n"
        '"consensus.every" = { choices = [5, 10] }\n'
        "[consensus.consistency_temperature]\nchoices = ['none', 100.0]\n[training.learning_rate]\nlow = 1\nhigh = 2\n"
    )
    space = read_space(file)
    assert list(space) == ["model.dimensions", "consensus.every", "consensus.consistency_temperature", RATE]
    assert space["model.dimensions"] == optuna.distributions.IntDistribution(8, 32, step=8)
    assert space[RATE] == optuna.distributions.FloatDistribution(1.0, 2.0)
    inside = [contains(space["model.dimensions"], each) for each in (8, 24, 20, 40, "none")]
    assert inside == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "consensus.wieght = { low = 0, high = 1 }",
            "unknown setting 'consensus.wieght'; there are consensus.weight, ",
        ),
        ("volume = { low = 0, high = 1 }", "unknown setting 'volume'; there are balance, consensus, losses, model, "),
        ("training.metric = { choices = ['recall@5', 'recall@9'] }", "training.metric cannot be searched"),
        ("consensus.weight = 1", "space: consensus.weight = 1: expected { low = 0.001, high = 0.03, log = true }"),
        ("consensus.weight = { low = 1 }", "missing 1 required positional argument: 'high'; expected { low = 0.001"),
        (
            "consensus.weight = { low = 0, high = 1, lag = true }",
            "unexpected keyword argument 'lag'; expected { low = 0.001",
        ),
        ("consensus.weight = { low = 2, high = 1 }", "space: consensus.weight: "),
        ("consensus.weight = { low = 0, high = 1, log = true }", "space: consensus.weight: "),
        ("consensus.every = { low = 0.5, high = 3 }", "space: consensus.every: it takes whole numbers"),
        ("consensus.every = { low = 1, high = 10, step = 2 }", "space: consensus.every: "),
        (
            "consensus.every = { choices = [] }",
            "space: consensus.every: The `choices` must contain one or more elements",
        ),
        ("model.encoder = { low = 1, high = 2 }", "space: model.encoder: it is not a number, so list its choices"),
        ("", "the space is empty"),
        ("low =", "cannot be read as TOML"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "space.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_space(tmp_path / "space.toml")
