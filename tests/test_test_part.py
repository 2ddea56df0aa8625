"""The test part is never looked at: with the same training and validation parts and another test part all is alike."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from concf.baselines.neighbours import ItemKNN, RP3beta
from concf.comparison.measure import Fit
from concf.data.parts import TEST
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.inference.recommender import Recommender
from concf.models import choose_settings, train
from concf.runs.run import Run
from concf.strong.combine import combine

STRONG: dict[str, Any] = {"dimensions": 8, "consensus": {"top_k": 12, "shown": 10}}
SMALL: dict[str, Any] = {
    "model": {"dimensions": 8},
    "consensus": {"every": 2, "window": 2, "top_k": 12, "length": 4, "shown": 10},
    "training": {"epochs": 7, "learning_rate": 0.02, "batch": 256, "patience": 3},
}
VARIANTS = {"reference": SMALL, "strong": STRONG}


@cache
def data() -> Split:
    return prepare(Simulation(users=40, items=60, events=1200, tastes=4).draw(1), protocol="random")


def with_test(split: Split, user: NDArray[Any], item: NDArray[Any]) -> Split:
    """The same training and validation parts, and these pairs to test on."""
    old, kept = split.interactions, split.parts != TEST
    users, items = np.r_[old.user[kept], user], np.r_[old.item[kept], item]
    parts = np.r_[split.parts[kept], np.full(len(user), TEST)].astype(np.uint8)
    order = np.lexsort((items, users))
    pairs = dataclasses.replace(
        old, user=users[order].astype(np.int32), item=items[order].astype(np.int32), count=np.ones(len(users)),
        timestamp=None,
    )  # fmt: skip
    return dataclasses.replace(split, interactions=pairs, parts=parts[order])


def drawn(split: Split, least: int, most: int, users: int) -> Split:
    """The first `users` are tested on so many items of all that they have not trained on or held out."""
    rng, used = np.random.default_rng(5), (split.train + split.valid).toarray() > 0
    rows = [rng.permutation(np.flatnonzero(~used[u]))[: rng.integers(least, most + 1)] for u in range(users)]
    return with_test(split, np.repeat(np.arange(users), [len(row) for row in rows]), np.concatenate(rows))


@cache
def others() -> dict[str, Split]:
    """Other test parts: a longer one of some users, and none."""
    nobody = np.zeros(0, np.int64)
    return {"long": drawn(data(), 25, 35, 17), "none": with_test(data(), nobody, nobody)}


def assert_same(run: Run, other: Run) -> None:
    """Parameters, history, best epochs, lists and votes, to the bit."""
    for name in run.heads:
        for part, tensor in run.best[name].state.items():
            assert tensor.numpy().tobytes() == other.best[name].state[part].numpy().tobytes(), name
    histories = [
        [{name: value for name, value in record.items() if "seconds" not in name} for record in each.history]
        for each in (run, other)
    ]
    assert histories[0] == histories[1]
    assert run.rows() == other.rows()
    assert (run.metric, run.best_head()) == (other.metric, other.best_head())
    for name, best in run.best.items():
        twin = other.best[name]
        assert (best.epoch, best.rose, best.validation) == (twin.epoch, twin.rose, twin.validation), name
        for mine, theirs in ((best.state, twin.state), (best.votes, twin.votes)):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[part], theirs[part]) for part in mine), name
        assert (best.lists is None) == (twin.lists is None)
        assert best.lists is None or twin.lists is None or torch.equal(best.lists, twin.lists)


@cache
def trained(variant: str) -> Run:
    return train(data(), choose_settings(variant, VARIANTS[variant]), seed=3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_does_not_depend_on_the_test_part(variant: str) -> None:
    run, other = trained(variant), others()["long"]
    assert (other.train != data().train).nnz == (other.valid != data().valid).nnz == 0
    assert other.hash != data().hash
    fresh = dataclasses.replace(other)
    assert_same(run, train(fresh, run.settings, seed=3))
    assert not {"test", "evaluated"} & vars(fresh).keys()  # properties that would be kept had they been asked for


def test_combining_does_not_depend_on_the_test_part() -> None:
    """Voters from outside, what is looked for in their lists, plain fusions."""
    runs = []
    for each in (data(), others()["long"]):
        fresh = dataclasses.replace(each)
        voters = {"walks": RP3beta().fit(fresh.train), "near": ItemKNN(neighbours=7).fit(fresh.train)}
        runs.append(combine(fresh, voters, settings={"dimensions": 8}, seed=3))
        assert not {"test", "evaluated"} & vars(fresh).keys()
    assert_same(*runs)


def test_baselines_are_validated_as_heads_are_without_the_test_part() -> None:
    fit = Fit({}, ("recall@5",), keep_users=False)
    model, means = ItemKNN(neighbours=7), []
    for split in (data(), *others().values()):
        fresh = dataclasses.replace(split)
        means.append(fit.measure(model.fit(fresh.train), fresh, "valid")["mean"])
        assert "test" not in vars(fresh)
    assert means[1:] == means[:1] * 2


ROOM = {"consensus": {"top_k": 40, "every": 1, "shown": 20}, "training": {"epochs": 1}}


@pytest.mark.parametrize(("preset", "test_part"), [("strong", "as it is"), ("reference", "long")])
def test_a_consensus_has_room_for_what_is_held_out(preset: str, test_part: str) -> None:
    """`shown` places are left when all that a user has used is taken out, though the test part was not looked at.

    Of a test part that is longer than the validation part, what exceeds it is missing.
    """
    split = data() if test_part == "as it is" else drawn(data(), 12, 16, 40)
    run = train(
        split,
        choose_settings("strong", {"consensus": {"top_k": 40, "shown": 20}, "dimensions": 8})
        if preset == "strong"
        else choose_settings(choose_settings(preset, SMALL), ROOM),
        seed=1,
    )
    used, model = split.interactions.matrix(), Recommender(run, frame="arrays")
    valid, test = (np.diff(part.indptr) for part in (split.valid, split.test))
    excess = np.maximum(test - valid.max(), 0)
    assert (excess.max() > 0) == (test_part == "long")
    for by in ("consensus", "R-consensus"):
        items, _ = model.recommend(model.user_ids.values.tolist(), k=20, by=by)
        free = used.shape[1] - np.diff(used.indptr)
        assert ((items >= 0).sum(1) >= np.minimum(free, 20 - excess)).all()
        lists = run.best[by].lists
        assert lists is not None
        room = min(20 + 2 * valid.max(), used.shape[1])
        assert lists.shape[1] == room if preset != "strong" else lists.shape[1] >= room  # the re-ranker has longer ones
