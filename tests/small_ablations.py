"""Settings and data so small that every step of an ablation can be computed by hand."""

from __future__ import annotations

from typing import Any

import torch

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.data.split import Split
from concf.reference.settings import ReferenceSettings

SEED = 5
PEERS = tuple(f"multinomial#{start}" for start in range(1, 6))


def tiny() -> Split:
    return prepare(Simulation(users=8, items=12, events=70, tastes=3).draw(1), protocol="random")


def small(**changes: Any) -> ReferenceSettings:
    """`reference` on the tiny data: one batch an epoch, the first epoch with consensus loss in epoch 2."""
    chosen: dict[str, Any] = {
        "model": {"dimensions": 16, "initial_std": 0.3, "dropout": 0.0},
        "consensus": {"every": 1, "window": 2, "top_k": 6, "length": 3},
        "training": {"epochs": 3, "batch": 1000, "metric": "recall@3"},
    }
    for part, values in changes.items():
        chosen[part] = chosen.get(part, {}) | values if isinstance(values, dict) else values
    return ReferenceSettings().changed(chosen)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
