"""Trials in rounds: what they come to depends on the size of a round, not on who tries them, nor on a kill."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from small_run import SMALL, small_data

import concf.experiments.tune as tuning
from concf.data.split import Split
from concf.errors import ConfigError
from concf.experiments import tune_rounds as tuning_rounds
from concf.experiments.study import SEARCH
from concf.experiments.tune import Tuning, tune
from concf.runtime.executors import one_after_the_other
from concf.training.train import train

pytestmark = pytest.mark.usefixtures("on_one_thread", "quick_collections")

QUICK = (*SMALL, "objectives=bpr,multinomial", "model.encoder=mf", "training.epochs=2", "training.batch=256")
RATE = "training.learning_rate"
RATES: dict[str, Any] = {RATE: {"low": 1e-3, "high": 0.1, "log": True}, "consensus.weight": {"low": 0.0, "high": 0.1}}
TRIALS, SIZE = 8, 3  # the preset, two rounds, and one of the third


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


def search(data: Split, out: Path, trials: int = TRIALS, size: int = SIZE, **more: Any) -> Tuning:
    return tune(data, out, words=QUICK, space=more.pop("space", RATES), trials=trials, at_once=size, **more)


def told(found: Tuning) -> list[dict[str, Any]]:
    return [dataclasses.asdict(dataclasses.replace(each, seconds=0.0)) for each in found.trials]


@pytest.fixture(scope="module")
def whole(data: Split, tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    torch.set_num_threads(1)
    return search(data, tmp_path_factory.mktemp("whole") / "search")


def test_workers_come_to_the_same_end(data: Split, whole: Tuning, tmp_path: Path) -> None:
    found = search(data, tmp_path / "search", 4, engine="processes", workers=2, device="cpu")
    assert told(found) == told(whole)[:4]


def test_the_order_in_which_trials_are_done_does_not_show(
    data: Split, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def backwards(work: Any, jobs: list[Any], *_: Any) -> Any:
        asked.append([job.number for job in jobs])
        return one_after_the_other(work, jobs[::-1])

    monkeypatch.setattr(tuning_rounds, "execute", backwards)
    assert told(search(data, tmp_path / "search", engine="ray")) == told(whole)
    assert asked == [[1, 2, 3], [4, 5, 6], [7]]
    assert [each.number for each in whole.trials] == list(range(TRIALS))
    assert len({json.dumps(each.changes) for each in whole.trials}) == TRIALS


def test_what_another_trial_of_the_round_came_to_is_not_known(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = partial(optuna.samplers.TPESampler, n_startup_trials=1)  # by default the first ten are drawn at random
    monkeypatch.setattr(optuna.samplers, "TPESampler", early)
    alone, three, four = (search(data, tmp_path / str(size), 5, size) for size in (1, 3, 4))
    assert told(alone)[:2] == told(three)[:2]
    assert alone.trials[2].changes != three.trials[2].changes
    assert told(three)[:4] == told(four)[:4]  # all of them know the preset alone
    assert three.trials[4].changes != four.trials[4].changes


@pytest.mark.parametrize("added", [2])
def test_a_round_that_was_cut_short_goes_on_to_the_same_end(
    data: Split, whole: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: int
) -> None:
    taken, add = [], tuning_rounds._add

    def killed(*args: Any) -> None:
        if len(taken) == added:
            raise KeyboardInterrupt
        taken.append(args)
        add(*args)

    with monkeypatch.context() as patch:
        patch.setattr(tuning_rounds, "_add", killed)
        with pytest.raises(KeyboardInterrupt):
            search(data, tmp_path / "search")
    assert told(search(data, tmp_path / "search", 6)) == told(whole)[:6]
    assert told(search(data, tmp_path / "search")) == told(whole)


def test_what_is_drawn_twice_is_trained_once(data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    monkeypatch.setattr(tuning, "train", lambda *args, **more: (trained.append(args), train(*args, **more))[1])
    found = search(data, tmp_path / "search", 9, size=4, space={RATE: {"choices": [0.01, 0.03]}})
    assert len(trained) == len(found.ranked()) == sum(not each.repeats for each in found.trials) == 2
    assert {json.dumps(each.changes): each.validation for each in found.ranked()} == {
        json.dumps(each.changes): each.validation for each in found.trials
    }


def test_a_bad_trial_is_stopped_by_those_of_earlier_rounds(
    data: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concf.experiments.study.COMPARED", 1)
    space = {RATE: {"choices": [0.03, 1e-9]}, "consensus.temperature": {"low": 1.0, "high": 9.0}}
    words = [*QUICK, "training.epochs=12", f"{RATE}=0.03"]
    found = tune(data, tmp_path / "search", words=words, space=space, trials=5, at_once=4)
    bad = [each for each in found.trials if each.changes[RATE] == 1e-9]
    assert bad
    assert {each.state for each in bad} == {"stopped"}


def test_rounds_belong_to_the_search(data: Split, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--at-once 4"):
        search(data, tmp_path / "search", size=1, engine="processes")
    search(data, tmp_path / "search", 1, size=1)
    with pytest.raises(ConfigError, match=r"holds a search with other rounds \(1, not 2\)"):
        search(data, tmp_path / "search", 2, size=2)
    about = json.loads((tmp_path / "search" / SEARCH).read_text())
    del about["at_once"]  # as an earlier version wrote it
    (tmp_path / "search" / SEARCH).write_text(json.dumps(about))
    assert len(search(data, tmp_path / "search", 2, size=1).trials) == 2
