"""The simulated log has the tastes, the popularity and the noise that it was told to have."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from concf.data.prepare import prepare
from concf.data.reading.read import read
from concf.data.simulate import DEMO, Simulation
from concf.evaluation.evaluate import evaluate
from concf.model.baselines.factorisation import Popularity
from concf.model.baselines.neighbours import ItemKNN


def test_a_seed_is_a_log() -> None:
    assert Simulation().draw(3).equals(Simulation().draw(3))
    assert not Simulation().draw(3).equals(Simulation().draw(4))


@pytest.mark.parametrize("traits", [{}, {"shared": 0.5, "fashion": 0.1}, {"shared": 1.0, "fashion": 3.0, "tastes": 1}])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (50, 3, 400), (3, 50, 2), (700, 20, 300_000)])
def test_any_size(sizes: tuple[int, int, int], traits: dict[str, float]) -> None:
    users, items, events = sizes
    log = Simulation(users=users, items=items, events=events, **traits).draw()
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


def gini(counts: NDArray[np.int64]) -> float:
    """0 where all are alike, 1 where one has everything."""
    place = np.arange(1, len(counts) + 1)
    return float(((2 * place - len(counts) - 1) * np.sort(counts)).sum() / (len(counts) * counts.sum()))


# CiteULike, Ciao and Foursquare, as they are and with 10 interactions each: the Gini coefficient of their items is 0.36
# to 0.54, of their users 0.34 to 0.64; the most popular tenth of their items has 30 % to 51 % of the pairs, and the
# median user 7 to 30 items.
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_s_log_is_like_real_ones(seed: int) -> None:
    log = read(DEMO.draw(seed))
    items, users = (counts[counts > 0] for counts in (np.bincount(log.item), np.bincount(log.user)))
    assert 0.36 < gini(items) < 0.54
    assert 0.34 < gini(users) < 0.64
    assert 0.30 < np.sort(items)[-len(items) // 10 :].sum() / len(log) < 0.51
    assert 7 <= np.median(users) <= 30
    assert len(log) < 0.9 * log.count.sum()  # people come again


def test_users_of_the_demo_have_several_tastes_and_some_items_two() -> None:
    rng = np.random.default_rng(0)
    shares = DEMO._mixtures(rng)
    tastes = np.exp(-(shares * np.log(shares.clip(1e-300))).sum(1))  # so many alike would be as uncertain
    assert 2 < np.median(tastes) < 6
    owner, borders, weights = DEMO._with_second_tastes(rng, *DEMO._catalogue(rng))
    places = np.bincount(owner)
    assert set(places) == {1, 2}
    assert (places == 2).mean() == pytest.approx(DEMO.shared, abs=0.05)
    assert (borders[0], borders[-1], len(weights)) == (0, len(owner), len(owner) + 1)
    taste = np.repeat(np.arange(DEMO.tastes), np.diff(borders))
    assert len(set(zip(taste.tolist(), owner.tolist(), strict=True))) == len(owner)  # never the same one twice


def test_a_second_taste_leaves_an_item_as_popular_as_it_was() -> None:
    borders, weights = DEMO._catalogue(np.random.default_rng(0))
    owner, _, shared = DEMO._with_second_tastes(np.random.default_rng(0), borders, weights)
    assert np.allclose(np.bincount(owner, np.diff(shared)), np.diff(weights))


def halves_apart(item: NDArray[np.int64], first: NDArray[np.bool_]) -> float:
    """Half the sum of the differences of all items' shares in two parts of a log; 0: alike, 1: nothing in common."""
    shares = [np.bincount(item[part], minlength=DEMO.items) / part.sum() for part in (first, ~first)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def test_items_of_the_demo_come_into_fashion_and_go() -> None:
    log = DEMO.draw(0)
    item, time = log["item_id"].to_numpy(), log["timestamp"].to_numpy()
    middle = (time.min() + time.max()) / 2
    by_chance = halves_apart(item, np.random.default_rng(0).random(len(item)) < 0.5)
    assert halves_apart(item, time < middle) > 2 * by_chance
    assert log["timestamp"].is_sorted()
    assert 0.4 < (time < middle).mean() < 0.6  # the year is as full everywhere
    consistent = DEMO.model_copy(update={"fashion": None}).draw(0)
    still = consistent["timestamp"].to_numpy() < middle
    assert halves_apart(consistent["item_id"].to_numpy(), still) == pytest.approx(by_chance, rel=0.15)


def test_a_simulation_without_the_new_traits_draws_what_it_always_drew() -> None:
    drawn = Simulation(users=40, items=30, events=900, tastes=4).draw(1).write_csv()
    assert hashlib.sha256(drawn.encode()).hexdigest().startswith("f0d3a94faeb5")


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="noise"):
        Simulation(noise=2)
    with pytest.raises(ValidationError, match="genres"):
        Simulation(genres=4)
