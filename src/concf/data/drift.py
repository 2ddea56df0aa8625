"""Simulated logs that drift: tastes and popularity change, items come and go, users come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from concf.data.simulate import START, YEAR, Simulation
from concf.runtime.arguments import check_seed

if TYPE_CHECKING:
    import polars as pl

STEPS = 73  # of five days each, within which nothing changes


class DriftingSimulation(Simulation):
    """The parameters of a simulated log whose past tells less and less about its future.

    As in `Simulation`, an event draws one of its user's tastes and then an item of it by popularity, or with
    probability `noise` any item. But a user's tastes move in a straight line from one draw to another, the popularity
    of a taste's items is lost as they age, and users and items exist from a time on that is drawn for each.
    """

    fashion: float | None = Field(0.25, gt=0)  # years in which an item loses half its popularity; None: it keeps it
    drift: float = Field(0.7, ge=0, le=1)  # share of a user's tastes that has changed by the end of the year
    new_users: float = Field(0.5, ge=0, le=1)  # share of the users who come during the year; others are there before
    new_items: float = Field(0.5, ge=0, le=1)  # the same of the items; the others are up to a year old at its beginning

    def draw(self, seed: int = 0) -> pl.DataFrame:
        """user_id, item_id, timestamp: [events] rows in order of time, spread evenly over a year."""
        import polars as pl

        rng = np.random.default_rng(check_seed(seed))
        borders, weights = self._catalogue(rng)
        owner, borders, weights = self._with_second_tastes(rng, borders, weights)
        popularity, activity = np.diff(weights), rng.lognormal(0.0, self.activity_spread, self.users)
        first, last = self._mixtures(rng), self._mixtures(rng)
        user_born = self._born(rng, self.users, self.new_users)
        item_born = self._born(rng, self.items, self.new_items)[owner]
        time = np.sort(rng.random(self.events))
        starts = np.searchsorted(time, np.arange(STEPS + 1) / STEPS)
        users, slots = [], []
        for step, count in enumerate(np.diff(starts)):
            now = step / STEPS
            user = _drawn(rng, activity * (user_born <= now), count)
            mixture = first[user] + self.drift * now * (last[user] - first[user])
            aged = popularity * self._left(now - item_born)
            users.append(user)
            slots.append(self._items(rng, mixture.cumsum(axis=1), borders, np.r_[0.0, aged.cumsum()]))
        item = rng.permutation(self.items)[owner[np.concatenate(slots)]]
        timestamp = START + (time * YEAR).astype(np.int64)
        return pl.DataFrame({"user_id": np.concatenate(users), "item_id": item, "timestamp": timestamp})

    def _born(self, rng: np.random.Generator, n: int, new: float) -> NDArray[np.float64]:
        """[n] when each came, in years from the beginning; one at least was there before."""
        born = np.where(rng.random(n) < new, rng.random(n), -rng.random(n))
        born[0] = min(born[0], -born[0])
        return born

    def _left(self, age: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] the share of its popularity that an item of that age has, 0 before it comes."""
        aged = np.ones_like(age) if self.fashion is None else 0.5 ** (age.clip(min=0) / self.fashion)
        return np.where(age >= 0, aged, 0.0)


def _drawn(rng: np.random.Generator, weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """[count] positions, each with a probability proportional to its weight."""
    total = weights.cumsum()
    drawn = np.searchsorted(total, rng.random(count) * total[-1], side="right")
    return np.asarray(np.minimum(drawn, np.flatnonzero(weights)[-1]))


DRIFTING = DriftingSimulation(
    users=3000, items=2000, events=120_000, tastes=30, taste_spread=0.1, activity_spread=0.9, shared=0.3
)
