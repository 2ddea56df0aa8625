"""What of a capture needs no GPU; the rest is in gpu_capture.py."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from concf.reference.cuda_graphs import CudaGraph


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_waits_until_a_step_is_captured(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """A graph of an earlier training that it freed meanwhile would end the capture; also a step that fails ends one."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(register_generator_state=lambda _: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    seen = []

    def step(batch: Any, teaching: bool) -> Tensor:
        seen.append(gc.isenabled())
        return torch.zeros(3, int(teaching) or -1)  # of no shape, unless it teaches

    batch: Any = SimpleNamespace(clone=lambda: None)
    graph = CudaGraph(step, torch.Generator())
    (gc.enable if enabled else gc.disable)()
    try:
        graph._capture(batch, True)
        assert (seen, gc.isenabled()) == ([False], enabled)
        with pytest.raises(RuntimeError):
            graph._capture(batch, False)
        assert (seen, gc.isenabled()) == ([False, False], enabled)
    finally:
        gc.enable()
