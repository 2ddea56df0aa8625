"""The simulated log has the tastes, the popularity and the noise that it was told to have; the other one drifts."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import ItemKNN
from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.simulate import DEMO, DRIFTING, DriftingSimulation, Simulation
from concf.evaluation.evaluate import evaluate


@pytest.mark.parametrize(
    "simulation",
    [
        Simulation(), Simulation(shared=1.0, fashion=3.0, tastes=1), DriftingSimulation(shared=0.5),
        DriftingSimulation(shared=0.5, fashion=0.001, new_items=1.0, new_users=1.0, tastes=1),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("users", "items", "events"), [(1, 1, 1), (50, 3, 400), (3, 50, 2)])
def test_any_size(simulation: Simulation, users: int, items: int, events: int) -> None:
    log = simulation.model_copy(update={"users": users, "items": items, "events": events}).draw()
    assert (log.columns, len(log)) == (["user_id", "item_id", "timestamp"], events)
    assert log["user_id"].is_between(0, users - 1).all()
    assert log["item_id"].is_between(0, items - 1).all()
    assert isinstance(simulation, DriftingSimulation) or log["user_id"].n_unique() == min(users, events)
    assert log["timestamp"].is_sorted()


def test_tastes_can_be_learned_and_pure_noise_cannot() -> None:
    figures = {}
    for noise in (0.1, 1.0):
        split = prepare(Simulation(users=300, items=200, events=9000, noise=noise).draw(), protocol="random")
        models = {"knn": ItemKNN(), "popularity": Popularity()}
        for name, model in models.items():
            figures[name, noise] = evaluate(model.fit(split.train), split, at=[5]).means()["recall@5"]
    assert figures["knn", 0.1] > 1.5 * figures["popularity", 0.1]
    assert figures["knn", 1.0] < 1.1 * figures["popularity", 1.0]


def gini(counts: NDArray[np.int64]) -> float:
    """0 where all are alike, 1 where one has everything."""
    place = np.arange(1, len(counts) + 1)
    return float(((2 * place - len(counts) - 1) * np.sort(counts)).sum() / (len(counts) * counts.sum()))


# CiteULike, Ciao and Foursquare, as they are and with 10 interactions each: the Gini coefficient of their items is 0.36
# to 0.54, of their users 0.34 to 0.64; the most popular tenth of their items has 30 % to 51 % of the pairs, and the
# median user 7 to 30 items.
def test_the_demo_s_log_is_like_real_ones() -> None:
    log = read(DEMO.draw(0))
    items, users = (counts[counts > 0] for counts in (np.bincount(log.item), np.bincount(log.user)))
    assert 0.36 < gini(items) < 0.54
    assert 0.34 < gini(users) < 0.64
    assert 0.30 < np.sort(items)[-len(items) // 10 :].sum() / len(log) < 0.51
    assert 7 <= np.median(users) <= 30
    assert len(log) < 0.9 * log.count.sum()  # people come again


def test_a_simulation_without_the_new_traits_draws_what_it_always_drew() -> None:
    drawn = Simulation(users=40, items=30, events=900, tastes=4).draw(1).write_csv()
    assert hashlib.sha256(drawn.encode()).hexdigest().startswith("f0d3a94faeb5")


def quarters(log: pl.DataFrame) -> list[pl.DataFrame]:
    """The log in four parts of equal length, the oldest first."""
    size = len(log) // 4
    return [log[k * size : (k + 1) * size] for k in range(4)]


def apart(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Half the sum of the differences of shares; 0: alike, 1: nothing in common."""
    length = max(one.max(), other.max()) + 1
    shares = [np.bincount(part, minlength=length) / len(part) for part in (one, other)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def test_users_and_items_come_and_items_go() -> None:
    first, *_, last = quarters(DRIFTING.draw(0))
    for side in ("user_id", "item_id"):
        fresh = ~last[side].unique().is_in(first[side].unique().to_list())
        assert 0.2 < fresh.mean() < 0.7
    assert apart(first["item_id"].to_numpy(), last["item_id"].to_numpy()) > 0.6
