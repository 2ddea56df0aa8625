"""What the best epoch is chosen by fits the catalogue, so that a small one does not ship untrained heads."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from small_run import often

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.validation import fitting_metric, refuse_blind
from concf.models import choose_settings, train
from concf.reference.trainer import Trainer


@cache
def small() -> Split:
    """40 items: validation recall@50 is 1 whatever the order."""
    return prepare(Simulation(users=250, items=40, events=4000, tastes=5).draw(3), protocol="random")


@dataclasses.dataclass
class Parts:
    """As much of a split as the choice of a metric may look at."""

    train: csr_array
    valid: csr_array
    validated: Any


def parts(items: int, trained: int, validated: int, users: int = 6) -> Any:
    """Users who trained on so many items and validate by so many others."""
    train, valid = np.zeros((users, items)), np.zeros((users, items))
    train[:, :trained], valid[:, trained : trained + validated] = 1, 1
    return Parts(csr_array(train), csr_array(valid), np.arange(users))


@pytest.mark.parametrize(("items", "trained", "expected"), [
    (520, 20, "recall@50"),
    (519, 20, "ndcg@49"),
    (600, 500, "ndcg@10"),  # many items, few of them left to rank
    (40, 8, "ndcg@5"),
    (6, 3, "ndcg@5"),
])  # fmt: skip
def test_auto_is_the_usual_metric_or_one_of_far_fewer_places_than_candidates(
    items: int, trained: int, expected: str
) -> None:
    assert fitting_metric("auto", parts(items, trained, 1)) == expected
    assert fitting_metric("map@7", parts(items, trained, 1)) == "map@7"


def test_a_metric_that_cannot_tell_orders_apart_is_refused() -> None:
    for metric in ("recall@50", "precision@40", "hit@39", "recall@32"):
        with pytest.raises(ConfigError, match="cannot tell one epoch from another"):
            refuse_blind(metric, parts(40, 8, 2))
    for metric in ("recall@31", "hit@8", "ndcg@50", "map@40", "mrr@40"):
        refuse_blind(metric, parts(40, 8, 2))


QUICK: dict[str, dict[str, Any]] = {
    "reference": {"training": {"epochs": 31, "learning_rate": 0.02}, "consensus": {"every": 5, "window": 2}},
    "strong": {"dimensions": 32},
}


@pytest.mark.parametrize("preset", QUICK)
def test_a_catalogue_of_40_items_ships_heads_that_have_learned(preset: str) -> None:
    data, chosen = small(), choose_settings(preset, QUICK[preset])
    run, untrained = train(data, chosen, seed=1), Trainer(data, choose_settings("reference"), seed=1).model.factors()
    assert run.metric == run.summary()["metric"] == "ndcg@5"
    for name in run.rows():
        means = evaluate(run.recommender(name), data, at=5).means()
        assert run.best[name].epoch > 0, name
        assert means["ndcg@5"] > 1.5 * max(evaluate(each, data, at=5).means()["ndcg@5"] for each in untrained.values())
    with pytest.raises(ConfigError, match="cannot tell one epoch from another"):
        train(data, choose_settings(chosen, {"training": {"metric": "recall@50"}}))


def test_patience_is_not_renewed_by_ties_whoever_goes_on(tmp_path: Path) -> None:
    """A head that stands still ends the run, and the run that was resumed, after as many epochs."""
    words = ["training.epochs=40", "training.learning_rate=1e-12", "training.patience=3", "consensus.every=1",
             "consensus.window=1", "model.dimensions=8", "model.dropout=0"]  # fmt: skip
    chosen = choose_settings("reference", words=words, single="bpr")

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 1:
            raise KeyboardInterrupt

    whole = train(small(), chosen, out=tmp_path / "whole")
    assert (whole.best["bpr"].rose, whole.best["bpr"].epoch, whole.epoch) == (0, 3, 4)
    with pytest.raises(KeyboardInterrupt), often():
        train(small(), chosen, out=tmp_path / "cut", watch=stop)
    resumed = train(small(), out=tmp_path / "cut", resume=True)
    assert (resumed.best["bpr"].rose, resumed.best["bpr"].epoch, resumed.epoch) == (0, 3, 4)
