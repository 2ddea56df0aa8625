"""The simulated log has the tastes, the popularity and the noise that it was told to have."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from concf.baselines.neighbours import ItemKNN
from concf.baselines.popularity import Popularity
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation.evaluate import evaluate


def test_a_seed_is_a_log() -> None:
    assert Simulation().draw(3).equals(Simulation().draw(3))
    assert not Simulation().draw(3).equals(Simulation().draw(4))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (50, 3, 400), (3, 50, 2), (700, 20, 300_000)])
def test_any_size(sizes: tuple[int, int, int]) -> None:
    users, items, events = sizes
    log = Simulation(users=users, items=items, events=events).draw()
    assert len(log) == events
    assert log["user_id"].min() >= 0
    assert log["user_id"].max() < users
    assert log["item_id"].min() >= 0
    assert log["item_id"].max() < items
    assert log["user_id"].n_unique() == min(users, events)
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


def test_popularity_follows_its_exponent() -> None:
    flat, steep = (
        np.sort(Simulation(events=50_000, popularity=exponent, noise=1.0).draw()["item_id"].value_counts()["count"])
        for exponent in (0.0, 1.5)
    )
    assert flat[-1] < 2 * flat.mean()
    assert steep[-1] > 20 * np.median(steep)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="noise"):
        Simulation(noise=2)
    with pytest.raises(ValidationError, match="genres"):
        Simulation(genres=4)
