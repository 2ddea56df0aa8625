"""Training: the fast path equals the literal one for every preset and setting, and learns what it should."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from literal import LiteralConCF, listed
from scipy.sparse import csr_array

from concf.baselines.factorisation import Popularity
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train
from concf.reference import balance
from concf.reference.batches import DRAWS, Sampler, distinct
from concf.reference.objectives import FIVE, FORMULATIONS, Formulation
from concf.reference.trainer import Trainer
from concf.runs.run import Run
from concf.runs.settings import RunSettings
from concf.runtime.arguments import derive_seed

TAUGHT_EPOCHS = {"paper": [2], "released": [3, 4], "reference": [2]}  # the epochs in which a scaled preset teaches
SEED = 5


def log() -> pl.DataFrame:
    return Simulation(users=8, items=12, events=70, tastes=3).draw(1)


def tiny() -> Split:
    return prepare(log(), protocol="random")


def small(preset: str = "reference", encoder: str = "mlp", sharing: str = "embedding", **changes: Any) -> RunSettings:
    """A preset on the tiny data: p, Q, K, M and the lists scaled down; decay, so that no true gradient is zero."""
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "encoder": encoder, "sharing": sharing, "dropout": 0.0},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "length": 3},
        "balance": {"on": sharing != "none"},
        "training": {"epochs": 3, "batch": 16, "weight_decay": 1e-3, "metric": "recall@3"},
    }
    if preset != "paper":
        chosen["model"]["initial_std"], chosen["balance"]["settle"] = 0.3, 2
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings(preset, chosen)


def follow(chosen: RunSettings) -> list[int]:
    """Train the fast and the literal way, and compare all there is after every epoch; gives the epochs that taught."""
    data = tiny()
    trainer = Trainer(data, chosen, SEED)
    literal = LiteralConCF(Trainer(data, chosen, SEED).model, chosen, data.train)
    consensus_targets, kept = [], chosen.consensus.kept or 12
    for epoch in range(chosen.training.epochs):
        record = trainer.epoch(epoch)
        consensus_targets += [epoch] if any(record["consensus_loss"].values()) else []
        batches = Sampler(data.train).epoch(SEED, epoch).split(chosen.training.batch)
        triples = [(each.user.tolist(), each.positive.tolist(), each.negative.tolist()) for each in batches]
        for name, values in literal.epoch(epoch, triples).items():
            assert list(record[name].values()) == pytest.approx(values, rel=1e-9, abs=1e-9), (epoch, name)
        if epoch % chosen.consensus.every == 0:
            found, expected = trainer.consensus.update(), literal.agree(epoch)
            for head, name in enumerate(trainer.names):
                ranked = [items[:kept] for items in literal.rankings[epoch][head]]
                assert listed(trainer.consensus.queue[-1][head]) == ranked == listed(found[name][:, :kept])
            assert all(listed(found[name]) == expected[name] for name in expected)
            assert listed(trainer.consensus.target) == literal.consensus_target
    for name, parameter in literal.model.named_parameters():
        assert torch.allclose(dict(trainer.model.named_parameters())[name], parameter, rtol=0, atol=1e-9), name
    return consensus_targets


PAIRS = [  # every preset, encoder and sharing
    ("paper", "mf", "embedding"), ("released", "lightgcn", "layer"), ("reference", "mlp", "full"),
    ("released", "mf", "none"),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "encoder", "sharing"), PAIRS)
def test_a_preset_trains_as_the_literal_algorithm(in_double, preset: str, encoder: str, sharing: str) -> None:
    epochs = TAUGHT_EPOCHS[preset][-1] + 1
    assert follow(small(preset, encoder, sharing, training={"epochs": epochs})) == TAUGHT_EPOCHS[preset]


def formulated(**points: Any) -> str:
    """A formulation of its own, and its name."""
    name = str(points)
    FORMULATIONS[name] = Formulation(**points)
    return name


CASES: dict[str, dict[str, Any]] = {  # settings that meet in no part of the algorithm, several at a time
    "weights move by descent, and the consensus target carries them": {
        "formulation": formulated(optimiser="descent", weight_range=None),
        "consensus": {"weight": 0.3},
    },
    "descent by ratios of the whole loss, low clips, sharp temperatures": {
        "formulation": formulated(optimiser="descent", ratio_of="whole", clip=0.2),
        "consensus": {"temperature": 1.0, "consistency_temperature": 0.3},
    },
    "steep ratios, few vote, narrow weights": {
        "balance": {"settle": 0},
        "formulation": formulated(weight_range=(0.99, 1.002)),
        "consensus": {"weight": 0.3, "non_voting": ("bpr", "multinomial", "multinomial-users")},
    },
    "one norm, everything is ranked and taught, plain distances and other scales": {
        "formulation": formulated(norm="joint", distance="plain", error_scale=3.0),
        "consensus": {"top_k": None},
        "losses": {"margin": 0.5},
    },
    "the first item of each head votes, five are kept": {"consensus": {"top_k": 1, "consistency_temperature": 1.0}},
    "all rankings are the window": {
        "consensus": {"window": None, "consistency_temperature": 1.0},
        "training": {"epochs": 6},
    },
    "no balance, a frozen window": {
        "balance": {"on": False},
        "formulation": formulated(window_moves=False, norm="joint"),
        "consensus": {"consistency_temperature": 1.0},
        "training": {"epochs": 5},
    },
    "a late vote every other epoch, all of the list is taught": {
        "formulation": formulated(newest_votes=False),
        "consensus": {"consistency_temperature": 1.0, "every": 2, "length": 20},
        "training": {"epochs": 4},
    },
    "a longer window, the floor holds": {
        "consensus": {"window": 3, "consistency_temperature": None},
        "training": {"epochs": 4},
    },
    "no consensus loss": {"consensus": {"weight": 0.0}, "training": {"batch": 5}},
}  # fmt: skip
CONSTANTS = {  # of a case: constants that make the weights of the heads move far
    "a longer window, the floor holds": [(balance.FLOOR, "adam", 0.9), (balance.LEARNING_RATE, "adam", 0.3)],
    "steep ratios, few vote, narrow weights": [(balance.EXPONENT, "own", 8.0), (balance.LEARNING_RATE, "adam", 0.1)],
}


@pytest.mark.parametrize("case", CASES)
def test_settings_train_as_the_literal_algorithm(in_double, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    for constants, name, value in CONSTANTS.get(case, []):
        monkeypatch.setitem(constants, name, value)
    chosen = small(**CASES[case])
    assert bool(follow(chosen)) == (chosen.consensus.weight > 0)


def test_without_consensus_loss_and_balance_a_head_that_shares_nothing_trains_as_its_single_model(in_double) -> None:
    data, apart = tiny(), small(sharing="none", consensus={"weight": 0.0})
    together = Trainer(data, apart, seed=1)
    begins = {name: together.model.keep(name).state_dict() for name in FIVE}
    for epoch in range(2):
        together.epoch(epoch)
    for name in ("bpr", "multinomial-users"):
        alone = Trainer(data, apart.single(name), seed=1)
        alone.model.load_state_dict(begins[name])
        for epoch in range(2):
            alone.epoch(epoch)
        for part, tensor in together.model.keep(name).state_dict().items():
            assert torch.allclose(alone.model.state_dict()[part], tensor, rtol=0, atol=1e-12), (name, part)


def told(run: Run) -> list[dict[str, Any]]:
    """The history without its times."""
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in run.history]


def test_the_same_seed_gives_the_same_run_bit_for_bit() -> None:
    chosen = small(model={"dropout": 0.2}, training={"epochs": 4})
    runs = [train(data, chosen, seed=3) for data in (tiny(), tiny(), prepare(log().reverse(), protocol="random"))]
    torch.set_num_threads(2)
    runs.append(train(tiny(), chosen, seed=3))
    for run in runs[1:]:
        assert told(run) == told(runs[0])
        for name, tensor in run.model.state_dict().items():
            assert torch.equal(tensor, runs[0].model.state_dict()[name]), name
    assert told(train(tiny(), chosen, seed=4)) != told(runs[0])


def test_heads_are_validated_between_rankings_as_at_them() -> None:
    """The metrics are those of a run that ranks every epoch; only those of the consensuses are missing."""
    often = {"epochs": 9, "patience": None}
    whole = train(tiny(), small(consensus={"every": 1, "weight": 0}, training=often))
    run = train(tiny(), small(consensus={"every": 4, "weight": 0}, training=often))
    for record, other in zip(run.history, whole.history, strict=True):
        metrics = record["validation"]
        assert {name: metrics[name] for name in FIVE} == {name: other["validation"][name] for name in FIVE}
        assert ("consensus" in metrics) == ("ranked" in record) == (record["epoch"] % 4 == 0)
    for name in FIVE:
        recalls = [record["validation"][name] for record in run.history]
        best = max(recalls)
        assert run.best[name].epoch == max(epoch for epoch, recall in enumerate(recalls) if recall == best)
        found = evaluate(run.recommender(name), tiny(), on="valid", at=3, metrics="recall").means()["recall@3"]
        assert found == pytest.approx(best)


def literal_epoch(part: csr_array, seed: int, epoch: int) -> list[list[int]]:
    """Users, items and negatives in one go of 64 bits each: the draws that results were published with."""
    random = np.random.Generator(np.random.Philox(derive_seed(seed, epoch, 0)))
    user, item = (side.astype(np.int64) for side in part.toarray().nonzero())
    negative = random.integers(part.shape[1], size=len(user))
    again = np.arange(len(user))
    for _ in range(DRAWS):
        again = again[part.toarray()[user[again], negative[again]] > 0]
        if not len(again):
            break
        negative[again] = random.integers(part.shape[1], size=len(again))
    order = random.permutation(len(user))
    return [column[order].tolist() for column in (user, item, negative)]


def test_short_numbers_change_no_draw() -> None:
    dense = np.random.default_rng(0).random((9, 12)) < 0.6
    dense[4] = True  # whoever has used everything ends the draws by their number
    for part in (tiny().train, csr_array(dense.astype(np.float32))):
        mixed = part.copy()
        mixed.indices, mixed.has_sorted_indices = mixed.indices.copy(), False
        for begin, end in pairwise(mixed.indptr):
            mixed.indices[begin:end] = mixed.indices[begin:end][::-1]
        for each in (part, mixed):
            drawn = Sampler(each).epoch(SEED, 3)
            found = [column.tolist() for column in (drawn.user, drawn.positive, drawn.negative)]
            assert found == literal_epoch(part, SEED, 3)
            assert drawn.user.dtype == torch.int32
            assert {batch.negative.dtype for batch in drawn.split(10)} == {torch.int64}


def test_the_consensus_learns_tastes_on_simulated_data() -> None:
    data = prepare(Simulation(users=250, items=250, events=9000).draw(0), protocol="random")
    training = {"epochs": 16, "batch": 512, "metric": "recall@20"}
    changes = {"model": {"dimensions": 32}, "consensus": {"every": 5, "window": 3}, "training": training}
    run = train(data, changes, preset="reference")
    found = {name: evaluate(run.recommender(name), data, at=20).means()["recall@20"] for name in run.best}
    popular = evaluate(Popularity().fit(data.train), data, at=20).means()["recall@20"]
    assert found["consensus"] > 1.1 * popular
    assert found["consensus"] > np.median([found[name] for name in FIVE])


def test_a_loss_of_nothing_is_no_measure_of_progress() -> None:
    """A hinge may be 0 on a short batch; L^0 keeps what it was, or the ratio would be infinite."""
    trainer = Trainer(tiny(), small(), SEED)
    heads = len(trainer.names)
    initial = trainer.balance.initial.fill_(7.0)
    own = torch.arange(heads, dtype=trainer.weights.dtype)  # the first head has no loss
    trainer.balance.step(own, torch.zeros(heads), torch.ones(heads), torch.ones(heads))
    assert initial.tolist() == [7.0, *range(1, heads)]
    assert trainer.weights.isfinite().all()


def test_of_equal_places_the_last_row_stands_for_all() -> None:
    places = torch.randint(50, (100_000,), generator=torch.Generator().manual_seed(0))
    last = {place: row for row, place in enumerate(places.tolist())}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows, weight = distinct(places, 60, torch.float32)
        assert rows.tolist() == [last[place] for place in sorted(last)]
        assert weight.tolist() == [1.0] * len(last)
