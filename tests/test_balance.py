"""Balancing against autograd of Eq. 16, and its laws."""

from __future__ import annotations

import pytest
import torch

from concf.reference.balance import Balance, gradient_scale, normalise, training_ratio, weight_gradient
from concf.reference.settings import ReferenceSettings

double = torch.float64


def heads_losses(user: torch.Tensor, item: torch.Tensor, data: torch.Tensor) -> list[torch.Tensor]:
    """Some loss of each head on the shared embeddings."""
    return [((user @ block @ item) ** 2).sum() + (user @ block.sum(1)) ** 2 + item.sum() for block in data]


def gradients(losses: list[torch.Tensor], shared: list[torch.Tensor], graph: bool = False) -> list[list[torch.Tensor]]:
    return [list(torch.autograd.grad(loss, shared, retain_graph=True, create_graph=graph)) for loss in losses]


def literal_scale(found: list[list[torch.Tensor]], norm: str) -> torch.Tensor:
    if norm == "joint":
        return torch.stack([torch.cat([user, item]).norm() for user, item in found])
    return torch.stack([user.norm() + 0.5 * item.norm() for user, item in found])


@pytest.mark.parametrize(("norm", "carried", "exponent"), [("joint", True, 1.0), ("sides", False, 0.15)])
def test_the_weight_step_equals_autograd_of_equation_16(norm: str, carried: bool, exponent: float) -> None:
    """carried: whether the consensus target is weighed with lambda, too, or with a number of its own."""
    torch.manual_seed(0)
    shared = [torch.randn(size, dtype=double, requires_grad=True) for size in (5, 7)]
    own, consensus_target = torch.randn(2, 4, 5, 7, dtype=double)
    weights = torch.rand(4, dtype=double).add(0.2).requires_grad_()
    loud = weights if carried else torch.tensor([0.5, 2.0, 1.0, 0.7], dtype=double)
    initial = torch.rand(4, dtype=double) * 50
    mine, taught = heads_losses(*shared, own), heads_losses(*shared, consensus_target)
    totals = [w * m + 0.05 * o * t for w, m, o, t in zip(weights, mine, loud, taught, strict=True)]
    scales = literal_scale(gradients(totals, shared, graph=True), norm)
    progress = torch.stack(mine).detach() / initial
    gamma = (progress / progress.mean()) ** exponent
    target = (scales.mean() * gamma).detach()
    expected = torch.autograd.grad((scales - target).abs().sum(), weights, retain_graph=True)[0]

    parts = gradients([w * m for w, m in zip(weights.detach(), mine, strict=True)], shared)
    whole = gradients(totals, shared)
    sides = [[torch.stack([head[side] for head in found]) for side in (0, 1)] for found in (parts, whole)]
    squares = [all_.square().sum(1) for all_ in sides[1]]
    products = [(part * all_).sum(1) for part, all_ in zip(*sides, strict=True)]
    scale, projection = gradient_scale(squares, products, norm)
    ratio = training_ratio(torch.stack(mine).detach(), initial, exponent)
    found = weight_gradient(scale, (scale if carried else projection) / weights.detach(), ratio)
    assert torch.allclose(scale, scales, rtol=1e-12)
    assert torch.allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("norm", ["joint", "sides"])
def test_a_head_without_gradient_has_no_scale_and_no_slope(norm: str) -> None:
    nothing, something = torch.tensor([0.0, 4.0]), torch.tensor([0.0, 9.0])
    scale, projection = gradient_scale([nothing, something], [nothing, something], norm)
    assert scale[0] == projection[0] == 0
    assert torch.isfinite(projection).all()


@pytest.mark.parametrize(("settle", "setting"), [(0, {(0, 0)}), (2, {(0, 0), (0, 1), (1, 0), (1, 1)})])
def test_the_initial_loss_is_that_of_the_first_batch_or_of_the_last_before_it_settles(
    settle: int, setting: set[tuple[int, int]]
) -> None:
    """L^0 of Eq. 15 is overwritten by every batch that may set it, and kept by the others."""
    balance = Balance(ReferenceSettings(balance={"settle": settle}), 6, torch.device("cpu"), double)
    expected = torch.ones(6, dtype=double)
    for epoch, batch in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)):
        loss = torch.rand(6, dtype=double) + 0.1
        expected = balance.weights * loss if (epoch, batch) in setting else expected
        balance.begin(epoch, batch)
        balance.step(loss, torch.zeros(6), torch.ones(6, dtype=double), torch.ones(6, dtype=double))
        assert torch.equal(balance.initial, expected)


def test_heads_that_learn_alike_have_ratio_one_and_a_slower_one_more() -> None:
    initial = torch.tensor([10.0, 200.0, 3.0])
    assert training_ratio(initial * 0.4, initial).tolist() == pytest.approx([1, 1, 1])
    slower = training_ratio(initial * torch.tensor([0.4, 0.4, 0.8]), initial)
    assert slower[2] > 1 > slower[0] == slower[1]
    assert slower.mean().item() == pytest.approx(1)
    gentle = training_ratio(initial * torch.tensor([0.4, 0.4, 0.8]), initial, 0.15)
    assert 1 < gentle[2] < slower[2]


def test_descending_the_gradient_brings_equal_losses_to_equal_scales() -> None:
    norms = torch.tensor([1.0, 5.0, 0.2], dtype=double)
    weights = torch.ones(3, dtype=double)
    for _ in range(3000):
        gradient = weight_gradient(weights * norms, norms, torch.ones(3, dtype=double))
        weights = normalise(weights - 1e-3 * gradient, 3.0, 1e-3)
    scales = weights * norms
    assert scales.max() / scales.min() < 1.1


def test_weights_stay_positive_and_sum_to_the_total() -> None:
    total = 6.0
    found = normalise(torch.tensor([-3.0, 0.5, 2.0]), total, 0.01)
    assert found.sum().item() == pytest.approx(total)
    assert (found > 0).all()
    assert found[2] / found[1] == pytest.approx(4)
