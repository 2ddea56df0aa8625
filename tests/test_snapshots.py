"""Voters that are given at several times: consistency is Eq. 11, a feature of the re-ranker, and part of the votes."""

from __future__ import annotations

from functools import cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from small_combine import K, frame, vectors, voters
from small_recipe import SMALL, assert_same, data
from small_run import Killed, assert_same_end, die_after

from concf.baselines.ease import EASE
from concf.consensus.consensus import CONSENSUS
from concf.consensus.voters import Voter
from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.inference.recommender import Recommender
from concf.models import load_run, train
from concf.runs.run import Run
from concf.strong.combine import combine
from concf.strong.reranker import Reranker

TEMPERATURE = 20.0  # consensus.temperature of the preset


def snapshots() -> dict[str, Any]:
    """Lists of EASE at three penalties, as if it had been trained for longer and longer."""
    return {
        f"ease@{time}": frame(EASE(regularisation=penalty).fit(data().train), data().train)
        for time, penalty in ((1, 5000.0), (2, 500.0), (10, 50.0))
    }


def both() -> dict[str, Any]:
    """Lists and vectors."""
    return snapshots() | {"svd@1": vectors(d=2), "svd@2": vectors(d=6)}


@cache
def combined() -> Run:
    return combine(data(), both(), settings=SMALL, seed=3)


def literal(lists: list[list[list[int]]]) -> list[dict[int, float]]:
    """User -> item of the last list -> C, by loops. lists: of each time, of each user; rank K where not listed."""
    found = []
    for user, last in enumerate(lists[-1]):
        ranks = {item: [each[user].index(item) if item in each[user] else K for each in lists] for item in last}
        found.append({item: exp(-float(np.std(each)) / TEMPERATURE) for item, each in ranks.items() if item >= 0})
    return found


def test_consistency_is_that_of_the_ranks_over_time() -> None:
    users, log = np.arange(48), data().train
    at_times = {
        "ease": [rank(EASE(regularisation=each).fit(log), users, K, seen=log) for each in (5000.0, 500.0, 50.0)],
        "svd": [rank(vectors(d=d), users, K, seen=log) for d in (2, 6)],
    }
    run = combined()
    votes, names = run.best[CONSENSUS].votes, [*run.settings.heads, *run.settings.fixed_voters]
    assert set(run.settings.snapshots) == {"ease", "svd"}
    for name, lists in at_times.items():
        voter = names.index(name)
        assert votes["items"][voter].tolist() == lists[-1].tolist()  # the last one votes
        for user, expected in enumerate(literal([each.tolist() for each in lists])):
            pairs = zip(votes["items"][voter, user].tolist(), votes["consistency"][voter, user].tolist(), strict=True)
            assert {item: c for item, c in pairs if item >= 0} == pytest.approx(expected, rel=1e-5)
    assert not votes["consistency"][names.index("student")].any()
    user = Recommender(run).user_ids.values[[4]].tolist()[0]
    item = Recommender(run, frame="arrays").recommend(user, k=1)[0].tolist()[0]
    for vote in Recommender(run).explain(user, item)["heads"]:
        assert (vote["C"] > 0) == (vote["R"] > 0)


def test_consistency_is_a_feature_of_what_is_listed() -> None:
    log = csr_array(np.eye(4, 6, dtype=np.float32))
    lists = torch.tensor([[1, 2, 3], [2, 3, -1], [5, 4, 3], [0, 1, 2]], dtype=torch.int32)
    other = torch.tensor([[5, 4, 1], [0, 1, 5], [0, 1, 2], [4, 5, 1]], dtype=torch.int32)
    steady = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    known = torch.zeros(4, 3, 3)
    steadily = [Voter("a", lists, None, known, None, steady), Voter("b", other, None, known)]
    made = Reranker(log, torch.arange(4), steadily, [1.0, 1.0], length=6, top_k=3, temperature=2.0)
    features, empty = made.features(torch.arange(4))
    silent = [Voter("a", lists, None, known), steadily[1]]
    without = Reranker(log, torch.arange(4), silent, [1.0, 1.0], length=6, top_k=3, temperature=2.0)
    plain = without.features(torch.arange(4))[0]
    column = 2 * 3 + 5  # after the ranks of two voters and popularity's curve
    assert features[..., torch.arange(features.shape[2]) != column].equal(plain)
    for user in range(4):
        for place, item in enumerate(made.lists[user].tolist()):
            row = lists[user].tolist()
            expected = steady[user, row.index(item)] if item in row and item >= 0 else 0.0
            assert empty[user, place] or features[user, place, column] == expected


def test_contributions_still_add_up_to_the_score() -> None:
    model = Recommender(combined(), frame="arrays")
    for user in model.user_ids.values[::11].tolist():
        items, scores = model.recommend(user, k=4)
        sums = [
            sum(each["value"] for each in model.explain(user, item)["contributions"] or []) for item in items.tolist()
        ]
        assert np.diff(sums) == pytest.approx(np.diff(scores), abs=1e-4)
    history = model.item_ids.values[[2, 5]].tolist()  # new users have no trajectory, and are ranked for all the same
    assert len(set(model.recommend(history=history, k=4)[0].tolist()) - set(history)) == 4


def test_a_run_with_snapshots_is_resumed(tmp_path: Path) -> None:
    final = {
        name: voter.with_columns(pl.col("rank") * 2) if name[0] == "e" else vectors(1) for name, voter in both().items()
    }
    options: dict[str, Any] = {"final_voters": final, "settings": SMALL, "seed": 3}
    whole = combine(data(), both(), out=tmp_path / "whole", **options)
    assert_same(whole, load_run(tmp_path / "whole"))
    with pytest.raises(Killed):
        combine(data(), both(), out=tmp_path / "killed", watch=die_after(1), **options)
    train(data(), out=tmp_path / "killed", resume=True)
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_times_are_numbered_or_there_is_one() -> None:
    walks = voters()["walks"]
    with pytest.raises(ConfigError, match="one snapshot has no number, another is walks@2"):
        combine(data(), {"walks": walks, "walks@2": walks}, settings=SMALL)
    with pytest.raises(ConfigError, match="voter '': choose a name"):
        combine(data(), {"@1": walks}, settings=SMALL)
    alone = combine(data(), {"walks@7": walks}, settings=SMALL)
    assert "consistency" not in alone.best[CONSENSUS].votes
    with pytest.raises(ConfigError, match="expected names of given voters"):
        train(data(), {"snapshots": ["als"]})
