"""The operations that a training step spends its time in, each with its gradient in closed form.

Every one is a formula that plain PyTorch could compute; what is gained is that nothing of the size rows x catalogue,
or users x list x vector, is ever held. On a GPU the inner loops are Triton kernels, elsewhere blocks that stay in cache.
"""

from __future__ import annotations

import copy
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

BLOCK = 1 << 18  # logits that are held at a time on a CPU


def take_rows(table: Tensor, places: Tensor) -> Tensor:
    """[g, n, d], [b] -> [g, b, d]; the gradients of a row that is taken twice add up, without a sort."""
    rows: Tensor = _TakeRows.apply(table, places)  # type: ignore[no-untyped-call]
    return rows


def log_partition(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """[b] log sum_j exp(<rows_b, table_j> + bias_j). rows: [b, d]; table: [n, d]; bias: [n]."""
    partition: Tensor = _LogPartition.apply(rows, table, bias)  # type: ignore[no-untyped-call]
    return partition


def listed_scores(user: Tensor, item: Tensor, lists: Tensor) -> Tensor:
    """[g, b, L] <user_b, item_j> for the items j of each user's list. user: [g, b, d]; item: [g, n, d]; lists: [b, L]."""
    scores: Tensor = _ListedScores.apply(user, item, lists)  # type: ignore[no-untyped-call]
    return scores


class Sparse(nn.Module):
    """A constant sparse matrix with its transpose beside it, so that both ways of a product are row by row."""

    matrix: Tensor
    transposed: Tensor

    def __init__(self, matrix: csr_array, kind: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("matrix", _csr(matrix, kind), persistent=False)
        self.register_buffer("transposed", _csr(csr_array(matrix.T), kind), persistent=False)

    @property
    def T(self) -> Sparse:
        """The transpose."""
        other = copy.copy(self)
        other._buffers = {"matrix": self.transposed, "transposed": self.matrix}
        return other

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, m] @ [m, d] -> [n, d]."""
        product: Tensor = _SparseProduct.apply(self.matrix, self.transposed, dense)  # type: ignore[no-untyped-call]
        return product


def _csr(matrix: csr_array, kind: torch.dtype) -> Tensor:
    matrix = csr_array(matrix)
    ends, columns = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    cells = torch.from_numpy(matrix.data).to(kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(ends, columns, cells, matrix.shape, check_invariants=True)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None, Tensor]:  # type: ignore[override]
        return None, None, ctx.transposed @ upstream.contiguous()


def _add_rows(rows: Tensor, places: Tensor, n: int) -> Tensor:
    """[g, b, d], [b] -> [g, n, d]: each row added at its place."""
    groups, _, size = rows.shape
    total = rows.new_zeros(groups * n, size)
    flat = (torch.arange(groups, device=rows.device)[:, None] * n + places).reshape(-1, 1).expand(-1, size)
    return total.scatter_add_(0, flat, rows.reshape(-1, size)).view(groups, n, size)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.n = table.shape[1]
        return table.index_select(1, places)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (places,) = ctx.saved_tensors
        return _add_rows(upstream, places, ctx.n), None


class _LogPartition(torch.autograd.Function):
    """The softmax is computed again in the backward pass: cheaper than to keep it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        if _has_kernel(rows):
            from concf.model import triton_kernels

            partition = triton_kernels.log_partition(rows, table, bias)
        else:
            partition = torch.cat([logits.logsumexp(1) for _, logits in _logits(rows, table, bias)])
        ctx.save_for_backward(rows, table, bias, partition)
        return partition

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        rows, table, bias, partition = ctx.saved_tensors
        if _has_kernel(rows):
            from concf.model import triton_kernels

            return triton_kernels.log_partition_gradient(rows, table, bias, partition, upstream)
        d_rows, d_table, d_bias = torch.empty_like(rows), torch.zeros_like(table), torch.zeros_like(bias)
        for part, logits in _logits(rows, table, bias):
            softmax = logits.sub_(partition[part, None]).exp_().mul_(upstream[part, None])
            torch.mm(softmax, table, out=d_rows[part])
            d_table.addmm_(softmax.T, rows[part])
            d_bias += softmax.sum(0)
        return d_rows, d_table, d_bias


def _logits(rows: Tensor, table: Tensor, bias: Tensor) -> Any:
    """Blocks of rows and their logits, which the caller may overwrite."""
    size = max(1, BLOCK // max(1, len(table)))
    buffer = rows.new_empty(min(size, len(rows)), len(table))
    for begin in range(0, len(rows), size):
        part = slice(begin, min(begin + size, len(rows)))
        yield part, torch.addmm(bias, rows[part], table.T, out=buffer[: part.stop - part.start])


class _ListedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, user: Tensor, item: Tensor, lists: Tensor) -> Tensor:
        ctx.save_for_backward(user, item, lists)
        if _has_kernel(user):
            from concf.model import triton_kernels

            return triton_kernels.listed_scores(user, item, lists)
        return torch.stack([_scores_of(user[g], item[g], lists) for g in range(len(user))])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        user, item, lists = ctx.saved_tensors
        if _has_kernel(user):
            from concf.model import triton_kernels

            return *triton_kernels.listed_scores_gradient(user, item, lists, upstream.contiguous()), None
        d_user, d_item = torch.empty_like(user), torch.empty_like(item)
        for g in range(len(user)):
            d_user[g] = torch.nn.functional.embedding_bag(lists, item[g], per_sample_weights=upstream[g], mode="sum")
            d_item[g] = _transposed_product(upstream[g], lists, user[g], item.shape[1])
        return d_user, d_item, None


def _scores_of(user: Tensor, item: Tensor, lists: Tensor) -> Tensor:
    """[b, L] one group's: a product sampled at the lists' places."""
    if user.device.type != "cpu":
        return torch.einsum("bd,bld->bl", user, item[lists])
    cells = _cells(torch.zeros_like(lists, dtype=user.dtype), lists, len(item))
    return torch.sparse.sampled_addmm(cells, user, item.T, beta=0.0).values().view_as(lists)


def _transposed_product(values: Tensor, lists: Tensor, user: Tensor, n_items: int) -> Tensor:
    """[n, d] sum over b, l of values_bl user_b at the item of lists_bl."""
    if user.device.type != "cpu":
        rows = values.reshape(-1, 1) * user.repeat_interleave(lists.shape[1], 0)
        return user.new_zeros(n_items, user.shape[1]).index_add_(0, lists.flatten(), rows)
    ends = torch.arange(len(lists) + 1, dtype=torch.int32) * lists.shape[1]
    cells = (values.numpy().ravel(), lists.to(torch.int32).numpy().ravel(), ends.numpy())
    return torch.from_numpy(csr_array(cells, shape=(len(lists), n_items)).T @ user.numpy())


def _cells(values: Tensor, lists: Tensor, n_items: int) -> Tensor:
    ends = torch.arange(len(lists) + 1, device=lists.device) * lists.shape[1]
    shape = (len(lists), n_items)
    return torch.sparse_csr_tensor(ends, lists.flatten(), values.flatten(), shape, check_invariants=False)


def _has_kernel(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.float32 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
