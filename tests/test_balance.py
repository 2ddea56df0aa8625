"""Balancing against autograd of Eq. 16, and its laws."""

from __future__ import annotations

import pytest
import torch

from concf.learning.balance import normalise, training_ratio, weight_gradient

double = torch.float64


def heads_losses(shared: torch.Tensor, data: torch.Tensor) -> list[torch.Tensor]:
    return [((shared @ block) ** 2).sum() + (shared * block.sum(1)).sum() for block in data]


@pytest.mark.parametrize("exponent", [1.0, 0.15])
def test_the_weight_step_equals_autograd_of_equation_16(exponent: float) -> None:
    torch.manual_seed(0)
    shared = torch.randn(5, dtype=double, requires_grad=True)
    data = torch.randn(4, 5, 7, dtype=double)
    weights = torch.rand(4, dtype=double).add(0.2).requires_grad_()
    initial = torch.rand(4, dtype=double) * 50
    losses = heads_losses(shared, data)
    scales = torch.stack(
        [
            torch.autograd.grad(w * loss, shared, create_graph=True)[0].norm()
            for w, loss in zip(weights, losses, strict=True)
        ]
    )
    progress = torch.stack(losses).detach() / initial
    gamma = (progress / progress.mean()) ** exponent
    target = (scales.mean() * gamma).detach()
    literal = torch.autograd.grad((scales - target).abs().sum(), weights)[0]
    norms = torch.stack([torch.autograd.grad(loss, shared, retain_graph=True)[0].norm() for loss in losses])
    ratio = training_ratio(torch.stack(losses).detach(), initial, exponent)
    found = weight_gradient(weights.detach() * norms, norms, ratio)
    assert torch.allclose(found, literal, rtol=1e-12)


def test_the_step_with_a_second_term_equals_autograd() -> None:
    torch.manual_seed(1)
    shared = torch.randn(5, dtype=double, requires_grad=True)
    own, lesson = torch.randn(2, 3, 5, 7, dtype=double)
    weights = torch.rand(3, dtype=double).add(0.2).requires_grad_()
    other = torch.tensor([0.5, 2.0, 1.0], dtype=double) * 0.005
    mine, taught = heads_losses(shared, own), heads_losses(shared, lesson)
    totals = [w * m + o * t for w, m, o, t in zip(weights, mine, other, taught, strict=True)]
    gradients = [torch.autograd.grad(total, shared, create_graph=True)[0] for total in totals]
    scales = torch.stack([gradient.norm() for gradient in gradients])
    ratio = torch.tensor([0.9, 1.3, 0.8], dtype=double)
    literal = torch.autograd.grad((scales - (scales.mean() * ratio).detach()).abs().sum(), weights, retain_graph=True)[
        0
    ]
    parts = torch.stack([torch.autograd.grad(loss, shared, retain_graph=True)[0] for loss in mine])
    whole = torch.stack(gradients).detach()
    slope = (parts * whole).sum(1) / whole.norm(dim=1)
    assert torch.allclose(weight_gradient(scales.detach(), slope, ratio), literal, rtol=1e-12)


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


@pytest.mark.parametrize("total", [1.0, 6.0])
def test_weights_stay_positive_and_sum_to_the_total(total: float) -> None:
    found = normalise(torch.tensor([-3.0, 0.5, 2.0]), total, 0.01)
    assert found.sum().item() == pytest.approx(total)
    assert (found > 0).all()
    assert found[2] / found[1] == pytest.approx(4)
