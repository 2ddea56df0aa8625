"""Optimisers of the model and of the balancing weights, and how their state is restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def make_adam(parameters: Iterable[Tensor], device: torch.device, lr: float, decay: float = 0.0) -> torch.optim.Adam:
    """Fused Adam; on a GPU its steps can be captured in a CUDA graph."""
    on_gpu = device.type == "cuda"
    return torch.optim.Adam(parameters, lr=lr, weight_decay=decay, fused=True, capturable=on_gpu)


def restore(optimiser: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load moments and step counts; learning rate and weight decay stay those of the settings."""
    moments = {int(number): part for number, part in saved["state"].items()}  # JSON has string keys
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
