"""A log whose items have kinds that users prefer, and a catalogue that says so."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import polars as pl

from concf.data.prepare import prepare
from concf.data.split import Split
from concf.models import choose_settings, train
from concf.runs.run import Run

KINDS = ("red wine", "jazz", "boots", "novels")
USERS, ITEMS, NEW = 60, 64, 8
SMALL: dict[str, Any] = {"dimensions": 8, "consensus": {"top_k": 16, "shown": 16}, "training": {"metric": "recall@5"}}
ALGORITHM_1: dict[str, Any] = {
    "objectives": "bpr,multinomial",
    "model": {"dimensions": 8, "initial_std": 0.3},
    "consensus": {"every": 5, "window": 2},
    "training": {"epochs": 20, "batch": 64, "learning_rate": 0.02, "metric": "recall@5"},
}


def log(seed: int = 1) -> pl.DataFrame:
    """Users of kind u % 4 who use items of kind i % 4 nine times of ten, and item i from 0 to 63."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(USERS), 18)
    own = rng.integers(0, ITEMS // 4, len(user)) * 4 + user % 4
    item = np.where(rng.random(len(user)) < 0.9, own, rng.integers(0, ITEMS, len(user)))
    return pl.DataFrame({"user_id": user, "item_id": item})


def catalogue(items: int = ITEMS + NEW) -> pl.DataFrame:
    """Attributes that say of which kind an item is; those from 64 on are new."""
    numbers = range(items)
    return pl.DataFrame(
        {
            "item": list(numbers),
            "kind": [KINDS[n % 4] for n in numbers],
            "title": [f"No. {n}, {KINDS[n % 4]}" for n in numbers],
            "price": [None if n % 9 == 8 else float("nan") if n % 9 == 7 else n % 4 + n / 100 for n in numbers],
        }
    )


def noise(items: int = ITEMS + NEW) -> pl.DataFrame:
    """Attributes that say nothing."""
    rng = np.random.default_rng(5)
    kinds = rng.choice(["a", "b", "c"], items).tolist()
    return pl.DataFrame({"item": list(range(items)), "kind": kinds, "price": rng.random(items)})


@cache
def data(protocol: str = "random") -> Split:
    return prepare(log(), protocol=protocol)


@cache
def trained(preset: str = "strong", protocol: str = "random") -> Run:
    more: dict[str, Any] = {} if preset == "strong" else ALGORITHM_1
    settings = choose_settings(choose_settings(preset, SMALL), more)
    return train(data(protocol), settings, seed=3)
