"""A teacher in place of the consensus, whom a run watches and how it goes on, and one objective several times."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_ablations import SEED, generator, small, tiny
from small_run import SMALL, assert_same_end, small_data
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.models import choose_settings
from concf.models import train as train_anywhere
from concf.reference.objectives import FIVE
from concf.reference.ranking_consensus import RankingConsensus
from concf.reference.trainer import Trainer
from concf.runs.settings import RunSettings

pytestmark = pytest.mark.usefixtures("on_one_thread")

train = partial(train_anywhere, device="cpu")

STUDENTS = [name for name in FIVE if name != "multinomial-users"]


def any_lists(data: Split, length: int, seed: int = 0) -> Tensor:
    """[users, length] unseen items in any order: nothing that could be learned from the data."""
    scores = torch.rand(*data.train.shape, generator=generator(seed)).numpy()
    everyone = np.arange(data.train.shape[0])
    return torch.from_numpy(rank(lambda users: scores[users], everyone, length, seen=data.train))


def test_a_teacher_is_heard_from_the_first_epoch_and_never_overwritten() -> None:
    data, lists = tiny(), any_lists(tiny(), 9)
    seen = []
    run = train(
        data, small(), teacher=lists.numpy(), watch_rankings=lambda *_: seen.append(_[1].consensus.target.clone())
    )
    assert len(seen) == 3
    assert all(torch.equal(consensus_target, lists) for consensus_target in seen)
    for record in run.history:
        assert all(record["consensus_loss"][name] > 0 for name in STUDENTS)
        assert record["consensus_loss"]["multinomial-users"] == 0
    assert run.rows() == [*FIVE, "R-consensus", "consensus"]  # they agree all the same


def test_one_head_alone_learns_its_teachers_lists() -> None:
    head, data, lists = "multinomial", tiny(), any_lists(tiny(), 12, seed=4)
    common = {}
    for weight in (0.0, 20.0):
        chosen = small(consensus={"weight": weight, "tail": 9}, training={"epochs": 40, "patience": None})
        run = train(data, chosen.single(head), teacher=lists)
        ranked = rank(run.model.factors()[head], np.arange(8), 3, seen=data.train)
        places = zip(ranked, lists[:, :3].tolist(), strict=True)
        common[weight] = sum(len(set(mine) & set(theirs)) for mine, theirs in places)
        if weight:
            consensus_targets = [record["consensus_loss"][head] for record in run.history]
            assert consensus_targets[-1] < 0.7 * consensus_targets[0]
    assert common[20.0] > common[0.0]
    assert common[20.0] >= 16  # of 24


def test_lists_shorter_than_the_consensus_loss_leave_empty_places_and_longer_ones_are_cut() -> None:
    data, chosen = tiny(), small(consensus={"length": 3, "tail": 2})
    long = any_lists(data, 8)
    assert torch.equal(Trainer(data, chosen, teacher=long).consensus.target, long[:, :5])
    short = Trainer(data, chosen, teacher=long[:, :2])
    assert torch.equal(short.consensus.target[:, :2], long[:, :2])
    assert (short.consensus.target[:, 2:] == -1).all()
    assert all(short.epoch(0)["consensus_loss"][name] > 0 for name in STUDENTS)
    empty = Trainer(data, chosen, teacher=torch.full((8, 4), -1))
    assert set(empty.epoch(0)["consensus_loss"].values()) == {0.0}


@pytest.mark.parametrize("teacher", [
    torch.zeros(7, 3, dtype=torch.int32), torch.zeros(8, 0, dtype=torch.int32), torch.full((8, 3), -2),
    torch.full((8, 3), 12),
])  # fmt: skip
def test_lists_that_are_not_everyones_are_refused(tmp_path: Path, teacher: Tensor) -> None:
    with pytest.raises(ConfigError, match="teacher: "):
        train(tiny(), small(), teacher=teacher, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Whom a run watches


def scripted(monkeypatch: pytest.MonkeyPatch, last_rise: dict[str, int]) -> None:
    """Validation that rises up to those epochs, then falls."""
    calls: list[int] = []

    def validate(consensus: RankingConsensus, lists: dict[str, Tensor]) -> dict[str, float]:
        calls.append(1)
        epoch = len(calls) - 1
        return {name: 0.5 - 0.01 * abs(epoch - last_rise[name]) for name in lists}

    monkeypatch.setattr(RankingConsensus, "validate", validate)


@pytest.mark.parametrize(("watch", "end"), [("all", 9), ("bpr", 7), ("consensus", 5)])
def test_a_run_ends_when_nothing_that_it_watches_has_risen_for_so_long(
    monkeypatch: pytest.MonkeyPatch, watch: str, end: int
) -> None:
    rises = {"bpr": 4, "cml": 6, "consensus": 2, "R-consensus": 0}  # patience is counted from epoch 1 on
    scripted(monkeypatch, rises)
    run = train(tiny(), small(objectives=("bpr", "cml"), training={"epochs": 30, "patience": 3, "watch": watch}))
    assert run.epoch - 1 == end
    assert {name: best.epoch for name, best in run.best.items()} == {name: min(rises[name], end) for name in rises}


@pytest.mark.parametrize(("rises", "end"), [
    ({"bpr": 2, "cml": 9}, 12),  # one head still rose
    ({"bpr": 2, "cml": 2, "consensus": 8}, 16),
])  # fmt: skip
def test_heads_rest_by_the_epoch_and_a_consensus_by_two_rankings(
    monkeypatch: pytest.MonkeyPatch, rises: dict[str, int], end: int
) -> None:
    rises = {"consensus": 0, "R-consensus": 0} | rises

    def figure(name: str, epoch: int) -> float:
        return 0.5 - 0.01 * abs(epoch - rises[name])

    epochs: list[int] = []
    monkeypatch.setattr(
        Trainer, "epoch", lambda trainer, epoch: (epochs.append(epoch), {"epoch": epoch, "seconds": 0.0})[1]
    )
    monkeypatch.setattr(RankingConsensus, "validate", lambda _, lists: {n: figure(n, epochs[-1]) for n in lists})
    monkeypatch.setattr(RankingConsensus, "validate_heads", lambda c: {n: figure(n, epochs[-1]) for n in c.heads})
    chosen = {"every": 4, "window": 1}
    run = train(
        tiny(), small(objectives=("bpr", "cml"), consensus=chosen, training={"epochs": 40, "patience": 3}), seed=1
    )
    assert run.epoch - 1 == end
    assert run.best["cml"].rose == rises["cml"]


def test_every_ranking_is_shown_with_the_lists_it_was_validated_by() -> None:
    chosen = small(consensus={"every": 2}, training={"epochs": 6}, objectives=("multinomial#1", "multinomial#2"))
    shown: dict[int, tuple[dict[str, Tensor], dict[str, float]]] = {}

    def look(epoch: int, trainer: Trainer, lists: dict[str, Tensor]) -> None:
        shown[epoch] = {name: each.clone() for name, each in lists.items()}, trainer.consensus.validate(lists)
        newest = torch.stack([lists[name][:, : trainer.consensus.queue[-1].shape[2]] for name in trainer.names])
        assert torch.equal(trainer.consensus.queue[-1], newest)

    run = train(tiny(), chosen, watch_rankings=look)
    assert list(shown) == [0, 2, 4, 5]
    for record in run.history:
        assert ("agreement" in record) == (record["epoch"] in shown)
        if "agreement" in record:
            assert record["validation"] == shown[record["epoch"]][1]
    for name in run.rows():
        best = run.best[name]
        assert best.lists is None or torch.equal(best.lists, shown[best.epoch][0][name])


# How a run goes on


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


VARIANTS: dict[str, tuple[str, ...]] = {
    "several times": ("objectives=bpr#1,bpr#2,cml", "consensus.warm_up=1", "training.watch=all"),
    "a teacher": (),
}


def stopped(data: Split, chosen: RunSettings, folder: Path, after: int, **options: Any) -> None:
    """A run that was stopped after that epoch; after the first there is no checkpoint yet."""

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, chosen, out=folder, checkpoint_seconds=0 if after else 1e9, watch=stop, **options)


@pytest.mark.parametrize(("variant", "after"), [("several times", 5), ("a teacher", 0)])
def test_a_variant_goes_on_bit_for_bit(data: Split, tmp_path: Path, variant: str, after: int) -> None:
    chosen = choose_settings("reference", words=[*SMALL, *VARIANTS[variant]])
    options = {"teacher": any_lists(data, 8)} if variant.startswith("a teacher") else {}
    train(data, chosen, out=tmp_path / "whole", **options)
    stopped(data, chosen, tmp_path / "stopped", after, **options)
    train(data, out=tmp_path / "stopped", resume=True, **options)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_with_a_teacher_does_not_go_on_without_it(data: Split, tmp_path: Path) -> None:
    """It would unlearn silently: the lists are no setting that the folder could bring back."""
    chosen, lists = choose_settings("reference", words=SMALL), any_lists(data, 8)
    stopped(data, chosen, tmp_path / "run", 5, teacher=lists)
    for other in (None, any_lists(data, 8, seed=1)):
        with pytest.raises(ConfigError, match="teacher"):
            train(data, out=tmp_path / "run", resume=True, teacher=other)
    stopped(data, chosen, tmp_path / "without", 5)
    with pytest.raises(ConfigError, match="teacher"):
        train(data, out=tmp_path / "without", resume=True, teacher=lists)


# One objective several times


@pytest.mark.parametrize(("kind", "sharing"), [("bpr", "full"), ("multinomial-users", "none")])
def test_an_objective_several_times_starts_differently_each_time(kind: str, sharing: str) -> None:
    names = [f"{kind}#{start}" for start in range(1, 6)]
    chosen = choose_settings(
        small(), words=[f"objectives={','.join(names)}", f"model.sharing={sharing}", "balance.on=false"]
    )
    trainer = Trainer(tiny(), chosen, SEED)
    assert trainer.names == names
    scores = [factors.scores(torch.arange(8)) for factors in trainer.model.factors().values()]
    assert all(not torch.allclose(scores[x], scores[y]) for x in range(5) for y in range(x))
    assert len({*trainer.epoch(0)["loss"].values()}) == 5


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_warm_up_stands_in_for_the_window_in_the_first_consensus_loss_alone(
    warm_up: int, window: int, every: int
) -> None:
    for begins in ("full-window", "warm-up", "after-warm-up"):
        base = choose_settings("reference", {"consensus": {"every": every, "begins": begins}})
        given_both = choose_settings(base, {"consensus": {"window": window, "warm_up": warm_up}})
        as_window = choose_settings(base, {"consensus": {"window": warm_up}})
        assert given_both.consensus.first_consensus_epoch == as_window.consensus.first_consensus_epoch
        back = given_both.consensus.model_copy(update={"window": warm_up, "warm_up": None})
        assert back == as_window.consensus
