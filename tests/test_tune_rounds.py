"""Trials in rounds: what they come to depends on the size of a round, not on who tries them, nor on a kill."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from small_run import SMALL, small_data

from concf.data.split import Split
from concf.errors import ConfigError
from concf.experiments import trials
from concf.experiments.tune import Tuning, tune
from concf.runtime.executors import one_after_the_other
from concf.training.config.settings import ConCFSettings

pytestmark = pytest.mark.usefixtures("on_one_thread", "quick_collections")

QUICK = (*SMALL, "objectives=bpr,multinomial", "model.encoder=mf", "training.epochs=2", "training.batch=256")
RATE = "training.learning_rate"
RATES: dict[str, Any] = {RATE: {"low": 1e-3, "high": 0.1, "log": True}, "consensus.weight": {"low": 0.0, "high": 0.1}}
TRIALS, SIZE = 8, 3  # the preset, two rounds, and one of the third
TRAINED: list[ConCFSettings] = []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


def pretended(data: Split, settings: ConCFSettings, *, watch: Any, **more: Any) -> None:
    """Stands for a training, whose figures are a function of the settings."""
    TRAINED.append(settings)
    for epoch in range(settings.training.epochs):
        figure = settings.training.learning_rate * (epoch + 1) - settings.consensus.weight
        watch({"epoch": epoch, "validation": {"consensus": figure}})


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    TRAINED.clear()
    monkeypatch.setattr(trials, "train", pretended)


def search(data: Split, out: Path, trials: int = TRIALS, size: int = SIZE, **more: Any) -> Tuning:
    return tune(data, out, words=QUICK, space=more.pop("space", RATES), trials=trials, at_once=size, **more)


def outcomes(tuning: Tuning) -> list[dict[str, Any]]:
    return [dataclasses.asdict(dataclasses.replace(each, seconds=0.0)) for each in tuning.trials]


@pytest.fixture
def whole(data: Split, pretend: None, tmp_path: Path) -> Tuning:
    return search(data, tmp_path / "whole")


def test_workers_come_to_the_same_end(data: Split, tmp_path: Path) -> None:
    here = search(data, tmp_path / "here", 4)
    tuning = search(data, tmp_path / "search", 4, engine="processes", workers=1, device="cpu")
    assert outcomes(tuning) == outcomes(here)


def test_the_order_in_which_trials_are_done_does_not_show(
    data: Split, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = []

    def backwards(work: Any, jobs: list[Any], *_: Any) -> Any:
        rounds.append(len(jobs))
        return one_after_the_other(work, jobs[::-1])

    monkeypatch.setattr(trials, "execute", backwards)
    assert outcomes(search(data, tmp_path / "search", engine="ray")) == outcomes(whole)
    assert rounds == [1, 3, 3, 1]
    assert [each.number for each in whole.trials] == list(range(TRIALS))
    assert len({json.dumps(each.changes) for each in whole.trials}) == TRIALS


@pytest.mark.usefixtures("pretend")
def test_what_another_trial_of_the_round_came_to_is_not_known(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = partial(optuna.samplers.TPESampler, n_startup_trials=1)  # by default the first ten are drawn at random
    monkeypatch.setattr(optuna.samplers, "TPESampler", early)
    alone, three, four = (search(data, tmp_path / str(size), 5, size) for size in (1, 3, 4))
    assert outcomes(alone)[:2] == outcomes(three)[:2]
    assert alone.trials[2].changes != three.trials[2].changes
    assert outcomes(three)[:4] == outcomes(four)[:4]  # all of them know the preset alone
    assert three.trials[4].changes != four.trials[4].changes


@pytest.mark.parametrize("added", [2, 5])
def test_a_round_that_was_cut_short_goes_on_to_the_same_end(
    data: Split, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: int
) -> None:
    written, report = [], optuna.storages.JournalStorage.create_new_trial

    def killed(*args: Any, **more: Any) -> int:
        if len(written) == added:
            raise KeyboardInterrupt
        written.append(args)
        return report(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.JournalStorage, "create_new_trial", killed)
        with pytest.raises(KeyboardInterrupt):
            search(data, tmp_path / "search")
    assert outcomes(search(data, tmp_path / "search", 6)) == outcomes(whole)[:6]
    assert outcomes(search(data, tmp_path / "search")) == outcomes(whole)


@pytest.mark.usefixtures("pretend")
def test_what_is_drawn_twice_is_trained_once(data: Split, tmp_path: Path) -> None:
    tuning = search(data, tmp_path / "search", 9, size=4, space={RATE: {"choices": [0.01, 0.03]}})
    assert len(TRAINED) == len(tuning.ranked()) == sum(not each.repeats for each in tuning.trials) == 2
    assert {json.dumps(each.changes): each.validation for each in tuning.ranked()} == {
        json.dumps(each.changes): each.validation for each in tuning.trials
    }


@pytest.mark.usefixtures("pretend")
def test_a_bad_trial_is_stopped_by_those_of_earlier_rounds(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.experiments.study.FINISHED_BEFORE_PRUNING", 1)
    space = {RATE: {"choices": [0.03, 1e-9]}, "consensus.temperature": {"low": 1.0, "high": 9.0}}
    words = [*QUICK, "training.epochs=12", f"{RATE}=0.03"]
    tuning = tune(data, tmp_path / "search", words=words, space=space, trials=5, at_once=4)
    bad = [each for each in tuning.trials if each.changes[RATE] == 1e-9]
    assert bad
    assert {each.state for each in bad} == {"stopped"}


@pytest.mark.usefixtures("pretend")
def test_rounds_belong_to_the_search(data: Split, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--at-once 4"):
        search(data, tmp_path / "search", size=1, engine="processes")
    search(data, tmp_path / "search", 1, size=1)
    with pytest.raises(ConfigError, match=r"holds another search, whose at_once is 1 and not 2"):
        search(data, tmp_path / "search", 2, size=2)
