"""A teacher in place of the consensus, whom a run watches, what it shows of its rankings, and how it goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_ablations import PEERS, SEED, generator, small, tiny
from small_run import SMALL, assert_same_end, small_data
from torch import Tensor

from concf.consensus.ranking_consensus import RankingConsensus
from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.ranking import rank
from concf.model.objectives import FIVE
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.train import train as train_anywhere
from concf.training.trainer import Trainer
from reproduction.ablations import ABLATIONS

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


@pytest.mark.parametrize("sharing", ["full", "embedding", "none"])
def test_an_epoch_with_a_teacher_is_one_with_that_consensus_loss(in_double: None, sharing: str) -> None:
    data, lists = tiny(), any_lists(tiny(), 9)
    chosen = small(model={"sharing": sharing}, balance={"on": sharing != "none"}, training={"batch": 16})
    taught, by_hand = Trainer(data, chosen, SEED, teacher=lists), Trainer(data, chosen, SEED)
    by_hand.consensus.target.copy_(lists)
    by_hand.consensus.n_rankings = 1
    records = [each.epoch(chosen.consensus.first_consensus_epoch) for each in (taught, by_hand)]
    for name in ("loss", "consensus_loss", "gradient", "weight"):
        assert records[0][name] == pytest.approx(records[1][name], rel=1e-12)
    for name, parameter in taught.model.named_parameters():
        assert torch.allclose(parameter, by_hand.model.get_parameter(name), rtol=0, atol=1e-12), name


def test_a_teacher_is_not_heard_where_the_consensus_loss_has_no_weight() -> None:
    chosen = small(consensus={"weight": 0.0})
    assert not Trainer(tiny(), chosen, teacher=any_lists(tiny(), 9)).consensus.is_taught(5)


@pytest.mark.parametrize("head", STUDENTS)
def test_one_head_alone_learns_its_teachers_lists(head: str) -> None:
    data, lists = tiny(), any_lists(tiny(), 12, seed=4)
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


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (torch.zeros(7, 3, dtype=torch.int32), r"expected ranked lists \[8 users, L\].*found \[7, 3\]"),
        (torch.zeros(24, dtype=torch.int32), r"found \[24\]"),
        (torch.zeros(8, 3, 1, dtype=torch.int32), r"found \[8, 3, 1\]"),
        (torch.zeros(8, 0, dtype=torch.int32), r"found \[8, 0\]"),
        (torch.full((8, 3), -2), r"found item -2"),
        (torch.full((8, 3), 12), r"items below 12.*item 12"),
        (torch.full((8, 3), 2**40), r"items below 12.*item 1099511627776"),
    ],
)
def test_lists_that_are_not_everyones_are_refused(tmp_path: Path, teacher: Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=f"teacher: .*{message}"):
        train(tiny(), small(), teacher=teacher, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_peers_do_not_learn_from_a_teacher() -> None:
    with pytest.raises(ConfigError, match="teacher: in PCL heads learn from each other alone"):
        train(tiny(), small(objectives=PEERS), teacher=any_lists(tiny(), 9), parts=ABLATIONS["PCL"])


# Whom a run watches


def scripted(monkeypatch: pytest.MonkeyPatch, last_rise: dict[str, int]) -> None:
    """Validation that rises up to those epochs, then falls."""
    calls: list[int] = []

    def validate(consensus: RankingConsensus, lists: dict[str, Tensor]) -> dict[str, float]:
        calls.append(1)
        epoch = len(calls) - 1
        return {name: 0.5 - 0.01 * abs(epoch - last_rise[name]) for name in lists}

    monkeypatch.setattr(RankingConsensus, "validate", validate)


@pytest.mark.parametrize(("watch", "end"), [("all", 9), ("cml", 9), ("bpr", 7), ("consensus", 5), ("R-consensus", 4)])
def test_a_run_ends_when_nothing_that_it_watches_has_risen_for_so_long(
    monkeypatch: pytest.MonkeyPatch, watch: str, end: int
) -> None:
    rises = {"bpr": 4, "cml": 6, "consensus": 2, "R-consensus": 0}  # patience is counted from epoch 1 on
    scripted(monkeypatch, rises)
    run = train(tiny(), small(objectives=("bpr", "cml"), training={"epochs": 30, "patience": 3, "watch": watch}))
    assert run.epoch - 1 == end
    assert {name: best.epoch for name, best in run.best.items()} == {name: min(rises[name], end) for name in rises}


@pytest.mark.parametrize(
    ("rises", "end"),
    [
        ({"bpr": 2, "cml": 2}, 8),  # heads rest from epoch 5 on, the consensus after two rankings without a rise
        ({"bpr": 2, "cml": 9}, 12),  # one head still rose
        ({"bpr": 2, "cml": 2, "consensus": 8}, 16),
    ],
)
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


def test_all_of_one_head_is_that_head(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {"bpr": 4})
    chosen = choose_settings(
        small(), {"objectives": ("bpr",), "training": {"watch": "all", "epochs": 30, "patience": 3}}
    )
    assert train(tiny(), chosen).epoch - 1 == 7


@pytest.mark.parametrize("kind", ["ranks", "softmax", "single"])
def test_every_ranking_is_shown_with_the_lists_it_was_validated_by(kind: str) -> None:
    chosen = small(consensus={"every": 2}, training={"epochs": 6}, objectives=("multinomial#1", "multinomial#2"))
    chosen = {
        "ranks": chosen,
        "softmax": chosen,
        "single": chosen.single("multinomial"),
    }[kind]
    shown: dict[int, dict[str, Any]] = {}

    def look(epoch: int, trainer: Trainer, lists: dict[str, Tensor]) -> None:
        shown[epoch] = {
            "lists": {name: each.clone() for name, each in lists.items()},
            "by": trainer.consensus.validate(lists),
        }
        if kind == "ranks":
            newest = torch.stack([lists[name][:, : trainer.consensus.queue[-1].shape[2]] for name in trainer.names])
            assert torch.equal(trainer.consensus.queue[-1], newest)

    parts = ABLATIONS["PCL"] if kind == "softmax" else None
    run = train(tiny(), chosen, watch_rankings=look, parts=parts)
    assert list(shown) == [0, 2, 4, 5]
    for record in run.history:
        assert ("agreement" in record) == (record["epoch"] in shown)
        if "agreement" in record:
            assert record["validation"] == shown[record["epoch"]]["by"]
    for name in run.rows():
        best = run.best[name]
        assert best.lists is None or torch.equal(best.lists, shown[best.epoch]["lists"][name])


@pytest.mark.parametrize(("warm_up", "first"), [(None, 3), (1, 1), (5, 5)])
def test_consensus_losses_begin_after_the_warm_up_and_rankings_are_kept_as_before(
    warm_up: int | None, first: int
) -> None:
    sizes: list[int] = []
    chosen = small(consensus={"window": 3, "warm_up": warm_up}, training={"epochs": 7})
    run = train(tiny(), chosen, watch_rankings=lambda epoch, trainer, lists: sizes.append(len(trainer.consensus.queue)))
    begun = [record["epoch"] for record in run.history if any(record["consensus_loss"].values())]
    assert begun == list(range(first, 7))
    assert sizes == [1, 2, 3, 3, 3, 3, 3]


# How a run goes on


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return Split.load(small_data(tmp_path_factory.mktemp("data") / "small"))


VARIANTS: dict[str, tuple[str, ...]] = {
    "several times": ("objectives=bpr#1,bpr#2,cml", "consensus.warm_up=1", "training.watch=all"),
    "a teacher": (),
    "a teacher of one": ("objectives=multinomial",),
}


def stopped(data: Split, chosen: ConCFSettings, folder: Path, after: int, **options: Any) -> None:
    """A run that was stopped after that epoch; after the first there is no checkpoint yet."""

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, chosen, out=folder, checkpoint_seconds=0 if after else 1e9, watch=stop, **options)


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_goes_on_bit_for_bit(data: Split, tmp_path: Path, variant: str, after: int) -> None:
    chosen = choose_settings("reference", words=[*SMALL, *VARIANTS[variant]])
    options = {"teacher": any_lists(data, 8)} if variant.startswith("a teacher") else {}
    train(data, chosen, out=tmp_path / "whole", **options)
    stopped(data, chosen, tmp_path / "stopped", after, **options)
    train(data, out=tmp_path / "stopped", resume=True, **options)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("after", [0, 5])
def test_a_run_with_a_teacher_does_not_go_on_without_it(data: Split, tmp_path: Path, after: int) -> None:
    """It would unlearn silently: the lists are no setting that the folder could bring back."""
    chosen, lists = choose_settings("reference", words=SMALL), any_lists(data, 8)
    stopped(data, chosen, tmp_path / "run", after, teacher=lists)
    for other in (None, any_lists(data, 8, seed=1)):
        with pytest.raises(ConfigError, match="teacher"):
            train(data, out=tmp_path / "run", resume=True, teacher=other)
    stopped(data, chosen, tmp_path / "without", after)
    with pytest.raises(ConfigError, match="teacher"):
        train(data, out=tmp_path / "without", resume=True, teacher=lists)
