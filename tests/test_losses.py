"""Each loss against its formula written out in loops, at extremes, and by its laws."""

from __future__ import annotations

from itertools import permutations
from math import exp, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concf.consensus.listwise import listwise
from concf.reference import losses
from concf.reference.objectives import LossSettings, choose

scores = st.lists(st.floats(-6, 6), min_size=1, max_size=8)
double = torch.float64


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


@given(scores, scores)
def test_pairwise_and_pointwise_losses_equal_their_formulas(ours: list[float], theirs: list[float]) -> None:
    pairs = list(zip(ours, theirs, strict=False))
    positive, negative = (torch.tensor(column, dtype=double) for column in zip(*pairs, strict=True))
    expected = {
        losses.bpr: -sum(log(sigmoid(p - n)) for p, n in pairs),
        losses.cml: sum(max(1 - p + n, 0) for p, n in pairs),
        losses.cross_entropy: -sum(log(sigmoid(p)) + log(1 - sigmoid(n)) for p, n in pairs),
        losses.squared_error: sum((1 - p) ** 2 + n**2 for p, n in pairs),
    }
    for loss, value in expected.items():
        assert loss(positive, negative).item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert losses.squared_error(positive, negative, scale=0.5).item() == pytest.approx(
        expected[losses.squared_error] / 2
    )
    assert losses.cml(positive, negative, margin=0.3).item() == pytest.approx(
        sum(max(0.3 - p + n, 0) for p, n in pairs)
    )


@pytest.mark.parametrize("likelihood", ["rows", "users", "mean"])
def test_cf_e_counts_whole_rows_or_each_by_its_length_or_their_mean(likelihood: str) -> None:
    torch.manual_seed(1)
    users, table = torch.tensor([2, 0, 2, 2, 1]), torch.randn(3, 6, dtype=double)
    items = [[0, 4], [1], [2, 3, 5]]
    rows = [-sum(table[u].log_softmax(0)[i].item() for i in items[u]) for u in range(3)]
    literal = {
        "rows": sum(rows), "users": sum(row / len(items[u]) for u, row in enumerate(rows)), "mean": sum(rows) / 3,
    }  # fmt: skip
    for name in ("multinomial", "multinomial-users"):
        found = choose((name,), LossSettings(likelihood=likelihood))[name].loss(
            table[users].logsumexp(1),
            torch.stack([table[u, items[u]].sum() for u in users.tolist()]),
            torch.tensor([len(items[u]) for u in users.tolist()], dtype=double),
            torch.tensor([1 / 3, 1, 1 / 3, 1 / 3, 1], dtype=double),
        )
        assert found.item() == pytest.approx(literal[likelihood], rel=1e-12)


def test_listwise_probabilities_of_all_lists_sum_to_one() -> None:
    length = 2
    torch.manual_seed(2)
    row = torch.randn(4, dtype=double)
    beginnings = {tuple(order[:length]): order for order in permutations(range(4))}
    one = torch.ones(1, dtype=double)
    total = sum(torch.exp(-listwise(row[list(order)][None], length, one)) for order in beginnings.values())
    assert total.item() == pytest.approx(1)


@pytest.mark.parametrize("order", ["agreeing", "opposed", "equal"])
def test_everything_is_finite_in_float32_at_scores_of_ten_thousand(order: str) -> None:
    high, low = {"agreeing": (1e4, -1e4), "opposed": (-1e4, 1e4), "equal": (1e4, 1e4)}[order]
    positive = torch.full((3,), high, requires_grad=True)
    negative = torch.full((3,), low, requires_grad=True)
    row = torch.linspace(high, low, 100).repeat(2, 1).requires_grad_()
    values = [loss(positive, negative) for loss in (losses.bpr, losses.cml, losses.cross_entropy, losses.squared_error)]
    values.append(listwise(row, 50, torch.ones(2)))
    degree = torch.full((2,), 3.0)
    values.append(losses.multinomial(row.logsumexp(1), row[:, :3].sum(1), degree, torch.ones(2)))
    for value in values:
        assert torch.isfinite(value)
        value.backward()
    assert all(torch.isfinite(leaf.grad).all() for leaf in (positive, negative, row))
    if order == "opposed":
        assert losses.bpr(positive, negative).item() == pytest.approx(6e4)


def looped_listwise(rows: torch.Tensor, length: int, weight: torch.Tensor) -> torch.Tensor:
    """Eq. 14 place by place, empty places left out; logsumexp so that nothing overflows."""
    total = torch.zeros((), dtype=rows.dtype)
    for row, times in zip(rows, weight, strict=True):
        there = row[row > -torch.inf]
        for k in range(min(length, len(there))):
            total = total + times * (there[k:].logsumexp(0) - there[k])
    return total


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_listwise_in_float32_equals_float64(size: float) -> None:
    """Scores of 1e4 have steps of 1e-3 in float32, so exp(s - D) is right to about 1e-3 at best."""
    torch.manual_seed(4)
    rows, step = torch.empty(6, 100).uniform_(-size, size).requires_grad_(), max(size * 2e-7, 2e-6)
    exact = rows.detach().double().requires_grad_()
    found = listwise(rows, 50, torch.ones(6))
    expected = looped_listwise(exact, 50, torch.ones(6, dtype=double))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=300 * step)
    gradients = [torch.autograd.grad(value, leaf)[0] for value, leaf in ((found, rows), (expected, exact))]
    assert torch.allclose(gradients[0].double(), gradients[1], rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize("length", [1, 4, 30])
def test_listwise_leaves_empty_places_out_and_its_gradient_is_autograd_s(length: int) -> None:
    torch.manual_seed(3)
    rows = torch.randn(3, 5, 7, dtype=double)  # heads, users, places
    rows[:, 0, 3:] = rows[:, 1, 6:] = rows[:, 2, 1:] = rows[:, 3] = -torch.inf
    rows.requires_grad_()
    weight = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25], dtype=double)
    found = listwise(rows, length, weight)
    expected = torch.stack([looped_listwise(head, length, weight) for head in rows])
    assert torch.allclose(found, expected, rtol=1e-12)
    upstream = torch.tensor([1.0, -2.0, 0.3], dtype=double)
    gradients = [torch.autograd.grad(value @ upstream, rows)[0] for value in (found, expected)]
    assert torch.allclose(*gradients, rtol=0, atol=1e-12)
    assert not gradients[0][rows == -torch.inf].any()
