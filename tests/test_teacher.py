"""A teacher in place of the consensus, whom a run watches and how it goes on, and one objective several times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_ablations import SEED, generator, small, tiny
from small_run import SMALL, assert_same_end, small_data
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.reference.objectives import FIVE
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.run import ReferenceRun
from concf.reference.settings import ReferenceSettings
from concf.reference.train import train_reference
from concf.reference.trainer import Parts, Trainer
from concf.runs import job as jobs
from concf.runs.checkpoint import RunFolder
from concf.runs.job import Job
from concf.runs.settings import from_word

STUDENTS = [name for name in FIVE if name != "multinomial-users"]


def train(
    data: Split, chosen: ReferenceSettings, *, out: Path | None = None, resume: bool = False, watch: Any = None,
    seed: int = 0, **parts: Any,
) -> ReferenceRun:  # fmt: skip
    job = Job(None if out is None else RunFolder(out), resume, watchers=() if watch is None else (watch,))
    return train_reference(data, chosen, seed, job=job, parts=Parts(**parts))


def any_lists(data: Split, length: int, seed: int = 0) -> Tensor:
    """[users, length] unseen items in any order: nothing that could be learned from the data."""
    scores = torch.rand(*data.train.shape, generator=generator(seed)).numpy()
    everyone = np.arange(data.train.shape[0])
    return torch.from_numpy(rank(lambda users: scores[users], everyone, length, seen=data.train))


def test_a_teacher_is_heard_from_the_first_epoch_and_never_overwritten() -> None:
    data, lists = tiny(), any_lists(tiny(), 6)
    seen = []
    run = train(data, small(), teacher=lists, watch_rankings=lambda *_: seen.append(_[1].consensus.target.clone()))
    assert len(seen) == 3
    assert all(torch.equal(consensus_target, lists) for consensus_target in seen)
    for record in run.history:
        assert all(record["consensus_loss"][name] > 0 for name in STUDENTS)
        assert record["consensus_loss"]["multinomial-users"] == 0
    assert run.rows() == [*FIVE, "R-consensus", "consensus"]  # they agree all the same


def test_lists_shorter_than_the_consensus_loss_leave_empty_places_and_longer_ones_are_cut() -> None:
    data, chosen = tiny(), small(consensus={"length": 3})
    long = any_lists(data, 8)
    assert torch.equal(Trainer(data, chosen, parts=Parts(teacher=long)).consensus.target, long[:, :6])
    short = Trainer(data, chosen, parts=Parts(teacher=long[:, :2]))
    assert torch.equal(short.consensus.target[:, :2], long[:, :2])
    assert (short.consensus.target[:, 2:] == -1).all()
    assert all(short.epoch(0)["consensus_loss"][name] > 0 for name in STUDENTS)
    empty = Trainer(data, chosen, parts=Parts(teacher=torch.full((8, 4), -1)))
    assert set(empty.epoch(0)["consensus_loss"].values()) == {0.0}


@pytest.mark.parametrize("teacher", [
    torch.zeros(7, 3, dtype=torch.int32), torch.zeros(8, 0, dtype=torch.int32), torch.full((8, 3), -2),
    torch.full((8, 3), 12),
])  # fmt: skip
def test_lists_that_are_not_everyones_are_refused(tmp_path: Path, teacher: Tensor) -> None:
    with pytest.raises(ConfigError, match="teacher: "):
        train(tiny(), small(), teacher=teacher, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


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
    run = train(tiny(), chosen, seed=1)
    assert run.epoch - 1 == end
    assert {name: run.best[name].epoch for name in ("bpr", "cml")} == {
        name: min(rises[name], end) for name in ("bpr", "cml")
    }


# How a run goes on


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


def stopped(data: Split, chosen: ReferenceSettings, folder: Path, after: int, **options: Any) -> None:
    """A run that was stopped after that epoch; after the first there is no checkpoint yet."""

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "CHECKPOINT_SECONDS", 0 if after else 1e9)
        with pytest.raises(KeyboardInterrupt):
            train(data, chosen, out=folder, watch=stop, **options)


def test_a_run_with_a_teacher_goes_on_bit_for_bit(data: Split, tmp_path: Path) -> None:
    chosen, lists = ReferenceSettings().changed(*map(from_word, SMALL)), any_lists(data, 8)
    train(data, chosen, out=tmp_path / "whole", teacher=lists)
    stopped(data, chosen, tmp_path / "stopped", 0, teacher=lists)
    train(data, chosen, out=tmp_path / "stopped", resume=True, teacher=lists)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_with_a_teacher_does_not_go_on_without_it(data: Split, tmp_path: Path) -> None:
    """It would unlearn silently: the lists are no setting that the folder could bring back."""
    chosen, lists = ReferenceSettings().changed(*map(from_word, SMALL)), any_lists(data, 8)
    stopped(data, chosen, tmp_path / "run", 5, teacher=lists)
    for other in (None, any_lists(data, 8, seed=1)):
        with pytest.raises(ConfigError, match="teacher"):
            train(data, chosen, out=tmp_path / "run", resume=True, teacher=other)


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
