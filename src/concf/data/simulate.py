"""Simulate logs of any size: tastes, popularity and noise, drawn from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from concf.runtime.arguments import check_seed
from concf.runtime.settings import Settings

if TYPE_CHECKING:
    import polars as pl

BLOCK = 1 << 18  # events drawn at a time, which bounds the memory of the [events, tastes] comparison
YEAR = 365 * 24 * 3600
START = 1_600_000_000  # beginning of the year, in seconds since 1970
STEPS = 73  # steps of five days each, within which nothing changes


class Simulation(Settings):
    """Parameters of a simulated log.

    Every item belongs to one or two tastes and is popular within them by Zipf's law; every user has a few tastes (drawn
    from a sparse Dirichlet distribution) and an activity (log-normal). An event draws one of the user's tastes and an
    item of it or, with probability `noise`, any item by its popularity; pairs may repeat. Events are uniform over a
    year, or lie around a time at which the item is in fashion.
    """

    users: int = Field(1000, ge=1)
    items: int = Field(800, ge=1)
    events: int = Field(40_000, ge=1)
    tastes: int = Field(16, ge=1)
    taste_spread: float = Field(0.15, gt=0)  # of the Dirichlet distribution; small: few tastes per user
    popularity: float = Field(0.8, ge=0)  # Zipf's exponent; 0: all items are equally popular
    activity_spread: float = Field(0.7, ge=0)  # of the log-normal distribution; 0: all users are equally active
    noise: float = Field(0.1, ge=0, le=1)
    shared: float = Field(0.0, ge=0, le=1)  # share of the items that belong to a second taste
    fashion: float | None = Field(None, gt=0)  # spread of an item's events around its peak, in years; None: uniform

    def draw(self, seed: int = 0) -> pl.DataFrame:
        """user_id, item_id, timestamp: [events] rows in order of time."""
        import polars as pl

        rng = np.random.default_rng(check_seed(seed))
        borders, weights = self._catalogue(rng)
        activity = rng.lognormal(0.0, self.activity_spread, self.users)
        once = np.arange(min(self.users, self.events))  # each user has at least one event if there are enough
        rest = rng.choice(self.users, self.events - len(once), p=activity / activity.sum())
        user, mixtures, owner = np.sort(np.r_[once, rest]), self._mixtures(rng).cumsum(axis=1), np.arange(self.items)
        if self.shared:
            owner, borders, weights = self._with_second_tastes(rng, borders, weights)
        slots = [self._items(rng, mixtures[user[k : k + BLOCK]], borders, weights) for k in range(0, len(user), BLOCK)]
        item = rng.permutation(self.items)[owner[np.concatenate(slots)]]  # an id says nothing about its item
        if self.fashion is None:
            time, order = np.sort(rng.integers(0, YEAR, self.events)), rng.permutation(self.events)
        else:
            around = rng.random(self.items)[item] + self.fashion * rng.standard_normal(len(item))
            within = np.abs((around + 1) % 2 - 1)  # reflected at both ends, so that the year is evenly filled
            time = np.minimum((within * YEAR).astype(np.int64), YEAR - 1)
            time, order = np.sort(time), np.argsort(time, kind="stable")
        return pl.DataFrame({"user_id": user[order], "item_id": item[order], "timestamp": time + START})

    def _catalogue(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """([tastes + 1], [items + 1]) borders of the tastes among the items, cumulative popularity of the items."""
        tastes = min(self.tastes, self.items)
        borders = np.r_[0, np.sort(rng.choice(np.arange(1, self.items), tastes - 1, replace=False)), self.items]
        borders = np.r_[borders, np.full(self.tastes - tastes, self.items)]
        rank = np.arange(self.items) - np.repeat(borders[:-1], np.diff(borders)) + 1
        return borders, np.r_[0.0, np.cumsum(rank**-self.popularity)]

    def _with_second_tastes(
        self, rng: np.random.Generator, borders: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """([slots] item, borders and weights of the slots); a shared item has two slots of half its popularity."""
        first, popularity = np.repeat(np.arange(self.tastes), np.diff(borders)), np.diff(weights)
        shared = np.flatnonzero(rng.random(self.items) < self.shared) if self.tastes > 1 else np.empty(0, np.int64)
        second = (first[shared] + rng.integers(1, max(self.tastes, 2), len(shared))) % self.tastes
        popularity[shared] /= 2
        taste, owner = np.r_[first, second], np.r_[np.arange(self.items), shared]
        order = np.argsort(taste, kind="stable")
        owner, borders = owner[order], np.searchsorted(taste[order], np.arange(self.tastes + 1))
        return owner, borders, np.r_[0.0, np.cumsum(popularity[owner])]

    def _mixtures(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """[users, tastes] share of each taste in a user's activity."""
        return rng.dirichlet(np.full(self.tastes, self.taste_spread), self.users)

    def _items(
        self, rng: np.random.Generator, mixtures: NDArray[np.float64], borders: NDArray[np.int64],
        weights: NDArray[np.float64],
    ) -> NDArray[np.int64]:  # fmt: skip
        """[b] one item per event. mixtures: [b, tastes] the cumulative tastes of the event's user."""
        taste = np.minimum((rng.random((len(mixtures), 1)) > mixtures).sum(axis=1), self.tastes - 1)
        low, high = weights[borders[taste]], weights[borders[taste + 1]]
        anything = (rng.random(len(taste)) < self.noise) | (low == high)
        low, high = np.where(anything, 0.0, low), np.where(anything, weights[-1], high)
        drawn = low + rng.random(len(taste)) * (high - low)
        return np.asarray(np.searchsorted(weights, drawn, side="right").clip(1, len(weights) - 1) - 1)


DEMO = Simulation(  # as long-tailed as real logs: see tests/test_simulate.py
    users=1000, items=1000, events=25_000, tastes=30, taste_spread=0.1, activity_spread=0.9, noise=0.15, shared=0.3,
    fashion=0.2,
)  # fmt: skip


class DriftingSimulation(Simulation):
    """Parameters of a simulated log whose past predicts its future less and less.

    As in `Simulation`, an event draws a taste of its user and an item of it by popularity, or with probability `noise`
    any item. But a user's tastes move in a straight line from one draw to another, items lose popularity as they age,
    and users and items appear at a time that is drawn for each.
    """

    fashion: float | None = Field(0.25, gt=0)  # years in which an item loses half its popularity; None: it keeps it
    drift: float = Field(0.7, ge=0, le=1)  # share of a user's tastes that has changed by the end of the year
    new_users: float = Field(0.5, ge=0, le=1)  # share of the users who appear during the year; others were there before
    new_items: float = Field(0.5, ge=0, le=1)  # share of the items; the others are up to a year old when it begins

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
            active = activity * (user_born <= now)
            total = active.cumsum()
            drawn = np.searchsorted(total, rng.random(count) * total[-1], side="right")
            user = np.minimum(drawn, np.flatnonzero(active)[-1])
            mixture = first[user] + self.drift * now * (last[user] - first[user])
            age = now - item_born  # below 0: the item has not appeared
            left = np.ones_like(age) if self.fashion is None else 0.5 ** (age.clip(min=0) / self.fashion)
            aged = popularity * np.where(age >= 0, left, 0.0)
            users.append(user)
            slots.append(self._items(rng, mixture.cumsum(axis=1), borders, np.r_[0.0, aged.cumsum()]))
        item = rng.permutation(self.items)[owner[np.concatenate(slots)]]
        timestamp = START + (time * YEAR).astype(np.int64)
        return pl.DataFrame({"user_id": np.concatenate(users), "item_id": item, "timestamp": timestamp})

    def _born(self, rng: np.random.Generator, n: int, new: float) -> NDArray[np.float64]:
        """[n] time of appearance, in years from the beginning; the first one was there before."""
        born = np.where(rng.random(n) < new, rng.random(n), -rng.random(n))
        born[0] = min(born[0], -born[0])
        return born


DRIFTING = DriftingSimulation(
    users=3000, items=2000, events=120_000, tastes=30, taste_spread=0.1, activity_spread=0.9, shared=0.3
)
