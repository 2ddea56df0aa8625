"""Training: the fast path equals the literal one, and learns what it should."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from literal import LiteralConCF
from pydantic import ValidationError

from concf.baselines.popularity import Popularity
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.learning.batches import Sampler
from concf.learning.settings import (
    BalanceSettings,
    ConCFSettings,
    ConsensusSettings,
    ModelSettings,
    TrainingSettings,
)  # fmt: skip
from concf.learning.train import Trainer, train
from concf.model.objectives import OBJECTIVES

CONSENSUS = ConsensusSettings(every=1, window=2, places=6, kept=8, length=3, tail=2, weight=0.05)


def tiny() -> Split:
    return prepare(Simulation(users=8, items=12, events=70, tastes=3).draw(1), protocol="random")


def settings(encoder: str = "mlp", sharing: str = "embedding", **parts: object) -> ConCFSettings:
    model = ModelSettings(dimensions=8, encoder=encoder, sharing=sharing, dropout=0.0, layers=2, spread=0.3)
    balance = BalanceSettings(on=sharing != "none", settle=1)
    training = TrainingSettings(epochs=3, batch=16, weight_decay=1e-3)
    return ConCFSettings(**{"model": model, "consensus": CONSENSUS, "balance": balance, "training": training} | parts)


@pytest.fixture(autouse=True)
def on_one_thread():
    """Small operations on a loaded machine: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("sharing", ["full", "layer", "embedding", "none"])
@pytest.mark.parametrize("encoder", ["mlp", "mf", "lightgcn"])
def test_three_epochs_equal_the_literal_algorithm(in_double, encoder: str, sharing: str) -> None:
    data, chosen = tiny(), settings(encoder, sharing)
    trainer = Trainer(data, chosen, seed=5)
    literal = LiteralConCF(copy.deepcopy(trainer.model), chosen, data.train)
    generator = torch.Generator().manual_seed(5)
    for epoch in range(3):
        record = trainer.epoch(epoch)
        for batch in Sampler(data.train).epoch(generator).split(16):
            literal.step(batch.user.tolist(), batch.positive.tolist(), batch.negative.tolist(), epoch)
        trainer.agree()
        agreed = literal.agree()
        for head, history in enumerate(trainer.histories):
            newest = [[item for item in row if item >= 0] for row in history[-1].lists.tolist()]
            assert newest == [items[:8] for items in literal.queue[-1][head]]
        if epoch >= 1:
            assert trainer.lesson is not None
            assert trainer.lesson.tolist() == literal.lesson
            assert all(row == items[: len(row)] for row, items in zip(literal.lesson, agreed, strict=True))
    assert sum(record["lesson"].values()) > 0
    assert trainer.weights.tolist() == pytest.approx(literal.weights.tolist(), abs=1e-9)
    for name, parameter in literal.model.named_parameters():
        found = dict(trainer.model.named_parameters())[name]
        assert torch.allclose(found, parameter, rtol=0, atol=1e-9), name


def test_without_lesson_and_balance_a_head_that_shares_nothing_trains_as_its_single_model(in_double) -> None:
    data = tiny()
    apart = ConsensusSettings(every=1, window=2, places=6, kept=8, weight=0)
    together = Trainer(data, settings("mlp", "none", consensus=apart), seed=1)
    before = copy.deepcopy(together.model)
    for epoch in range(2):
        together.epoch(epoch)
    for place, name in enumerate(OBJECTIVES):
        single = settings("mlp", "embedding", consensus=apart, objectives=(name,))
        alone = Trainer(data, single, seed=1)
        with torch.no_grad():
            for own, shared in zip(alone.model.parameters(), _branch(before, place), strict=True):
                own.copy_(shared)
        for epoch in range(2):
            alone.epoch(epoch)
        for own, shared in zip(alone.model.parameters(), _branch(together.model, place), strict=True):
            assert torch.allclose(own, shared, atol=1e-12), name


def _branch(model, place: int) -> list[torch.Tensor]:
    """The parameters of one branch of a model that shares nothing, in the order of a single model's."""
    shared = [model.user, model.item, *model.encoder.parameters()]
    return [tensor[place : place + 1] for tensor in shared] + list(model.heads[place].parameters())


def test_the_same_seed_gives_the_same_run_bit_for_bit() -> None:
    data, chosen = tiny(), settings(model=ModelSettings(dimensions=8, dropout=0.2))
    runs = [train(data, chosen, seed=3), train(data, chosen, seed=3)]
    strip = [[{k: v for k, v in record.items() if k != "seconds"} for record in run.history] for run in runs]
    assert strip[0] == strip[1]


def test_negatives_are_unobserved_and_every_pair_comes_once() -> None:
    data = tiny()
    sampler, generator = Sampler(data.train), torch.Generator().manual_seed(0)
    dense = data.train.toarray()
    drawn = np.zeros_like(dense)
    for _ in range(300):
        epoch = sampler.epoch(generator)
        pairs = list(zip(epoch.user.tolist(), epoch.positive.tolist(), strict=True))
        assert sorted(pairs) == sorted(zip(*(side.tolist() for side in dense.nonzero()), strict=True))
        np.add.at(drawn, (epoch.user.numpy(), epoch.negative.numpy()), 1)
    assert not drawn[dense > 0].any()
    for u in range(len(dense)):
        counts = drawn[u][dense[u] == 0]
        assert counts.min() > 0.6 * counts.mean()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="no shared embedding to balance on"):
        ConCFSettings(model=ModelSettings(sharing="none"))
    with pytest.raises(ValidationError, match="hinge"):
        ConCFSettings(objectives=("bpr", "hinge"))
    with pytest.raises(ValidationError, match="alpha"):
        ConsensusSettings(alpha=3)


def test_the_consensus_learns_tastes_on_simulated_data() -> None:
    data = prepare(Simulation(users=250, items=250, events=9000).draw(0), protocol="random")
    chosen = ConCFSettings(
        consensus=ConsensusSettings(every=5, window=3, kept=250),
        training=TrainingSettings(epochs=21, batch=512, metric="recall@20"),
        model=ModelSettings(dimensions=32),
    )
    run = train(data, chosen)
    found = {name: evaluate(best.recommender, data, at=[20]).means()["recall@20"] for name, best in run.best.items()}
    popular = evaluate(Popularity().fit(data.train), data, at=[20]).means()["recall@20"]
    assert found["consensus"] > 1.1 * popular
    assert found["consensus"] > np.median([found[name] for name in OBJECTIVES])
