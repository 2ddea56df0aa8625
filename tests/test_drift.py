"""The drifting log: users and items come, items go, tastes and popularity change; each can be switched off."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from concf.data.reading.read import read
from concf.data.simulate import DRIFTING, DriftingSimulation

STILL = {"fashion": None, "drift": 0.0, "new_users": 0.0, "new_items": 0.0}


def quarters(log: pl.DataFrame) -> list[pl.DataFrame]:
    """The log in four parts of equal length, the oldest first."""
    size = len(log) // 4
    return [log[k * size : (k + 1) * size] for k in range(4)]


def apart(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Half the sum of the differences of shares; 0: alike, 1: nothing in common."""
    length = max(one.max(), other.max()) + 1
    shares = [np.bincount(part, minlength=length) / len(part) for part in (one, other)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def test_a_seed_is_a_log() -> None:
    small = DRIFTING.model_copy(update={"events": 2000})
    assert small.draw(3).equals(small.draw(3))
    assert not small.draw(3).equals(small.draw(4))


@pytest.mark.parametrize("traits", [{}, STILL, {"fashion": 0.001, "new_items": 1.0, "new_users": 1.0, "tastes": 1}])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (50, 3, 400), (3, 50, 2), (700, 20, 100_000)])
def test_any_size(sizes: tuple[int, int, int], traits: dict[str, float]) -> None:
    users, items, events = sizes
    log = DriftingSimulation(users=users, items=items, events=events, shared=0.5, **traits).draw()
    assert log.columns == ["user_id", "item_id", "timestamp"]
    assert len(log) == events
    assert log["user_id"].is_between(0, users - 1).all()
    assert log["item_id"].is_between(0, items - 1).all()
    assert log["timestamp"].is_sorted()


def test_users_and_items_come_and_items_go() -> None:
    first, *_, last = quarters(DRIFTING.draw(0))
    for side in ("user_id", "item_id"):
        fresh = ~last[side].unique().is_in(first[side].unique().to_list())
        assert 0.2 < fresh.mean() < 0.7
    assert apart(first["item_id"].to_numpy(), last["item_id"].to_numpy()) > 0.6


def test_without_its_traits_nothing_changes() -> None:
    still = DRIFTING.model_copy(update=STILL).draw(0)
    first, *_, last = quarters(still)
    changed = apart(first["item_id"].to_numpy(), last["item_id"].to_numpy())
    shuffled = still["item_id"].shuffle(0).to_numpy()
    by_chance = apart(shuffled[: len(first)], shuffled[-len(first) :])
    assert changed == pytest.approx(by_chance, rel=0.1)


def same_taste(log: pl.DataFrame) -> float:
    """The cosine between what a user takes in the first quarter and in the last, among 16 directions of items."""
    interactions = read(log)
    assert interactions.timestamp is not None
    early, late = np.quantile(interactions.timestamp, [0.25, 0.75])
    before, after = (
        interactions.matrix(rows).toarray() for rows in (interactions.timestamp < early, interactions.timestamp > late)
    )
    groups = np.linalg.svd(before, full_matrices=False)[2][:16].T
    one, other = (each @ groups for each in (before, after))
    both = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.median((one * other).sum(1)[both > 0] / both[both > 0]))


def test_drift_makes_old_tastes_tell_less() -> None:
    traits = STILL | {"users": 400, "items": 300, "events": 16_000, "noise": 0.0, "popularity": 0.0}
    still, moving = (same_taste(DriftingSimulation(**traits | {"drift": drift}).draw(0)) for drift in (0.0, 1.0))
    assert still > 0.2
    assert moving < 0.6 * still


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValidationError, match="drift"):
        DriftingSimulation(drift=2)
    with pytest.raises(ValidationError, match="fashion"):
        DriftingSimulation(fashion=0)
