"""Alternating least squares on a GPU against the CPU in float64. Not collected by itself: `pytest tests/gpu_als.py`."""

from __future__ import annotations

import pytest
import torch
from test_als import PENALTY, UNOBSERVED, some_items, some_pairs

from concf.baselines import als
from concf.baselines.als import ALS, Pairs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
als.SHORT = 1 << 30  # on the CPU too, long rows are solved exactly

BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the greatest score, after three sweeps
SHAPES = [(300, 200, 16), (40, 12, 20)]  # users, items, factors


def scores(device, dtype, shape):
    users, items, factors = shape
    pairs = Pairs(*(part.to(device) for part in some_pairs(users, items, dtype=dtype)))
    model = ALS(pairs, (users, items), factors)
    user, item = model.fit(some_items(items, factors).to(device, dtype), UNOBSERVED, PENALTY, 3)
    assert user.device.type == item.device.type == device
    return (user @ item.T).double().cpu()


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cells", [als.GPU_CELLS, 4000])
def test_a_fit_is_the_cpu_s(dtype, shape, cells, monkeypatch):
    monkeypatch.setattr(als, "GPU_CELLS", cells)
    expected = scores("cpu", torch.float64, shape)
    fitted = scores("cuda", dtype, shape)
    assert (fitted - expected).abs().max() <= BOUNDS[dtype] * expected.abs().max()


def test_the_start_is_the_same_on_every_device():
    pairs = some_pairs(30, 20, dtype=torch.float32)
    there = ALS(Pairs(*(part.to("cuda") for part in pairs)), (30, 20), 4).start(7)
    assert there.device.type == "cuda"
    assert torch.equal(there.cpu(), ALS(pairs, (30, 20), 4).start(7))
