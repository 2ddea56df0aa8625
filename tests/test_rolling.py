"""Rolling cuts: windows one behind the other, nothing of the future, and the metrics of the plain path."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_run import CLI
from test_time_protocol import Event, by_pair, first_times, frame

from concf.baselines.factorisation import Popularity
from concf.comparison.rolling import evaluate_rolling, rolling_splits
from concf.data.parts import TEST, VALID
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import evaluate
from concf.models import PRESETS, choose_settings

LOG = Simulation(users=150, items=60, events=5000).draw(3)
DAY = 86_400


def pairs(split: Split, part: int) -> set[tuple[int, int]]:
    return {pair for pair, each in by_pair(split).items() if each % 8 == part}


events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(0, 30)), min_size=20, max_size=90)


@given(events, st.integers(1, 3), st.sampled_from([0.1, 0.2, "4", "7"]))
def test_windows_follow_one_another(log: list[Event], cuts: int, test: float | str) -> None:
    try:
        splits = rolling_splits(frame(log), cuts, {"test": test, "min_item": 1})
    except DataError:
        return
    first = first_times(log)
    assert len(splits) == cuts
    for earlier, later in pairwise(splits):
        assert pairs(later, VALID) == pairs(earlier, TEST)
        assert max(first[pair] for pair in pairs(earlier, TEST)) < min(first[pair] for pair in pairs(later, TEST))
        known = {pair for part in (0, VALID, TEST) for pair in pairs(earlier, part)}
        assert known == {pair for part in (0, VALID) for pair in pairs(later, part)}
    assert {pair for part in (0, VALID, TEST) for pair in pairs(splits[-1], part)} == first.keys()
    if isinstance(test, str):  # in the log's own unit
        newest = max(first.values())
        assert pairs(splits[-1], TEST) == {pair for pair, time in first.items() if time > newest - int(test)}


def test_metrics_are_those_of_the_plain_path(tmp_path: Path) -> None:
    found = evaluate_rolling(LOG, ["popularity"], cuts=3, test="40d", min_item=1, log=tmp_path / "cells.jsonl")
    splits = rolling_splits(LOG, 3, {"test": "40d", "min_item": 1})
    for cell, split in zip(found.models["popularity"], splits, strict=True):
        model = Popularity().fit(split.log(["train", "valid"]))
        for users in ("warm", "everyone"):
            means = evaluate(
                model, split, at=(10, 50), metrics=["ndcg", "hit", "recall"], everyone=users == "everyone"
            ).means()
            assert {metric: means[metric] for metric in found.metrics} == pytest.approx(
                {metric: cell[users][metric] for metric in found.metrics}
            )
    values = [cell["warm"]["ndcg@10"] for cell in found.models["popularity"]]
    assert found.rows()[1][0][:2] == ["popularity", f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"]
    found.plot(tmp_path / "plot.svg")
    assert "popularity" in (tmp_path / "plot.svg").read_text()


def test_a_run_is_trained_once_and_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "strong", choose_settings("strong", words=["dimensions=16", "budget=fast"]))
    log, names = LOG.rename({"user_id": "member", "item_id": "thing"}), {"user": "member", "item": "thing"}
    found = evaluate_rolling(log, ["concf:strong"], update=True, cuts=2, test=0.15, metrics=["recall@10"], **names)
    assert set(found.models) == {
        f"concf:strong {ship}{how}" for ship in ("consensus", "head") for how in ("", " updated")
    }
    trained, updated = (found.models[f"concf:strong consensus{how}"] for how in ("", " updated"))
    assert trained[0]["warm"] == updated[0]["warm"]
    assert updated[1]["warm"]["recall@10"] > 0.8 * trained[1]["warm"]["recall@10"]


def test_the_command(concf: CLI, tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv")
    words = ["--cuts", 2, "--test", "40d", "--models", "popularity", "--plot", tmp_path / "over.svg", "--json"]
    code, shown, _ = concf("evaluate", tmp_path / "log.csv", *words)
    found = json.loads(shown)
    assert len(found["windows"]) == len(found["models"]["popularity"]) == 2
    assert (code, (tmp_path / "over.svg").is_file()) == (0, True)
    code, _, noted = concf("evaluate", tmp_path / "log.csv", "--test", "40d")
    assert code == 2
    assert "--cuts" in noted


@pytest.mark.parametrize(("options", "message"), [
    ({"cuts": 40}, "leave nothing"), ({"cuts": 0}, "cuts"), ({"test": "400d"}, "leave nothing"),
    ({"valid": 0.1}, "valid"), ({"metrics": ["recall"]}, "recall@50"), ({"timestamp": "none"}, "need times"),
])  # fmt: skip
def test_impossible_cuts_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        evaluate_rolling(LOG, ["popularity"], **options)
