"""The simulated log has the tastes, the popularity and the noise that it was told to have; the other one drifts."""

from __future__ import annotations

import hashlib

import pytest

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import ItemKNN
from concf.data.prepare import prepare
from concf.data.simulate import DRIFTING, DriftingSimulation, Simulation
from concf.evaluation.evaluate import evaluate


@pytest.mark.parametrize("simulation", [
    Simulation(), Simulation(shared=1.0, fashion=3.0, tastes=1), DriftingSimulation(shared=0.5),
    DriftingSimulation(shared=0.5, fashion=0.001, new_items=1.0, new_users=1.0, tastes=1),
])  # fmt: skip
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


def test_a_simulation_without_the_new_traits_draws_what_it_always_drew() -> None:
    drawn = Simulation(users=40, items=30, events=900, tastes=4).draw(1).write_csv()
    assert hashlib.sha256(drawn.encode()).hexdigest().startswith("f0d3a94faeb5")


def test_users_and_items_come_and_items_go() -> None:
    log = DRIFTING.draw(0)
    first, last = log[: len(log) // 4], log[-len(log) // 4 :]
    for one, other, side in ((first, last, "user_id"), (first, last, "item_id"), (last, first, "item_id")):
        assert 0.2 < (~other[side].unique().is_in(one[side].unique().to_list())).mean() < 0.8
