"""Every kernel against the formula it stands for in plain PyTorch: values, and gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.autograd import gradcheck

from concf.reference import kernels
from concf.reference.kernels import Sparse, listed_scores, log_partition, sum_of_gradients, take_from, two_layers

double = torch.float64


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=double).requires_grad_()


def same(fast: Callable[..., Tensor], plain: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Equal values, and equal gradients of any upstream gradient, also of one that is spread out by a sum."""
    found, expected = fast(*leaves), plain(*leaves)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    for upstream in (torch.randn_like(expected), torch.ones(1, dtype=expected.dtype).expand_as(expected)):
        pairs = [torch.autograd.grad(each, leaves, upstream, retain_graph=True) for each in (found, expected)]
        assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(*pairs, strict=True))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("block", "least", "kept"), [(1, 1, 0), (50, 3, 0), (1 << 18, 16, kernels.KEPT)])
@pytest.mark.parametrize(("rows", "n", "size"), [(1, 1, 1), (17, 9, 7)])
def test_a_log_partition_is_a_logsumexp(monkeypatch, rows: int, n: int, size: int, block: int, least: int, kept: int):
    """Kept, and computed again in blocks, also of one row."""
    for name, value in (("BLOCK", block), ("LEAST", least), ("KEPT", kept)):
        monkeypatch.setattr(kernels, name, value)
    plain = lambda h, table, bias: (h @ table.T + bias).logsumexp(1)  # noqa: E731
    same(log_partition, plain, drawn(rows, size), drawn(n, size), drawn(n))


def test_a_log_partition_does_not_overflow() -> None:
    rows = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    found = log_partition(rows, torch.tensor([[1e4], [0.0], [-1e4]]), torch.zeros(3))
    found.sum().backward()
    assert found.tolist() == [1e4, 1e4]
    assert rows.grad.tolist() == [[1e4], [-1e4]]


def plain_scores(user: Tensor, offset: Tensor, item: Tensor, bias: Tensor, lists: Tensor) -> Tensor:
    return (user[:, :, None] * item[:, lists]).sum(3) + offset[:, :, None] + bias[:, lists]


@pytest.mark.parametrize(
    ("groups", "rows", "n", "size", "length", "kind"),
    [(1, 1, 1, 1, 1, torch.int32), (6, 11, 4, 18, 3, torch.int64), (3, 7, 120, 5, 100, torch.int32)],
)
def test_listed_scores_are_inner_products_with_offset_and_bias(groups, rows, n, size, length, kind) -> None:
    """Items may stand in a list twice, as the first one does in place of nothing."""
    lists = torch.randint(n, (rows, length), dtype=kind)
    leaves = drawn(groups, rows, size), drawn(groups, rows), drawn(groups, n, size), drawn(groups, n)
    same(lambda *parts: listed_scores(*parts, lists), lambda *parts: plain_scores(*parts, lists.long()), *leaves)


@pytest.mark.parametrize(("rows", "columns", "share"), [(5, 8, 0.4), (4, 6, 0.0)])
def test_a_sparse_product_equals_the_dense_one_both_ways(rows: int, columns: int, share: float) -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < share)
    sparse, table = Sparse(csr_array(dense), double), torch.from_numpy(dense)
    same(lambda right: sparse @ right, lambda right: table @ right, drawn(columns, 3))
    same(lambda right: sparse.T @ right, lambda right: table.T @ right, drawn(rows, 3))
    same(lambda right: sparse.T.T @ right, lambda right: table @ right, drawn(columns, 3))
    same(lambda right: sparse @ right.T, lambda right: table @ right.T, drawn(2, columns))


def plain_layers(rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    return torch.relu(rows @ w + b) @ v + c


@pytest.mark.parametrize("groups", [(1, 1, 1), (1, 4, 4), (4, 4, 4), (4, 1, 4)])
def test_two_layers_are_two_linear_maps_with_a_relu_between(groups: tuple[int, int, int]) -> None:
    g, one, two = groups
    parts = drawn(g, 5, 6), drawn(one, 6, 3), drawn(one, 1, 3), drawn(two, 3, 2), drawn(two, 1, 2)
    same(lambda rows, w, b, v, c: two_layers(rows, (w, b), (v, c)), plain_layers, *parts)
    same(lambda rows, w, b, v, c: two_layers(rows, (w, b), (v, c), dropout=0.5, noise=None), plain_layers, *parts)


def test_dropout_leaves_out_its_share_and_keeps_the_mean() -> None:
    rows, eye, zero = torch.ones(2, 4000, 4), torch.eye(4)[None], torch.zeros(1, 1, 4)
    noise = torch.Generator().manual_seed(1)
    first, second = (two_layers(rows, (eye, zero), (eye, zero), 0.2, noise) for _ in range(2))
    assert set(first.unique().tolist()) == {0.0, 1.25}
    assert (first == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert not torch.equal(first, second)
    again = two_layers(rows, (eye, zero), (eye, zero), 0.2, torch.Generator().manual_seed(1))
    assert torch.equal(first, again)


def test_two_layers_with_dropout_have_the_gradient_of_what_was_left() -> None:
    parts = drawn(1, 5, 6), drawn(2, 6, 3), drawn(2, 1, 3), drawn(2, 3, 2), drawn(2, 1, 2)

    def with_the_same_noise(rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return two_layers(rows, (w, b), (v, c), 0.5, torch.Generator().manual_seed(3))

    assert gradcheck(with_the_same_noise, parts)
    assert not torch.allclose(with_the_same_noise(*parts), plain_layers(*parts))


@pytest.mark.parametrize("taught", [True, False])
def test_gradients_of_two_terms_are_added_with_two_products(taught: bool) -> None:
    own, more = torch.randn(4, 5, 3, dtype=double), torch.randn(2, 5, 3, dtype=double)
    whole = own.clone()
    whole[1:3] += more if taught else 0
    found = sum_of_gradients(own, more if taught else None, 1)
    expected = whole, (whole * whole).sum((1, 2)), (own * whole).sum((1, 2))
    assert all(torch.allclose(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("copies", [True, False])
def test_rows_taken_from_several_tables_have_the_gradient_of_indexing(copies: bool) -> None:
    """A row taken twice, and copies of one table."""
    leaves = [drawn(1 if copies else 3, n, 4) for n in (6, 2)]
    ids, weight = [torch.tensor([5, 0, 5]), torch.tensor([1])], torch.randn(3, 4, 4, dtype=double)
    tables = [leaf.expand(3, -1, -1) for leaf in leaves]
    found = take_from(tables, ids)
    expected = torch.cat([table[:, at] for table, at in zip(tables, ids, strict=True)], 1)
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad((rows * weight).sum(), leaves) for rows in (found, expected)]
    assert all(torch.allclose(*pair) for pair in zip(*gradients, strict=True))
