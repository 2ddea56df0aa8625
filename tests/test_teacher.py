"""A teacher in place of the consensus, when a run stops, and one objective several times."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from small_ablations import SEED, generator, small, tiny
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.reference.objectives import FIVE
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.settings import ReferenceSettings
from concf.reference.train import train_reference
from concf.reference.trainer import Parts, Trainer
from reproduction.ablations import Teacher

STUDENTS = [name for name in FIVE if name != "multinomial-users"]


def any_lists(data: Split, length: int, seed: int = 0) -> Tensor:
    """[users, length] unseen items in any order: nothing that could be learned from the data."""
    scores = torch.rand(*data.train.shape, generator=generator(seed)).numpy()
    everyone = np.arange(data.train.shape[0])
    return torch.from_numpy(rank(lambda users: scores[users], everyone, length, seen=data.train))


def by(teacher: Tensor) -> Parts:
    return Parts(consensus=partial(Teacher, teacher))


def test_a_teacher_is_heard_from_the_first_epoch_and_never_overwritten() -> None:
    data, lists = tiny(), any_lists(tiny(), 6)
    seen = []
    parts = replace(by(lists), watch_rankings=lambda _, trainer, _lists: seen.append(trainer.consensus.target.clone()))
    run = train_reference(data, small(), parts=parts)
    assert len(seen) == 3
    assert all(torch.equal(consensus_target, lists) for consensus_target in seen)
    for record in run.history:
        assert all(record["consensus_loss"][name] > 0 for name in STUDENTS)
        assert record["consensus_loss"]["multinomial-users"] == 0
    assert run.rows() == [*FIVE, "R-consensus", "consensus"]  # they agree all the same


def test_lists_shorter_than_the_consensus_loss_leave_empty_places_and_longer_ones_are_cut() -> None:
    data, chosen = tiny(), small(consensus={"length": 3})
    long = any_lists(data, 8)
    assert torch.equal(Trainer(data, chosen, parts=by(long)).consensus.target, long[:, :6])
    short = Trainer(data, chosen, parts=by(long[:, :2]))
    assert torch.equal(short.consensus.target[:, :2], long[:, :2])
    assert (short.consensus.target[:, 2:] == -1).all()
    assert all(short.epoch(0)["consensus_loss"][name] > 0 for name in STUDENTS)
    empty = Trainer(data, chosen, parts=by(torch.full((8, 4), -1)))
    assert set(empty.epoch(0)["consensus_loss"].values()) == {0.0}


# When a run stops


@pytest.mark.parametrize(("every", "rises", "end"), [
    (1, {"bpr": 4, "cml": 6, "consensus": 2}, 9),
    (4, {"bpr": 2, "cml": 9, "consensus": 0}, 12),  # heads rest by the epoch: one of them still rose
    (4, {"bpr": 2, "cml": 2, "consensus": 8}, 16),  # a consensus rests by two rankings
])  # fmt: skip
def test_a_run_ends_when_no_validation_metric_has_risen_for_so_long(
    monkeypatch: pytest.MonkeyPatch, every: int, rises: dict[str, int], end: int
) -> None:
    """Validation rises up to those epochs, then falls; patience is counted from epoch 1 on."""
    rises = {"R-consensus": 0} | rises
    epochs: list[int] = []

    def recall(name: str) -> float:
        return 0.5 - 0.01 * abs(epochs[-1] - rises[name])

    monkeypatch.setattr(
        Trainer, "epoch", lambda trainer, epoch: (epochs.append(epoch), {"epoch": epoch, "seconds": 0.0})[1]
    )
    monkeypatch.setattr(RankingConsensus, "validate", lambda _, lists: {name: recall(name) for name in lists})
    monkeypatch.setattr(RankingConsensus, "validate_heads", lambda each: {name: recall(name) for name in each.heads})
    training = {"epochs": 40, "patience": 3}
    chosen = small(objectives=("bpr", "cml"), consensus={"every": every, "window": 1}, training=training)
    run = train_reference(tiny(), chosen, seed=1)
    assert run.epoch - 1 == end
    assert {name: run.best[name].epoch for name in ("bpr", "cml")} == {
        name: min(rises[name], end) for name in ("bpr", "cml")
    }


# One objective several times


@pytest.mark.parametrize(("kind", "sharing"), [("bpr", "full"), ("multinomial-users", "none")])
def test_an_objective_several_times_starts_differently_each_time(kind: str, sharing: str) -> None:
    names = [f"{kind}#{start}" for start in range(1, 6)]
    chosen = small(objectives=names, model={"sharing": sharing}, balance={"on": False})
    trainer = Trainer(tiny(), chosen, SEED)
    assert trainer.names == names
    scores = [factors.scores(torch.arange(8)) for factors in trainer.model.factors().values()]
    assert all(not torch.allclose(scores[x], scores[y]) for x in range(5) for y in range(x))
    assert len({*trainer.epoch(0)["loss"].values()}) == 5


def test_a_window_of_all_rankings_warms_up_as_the_papers() -> None:
    whole, five = (ReferenceSettings().changed({"consensus": {"window": window}}) for window in (None, 5))
    assert whole.first_consensus_epoch == five.first_consensus_epoch
    with pytest.raises(ConfigError, match=r"set consensus\.window"):
        whole.changed({"formulation": "released"})
