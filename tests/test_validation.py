"""Validation of lists that are there anyway equals an evaluation from scratch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.evaluate import evaluate
from concf.evaluation.metrics import ACCURACY
from concf.evaluation.ranking import NOTHING, Seen, rank, rank_everyone
from concf.evaluation.scorers import Factors, ListFunction
from concf.evaluation.validation import Validation
from concf.models import choose_settings
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

CPU = torch.device("cpu")


def small() -> Split:
    return prepare(Simulation(users=25, items=30, events=400, tastes=3).draw(2), protocol="random")


def settings(metric: str, **consensus: Any) -> RunSettings:
    changes = {
        "model": {"dimensions": 8, "initial_std": 0.3},
        "consensus": {"every": 1, "window": 2, "top_k": 8, "length": 3} | consensus,
        "training": {"epochs": 3, "batch": 64, "metric": metric},
    }
    return choose_settings("reference", changes=changes)


def listed(lists: Tensor) -> ListFunction:
    return ListFunction(lambda users, k: lists[torch.as_tensor(users)])


def figure(model: Any, data: Split, metric: str) -> float:
    """What `evaluate` gives on the validation part."""
    name, n = metric.split("@")
    return evaluate(model, data, on="valid", at=int(n), metrics=name).means()[metric]


EVERYTHING = {"top_k": None}


@pytest.mark.parametrize(
    ("metric", "consensus"), [*((f"{name}@5", {}) for name in ACCURACY), ("recall@1", EVERYTHING), ("ndcg@50", {})]
)
def test_heads_and_consensus_are_validated_as_evaluate_does(metric: str, consensus: dict[str, Any]) -> None:
    """ndcg@50: of 30 items, so that every list is short."""
    data = small()
    trainer = Trainer(data, settings(metric, **consensus), seed=1)
    trainer.epoch(0)
    lists = trainer.consensus.update()
    figures, factors = trainer.consensus.validate(lists), trainer.model.factors()
    assert list(figures) == [*trainer.names, "consensus", "R-consensus"]
    for name in trainer.names:
        assert figures[name] == pytest.approx(figure(factors[name], data, metric), abs=1e-12)
    for name, value in figures.items():
        assert value == pytest.approx(figure(listed(lists[name]), data, metric), abs=1e-12)
    assert max(figures.values()) > 0


def sampled(users: int | None, single: str | None = None) -> RunSettings:
    words = [] if users is None else [f"training.validated_users={users}"]
    return choose_settings(settings("recall@5"), words=words, single=single)


@pytest.mark.parametrize("single", [None, "bpr"])
def test_a_sample_of_users_is_validated_as_if_there_were_no_others(single: str | None) -> None:
    data = small()
    trainer, whole = (Trainer(data, sampled(users, single), 3) for users in (7, None))
    users = trainer.consensus.validation.users.numpy()
    assert len(users) == 7 < len(data.validated)
    assert set(users) < set(data.validated)
    assert users.tolist() == Trainer(data, sampled(7), 3).consensus.validation.users.tolist()
    assert users.tolist() != Trainer(data, sampled(7), 4).consensus.validation.users.tolist()
    assert trainer.epoch(0)["loss"] == whole.epoch(0)["loss"]
    lists = trainer.consensus.update()
    validated, factors, rows = (
        trainer.consensus.validate(lists),
        whole.model.factors(),
        np.searchsorted(data.validated, users),
    )
    for name in whole.names:
        figures = evaluate(factors[name], data, on="valid", at=5, metrics="recall").per_user["recall@5"]
        assert validated[name] == pytest.approx(figures[rows].mean(), abs=1e-12)
        assert len(lists[name]) == (7 if single else data.train.shape[0])
    assert max(validated.values()) > 0


@pytest.mark.parametrize("n", [1, 12, 40])
def test_any_lists_are_validated_as_evaluate_does(n: int) -> None:
    """Whole, cut to the depth, short, and empty."""
    data, metric = small(), f"ndcg@{n}"
    validation = Validation(data, metric, CPU)
    rng = np.random.default_rng(0)
    scores = rng.random(data.train.shape)
    whole = torch.from_numpy(rank(lambda users: scores[users], np.arange(25), data.train.shape[1], seen=data.train))
    short = whole.where(torch.from_numpy(rng.integers(1, 9, (25, 1))) > torch.arange(whole.shape[1]), NOTHING)
    expected = figure(lambda users: scores[users], data, metric)
    lists = {"whole": whole, "deep": whole[:, : validation.depth], "short": short, "two": short[:, :2]}
    found = {name: validation.of_its_users(each[validation.users]) for name, each in lists.items()}
    assert found["whole"] == found["deep"] == pytest.approx(expected, abs=1e-12)
    for name in ("short", "two"):
        assert found[name] == pytest.approx(figure(listed(lists[name]), data, metric), abs=1e-12)
    assert validation.of_its_users(torch.full_like(whole, NOTHING)[validation.users]) == 0


@pytest.mark.parametrize("metric", ["recall", "recall@0", "recall@x", "coverage@20"])
def test_a_metric_that_makes_no_sense_is_refused(metric: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.metric = '.*recall@50"):
        Validation(small(), metric, CPU)


@pytest.mark.parametrize(("k", "bias"), [(4, True), (45, False)])
def test_everyone_is_ranked_as_anyone(k: int, bias: bool) -> None:
    """With ties, with a user who has seen everything, and with longer lists than there are items."""
    torch.manual_seed(0)
    users, items = 12, 30
    seen = torch.rand(users, items) < 0.4
    seen[3] = True
    user, item = torch.randint(-2, 3, (users, 3)).float(), torch.randint(-2, 3, (items, 3)).float()
    factors = Factors(user, item, torch.randint(2, (items,)).float() if bias else None)
    matrix = csr_array(seen.float().numpy())
    ranked = rank_everyone(factors, k, Seen(matrix, CPU))
    assert ranked.dtype == torch.int32
    assert ranked.tolist() == rank(factors, np.arange(users), k, seen=matrix).tolist()
    assert ranked[3].tolist() == [NOTHING] * k
