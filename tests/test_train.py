"""Training: the fast path equals the literal one for every preset and setting, and learns what it should."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from literal import LiteralConCF
from scipy.sparse import csr_array

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.evaluate import evaluate
from concf.model.baselines.factorisation import Popularity
from concf.model.objectives import FIVE
from concf.runtime.seeds import derive_seed
from concf.training.batches import DRAWS, Sampler, distinct
from concf.training.config.presets import choose_settings
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run
from concf.training.train import train
from concf.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("on_one_thread")

TAUGHT_EPOCHS = {"paper": [2], "released": [3, 4], "reference": [2]}  # the epochs in which a scaled preset teaches
SEED = 5


def log() -> pl.DataFrame:
    return Simulation(users=8, items=12, events=70, tastes=3).draw(1)


def tiny() -> Split:
    return prepare(log(), protocol="random")


def small(preset: str = "reference", encoder: str = "mlp", sharing: str = "embedding", **changes: Any) -> ConCFSettings:
    """A preset on the tiny data: p, Q, K, M and the lists scaled down; decay, so that no true gradient is zero."""
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "encoder": encoder, "sharing": sharing, "dropout": 0.0, "layers": 2},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "kept": 8, "length": 3, "tail": 6},
        "balance": {"on": sharing != "none"},
        "training": {"epochs": 3, "batch": 16, "weight_decay": 1e-3, "metric": "recall@3"},
    }
    if preset != "paper":
        chosen["model"]["initial_std"], chosen["balance"]["settle"] = 0.3, 2
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return choose_settings(preset, chosen)


@pytest.fixture
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def listed(lists: torch.Tensor) -> list[list[int]]:
    """Without the empty places, which come last."""
    rows = lists.tolist()
    assert all(sorted(row, key=lambda item: item < 0) == row for row in rows)
    return [[item for item in row if item >= 0] for row in rows]


def drawn(trainer: Trainer, epoch: int, batch: int) -> list[list[int]] | None:
    """What stands for all items and all users in that batch, if they do not themselves."""
    return None if trainer.sampled is None else trainer.sampled.draw(SEED, epoch, batch).tolist()


def follow(chosen: ConCFSettings) -> list[int]:
    """Train the fast and the literal way, and compare all there is after every epoch; gives the epochs that taught."""
    data = tiny()
    trainer = Trainer(data, chosen, SEED)
    literal = LiteralConCF(Trainer(data, chosen, SEED).model, chosen, data.train)
    consensus_targets, kept = [], chosen.consensus.kept or 12
    for epoch in range(chosen.training.epochs):
        record = trainer.epoch(epoch)
        consensus_targets += [epoch] if any(record["consensus_loss"].values()) else []
        by_user = chosen.training.order == "users"
        batches = Sampler(data.train).epoch(SEED, epoch, by_user).split(chosen.training.batch)
        triples = [
            (each.user.tolist(), each.positive.tolist(), each.negative.tolist(), drawn(trainer, epoch, number))
            for number, each in enumerate(batches)
        ]
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


PAIRS = [  # any two of preset, encoder and sharing meet
    (list(TAUGHT_EPOCHS)[(row + column) % len(TAUGHT_EPOCHS)], encoder, sharing)
    for row, encoder in enumerate(["mlp", "mf", "lightgcn"])
    for column, sharing in enumerate(["full", "layer", "embedding", "none"])
]


@pytest.mark.parametrize(("preset", "encoder", "sharing"), PAIRS)
def test_a_preset_trains_as_the_literal_algorithm(in_double, preset: str, encoder: str, sharing: str) -> None:
    epochs = TAUGHT_EPOCHS[preset][-1] + 1
    assert follow(small(preset, encoder, sharing, training={"epochs": epochs})) == TAUGHT_EPOCHS[preset]


BALANCES: dict[str, dict[str, Any]] = {
    "the weights move once an epoch": {"balance": {"update": "epoch"}},
    "the weights move once an epoch, by descent": {"balance": {"update": "epoch", "optimiser": "descent"}},
    "plain descent": {"balance": {"optimiser": "descent", "learning_rate": 1e-4}},
    "the floor holds": {"balance": {"floor": 0.9, "learning_rate": 0.3}},
    "another sum of weights": {"balance": {"total": 2.5}},
    "ratios of the whole loss": {"balance": {"ratio_of": "whole", "exponent": 1.0}},
    "steep ratios of the weighted loss": {"balance": {"exponent": 8.0, "learning_rate": 0.1, "settle": 0}},
    "the first batch is the measure": {"balance": {"settle": 0}},
    "items count for less": {"balance": {"item_share": 0.1}},
    "one norm": {"balance": {"norm": "joint"}},
    "no balance": {"balance": {"on": False}},
}
CONSENSUSES: dict[str, dict[str, Any]] = {
    "the consensus target carries the weight": {"consensus": {"weight_range": None, "weight": 0.3}},
    "a narrow range of weights": {"consensus": {"weight_range": (0.99, 1.002), "weight": 0.3}},
    "low clips": {"consensus": {"clip": 0.2, "clipped": ("bpr", "cml", "multinomial")}},
    "everyone is taught": {"consensus": {"undistilled": ()}},
    "two are taught": {"consensus": {"undistilled": ("bpr", "cml", "multinomial", "multinomial-users")}},
    "three are non-voting": {"consensus": {"non_voting": ("bpr", "multinomial", "multinomial-users")}},
    "sharp temperatures": {"consensus": {"temperature": 1.0, "consistency_temperature": 0.3}},
    "no consistency": {"consensus": {"consistency_temperature": None}},
    "everything is ranked and taught": {"consensus": {"top_k": None, "kept": None, "tail": None}},
    "all of the list is taught": {"consensus": {"length": 20, "tail": 0}},
    "a longer window": {"consensus": {"window": 3}, "training": {"epochs": 4}},
    "a frozen window": {
        "consensus": {"window_moves": False, "consistency_temperature": 1.0},
        "training": {"epochs": 5},
    },
    "a late vote": {"consensus": {"newest_votes": False, "consistency_temperature": 1.0}},
    "every other epoch": {"consensus": {"every": 2}, "training": {"epochs": 4}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "no consensus loss, batches of five": {"consensus": {"weight": 0.0}, "training": {"batch": 5}},
    "plain distances": {"losses": {"distance": "plain", "distance_scale": 3.0, "margin": 0.5}},
    "other scales": {"losses": {"distance_scale": 2.0, "error_scale": 3.0, "margin": 0.2}},
    "all unobserved pairs": {
        "objectives": ("bpr", "squared-error-everywhere", "multinomial"),
        "losses": {"unobserved": 0.3, "error_scale": 0.5},
    },
    "two heads": {"objectives": ("multinomial-users", "cml")},
    "weighted squares": {
        "objectives": ("weighted-squares@0.3", "bpr", "weighted-squares@0.05#2"),
        "losses": {"unobserved": 0.2, "squares_scale": 3.0},
    },
    "cosines": {"objectives": ("cosine-softmax@0.2", "cosine-softmax@1.5", "squared-error")},
    "batches by user": {"objectives": ("cosine-softmax@0.4", "multinomial", "cml"), "training": {"order": "users"}},
    "a sampled softmax": {"losses": {"softmax_samples": 4, "softmax_power": 0.7}},
    "a softmax of one draw": {"losses": {"softmax_samples": 1, "softmax_power": 0.0}, "training": {"batch": 3}},
    "sampled items, all users": {"losses": {"softmax_samples": 9}, "training": {"batch": 5}},
    "sampled cosines, by user": {
        "objectives": ("cosine-softmax@0.4", "multinomial", "multinomial-users"),
        "losses": {"softmax_samples": 5, "softmax_power": 1.0},
        "training": {"order": "users", "batch": 6},
    },
}


# A setting of the balance and one of the consensus at a time, which meet in no part of the settings; then the others.
TOGETHER = {
    " and ".join(names): BALANCES.get(names[0], {}) | CONSENSUSES.get(names[-1], {})
    for names in zip_longest(BALANCES, CONSENSUSES, fillvalue="nothing")
} | OTHERS


@pytest.mark.parametrize("case", TOGETHER)
def test_settings_train_as_the_literal_algorithm(in_double, case: str) -> None:
    chosen = small(**TOGETHER[case])
    assert bool(follow(chosen)) == (chosen.consensus.weight > 0)


def test_without_decay_factors_train_as_the_literal_algorithm(in_double) -> None:
    assert follow(small("paper", "mf", training={"weight_decay": 0.0})) == [2]


def test_without_consensus_loss_and_balance_a_head_that_shares_nothing_trains_as_its_single_model(in_double) -> None:
    data, apart = tiny(), small(sharing="none", consensus={"weight": 0.0})
    together = Trainer(data, apart, seed=1)
    begins = {name: together.model.keep(name).state_dict() for name in FIVE}
    for epoch in range(2):
        together.epoch(epoch)
    for name in FIVE:
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


def test_heads_agree_every_p_epochs_and_at_the_end() -> None:
    run = train(tiny(), small(consensus={"every": 3}, training={"epochs": 9, "patience": None}))
    assert [record["epoch"] for record in run.history if "consensus" in record.get("validation", {})] == [0, 3, 6, 8]


@pytest.mark.parametrize("validate_every", [1, 2, 5])
def test_heads_are_validated_between_rankings_as_at_them(validate_every: int) -> None:
    """The figures are those of a run that ranks every epoch; only what is made of rankings is missing."""
    often = {"epochs": 9, "patience": None, "validate_every": validate_every}
    whole = train(tiny(), small(consensus={"every": 1, "weight": 0}, training=often))
    run = train(tiny(), small(consensus={"every": 4, "weight": 0}, training=often))
    ranked, validated = {0, 4, 8}, {epoch for epoch in range(9) if epoch % validate_every == 0}
    for record, other in zip(run.history, whole.history, strict=True):
        epoch, figures = record["epoch"], record.get("validation", {})
        heads = {name: other["validation"][name] for name in FIVE} if epoch in ranked | validated else {}
        assert {name: figures[name] for name in figures if name in FIVE} == heads
        assert ("consensus" in figures) == ("agreement" in record) == (epoch in ranked)
    for name in FIVE:
        seen = {record["epoch"]: record["validation"][name] for record in run.history if "validation" in record}
        best = max(seen.values())
        assert run.best[name].epoch == max(epoch for epoch, figure in seen.items() if figure == best)
        found = evaluate(run.recommender(name), tiny(), on="valid", at=3, metrics="recall").means()["recall@3"]
        assert found == pytest.approx(best)


@pytest.mark.parametrize("watch", ["consensus", "R-consensus", "squared-error"])
def test_patience_ends_the_run_by_whom_it_watches(watch: str) -> None:
    run = train(tiny(), small("paper", training={"epochs": 60, "patience": 4, "watch": watch}), seed=2)
    figures = {record["epoch"]: record["validation"][watch] for record in run.history}
    warm_up, rose, ends = 2 * 1 - 1, 0, []
    for epoch, figure in figures.items():
        rose = epoch if figure > figures[rose] else rose
        ends += [epoch] if epoch - max(rose, warm_up) >= 4 else []
    assert ends == [run.history[-1]["epoch"]]
    assert run.best[watch].rose == rose
    assert run.best[watch].epoch == max(epoch for epoch, figure in figures.items() if figure == figures[rose])
    assert run.best[watch].validation == figures[rose] == max(figures.values())


@pytest.mark.parametrize("encoder", ["mlp", "mf", "lightgcn"])
def test_a_run_keeps_every_head_and_consensus_at_its_best(encoder: str) -> None:
    data = tiny()
    run = train(data, small(encoder=encoder))
    assert run.rows() == [*FIVE, "R-consensus", "consensus"]
    for name in run.rows():
        figures = [record["validation"][name] for record in run.history]
        assert run.best[name].epoch == max(e for e, figure in enumerate(figures) if figure == max(figures))
        found = evaluate(run.recommender(name), data, on="valid", at=3, metrics="recall").means()["recall@3"]
        assert found == pytest.approx(max(figures))
    assert max(run.best[name].validation for name in FIVE) == run.best[run.best_head()].validation


def test_negatives_are_unobserved_and_every_pair_comes_once() -> None:
    data = tiny()
    sampler, dense = Sampler(data.train), data.train.toarray()
    drawn = np.zeros_like(dense)
    for number in range(300):
        epoch = sampler.epoch(0, number)
        pairs = list(zip(epoch.user.tolist(), epoch.positive.tolist(), strict=True))
        assert sorted(pairs) == sorted(zip(*(side.tolist() for side in dense.nonzero()), strict=True))
        np.add.at(drawn, (epoch.user.numpy(), epoch.negative.numpy()), 1)
    assert not drawn[dense > 0].any()
    for u in range(len(dense)):
        counts = drawn[u][dense[u] == 0]
        assert counts.min() > 0.6 * counts.mean()


def test_an_epoch_is_drawn_from_seed_and_epoch_alone() -> None:
    sampler = Sampler(tiny().train)
    again = Sampler(tiny().train).epoch(1, 7)
    for other, same in (((1, 7), True), ((1, 8), False), ((2, 7), False)):
        drawn = sampler.epoch(*other)
        assert torch.equal(torch.stack([drawn.user, drawn.positive]), torch.stack([again.user, again.positive])) == same


def literal_epoch(part: csr_array, seed: int, epoch: int, by_user: bool) -> list[list[int]]:
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
    if by_user:
        order = order[np.argsort(random.permutation(part.shape[0])[user[order]], kind="stable")]
    return [column[order].tolist() for column in (user, item, negative)]


@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("by_user", [False, True])
def test_pieces_and_short_numbers_change_no_draw(piece: int, by_user: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concf.training.batches.PIECE", piece)
    dense = np.random.default_rng(0).random((9, 12)) < 0.6
    dense[4] = True  # whoever has used everything ends the draws by their number
    for part in (tiny().train, csr_array(dense.astype(np.float32))):
        mixed = part.copy()
        mixed.indices, mixed.has_sorted_indices = mixed.indices.copy(), False
        for begin, end in pairwise(mixed.indptr):
            mixed.indices[begin:end] = mixed.indices[begin:end][::-1]
        for each in (part, mixed):
            drawn = Sampler(each).epoch(SEED, 3, by_user)
            found = [column.tolist() for column in (drawn.user, drawn.positive, drawn.negative)]
            assert found == literal_epoch(part, SEED, 3, by_user)
            assert drawn.user.dtype == torch.int32
            assert {batch.negative.dtype for batch in drawn.split(10)} == {torch.int64}


def test_a_loss_that_is_not_finite_ends_the_run_by_name() -> None:
    with pytest.raises(DataError, match=r"of head '.+' is (nan|inf) in epoch 0, batch 1.*training.learning_rate"):
        train(tiny(), small(training={"learning_rate": 1e30}))


def test_an_unknown_head_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(ConfigError, match=r"unknown objective 'hinge'.*bpr, cml"):
        train(tiny(), small(objectives=("bpr", "hinge")))


def test_the_consensus_learns_tastes_on_simulated_data() -> None:
    data = prepare(Simulation(users=250, items=250, events=9000).draw(0), protocol="random")
    changes = {
        "model": {"dimensions": 32},
        "consensus": {"every": 5, "window": 3},
        "training": {"epochs": 21, "batch": 512, "metric": "recall@20"},
    }
    run = train(data, changes, preset="reference")
    found = {name: evaluate(run.recommender(name), data, at=20).means()["recall@20"] for name in run.best}
    popular = evaluate(Popularity().fit(data.train), data, at=20).means()["recall@20"]
    assert found["consensus"] > 1.1 * popular
    assert found["consensus"] > np.median([found[name] for name in FIVE])


def test_a_loss_of_nothing_is_no_measure_of_progress() -> None:
    """A hinge may be 0 on a short batch; L^0 keeps what it was, or the ratio would be infinite."""
    trainer = Trainer(tiny(), small(), SEED)
    heads = len(trainer.names)
    trainer.initial.fill_(7.0)
    own = torch.arange(heads, dtype=trainer.weights.dtype)  # the first head has no loss
    trainer._balance(own, torch.zeros(heads), torch.ones(heads), torch.ones(heads))
    assert trainer.initial.tolist() == [7.0, *range(1, heads)]
    assert trainer.weights.isfinite().all()


@pytest.mark.parametrize("n_rows", [7, 100_000])  # PyTorch divides large operations among threads
def test_of_equal_places_the_last_row_stands_for_all(n_rows: int) -> None:
    places = torch.randint(50, (n_rows,), generator=torch.Generator().manual_seed(0))
    last = {place: row for row, place in enumerate(places.tolist())}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows, weight = distinct(places, 60, torch.float32)
        assert rows.tolist() == [last[place] for place in sorted(last)]
        assert weight.tolist() == [1.0] * len(last)
