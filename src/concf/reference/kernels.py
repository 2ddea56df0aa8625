"""Fused operations of a training step, each with its gradient in closed form.

Plain PyTorch could compute each formula, but would store tensors of rows x items, or users x list x dimensions. On a
GPU the inner loops are Triton kernels, on a CPU blocks that fit into cache (a small softmax is kept for its gradient).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

BLOCK = 1 << 19  # logits of a block on a CPU
KEPT = 1 << 24  # most logits that are kept whole for the gradient
LEAST = 16  # fewest rows of a block, since every block reads the whole table and its gradient
FEW = 4  # longest list whose vectors are gathered
NARROW = 64  # most dimensions for the Triton kernel of the log-partition
GPU_BLOCK = 1 << 27  # logits of a block on a GPU, for larger dimensions


def log_partition(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """[b] log sum_j exp(<rows_b, table_j> + bias_j). rows: [b, d]; table: [n, d]; bias: [n]."""
    partition: Tensor = _LogPartition.apply(rows, table, bias)  # type: ignore[no-untyped-call]
    return partition


def listed_scores(user: Tensor, offset: Tensor, item: Tensor, bias: Tensor, lists: Tensor) -> Tensor:
    """[g, b, L] <user_b, item_j> + offset_b + bias_j for the items j of each user's list.

    user: [g, b, d]; offset: [g, b]; item: [g, n, d]; bias: [g, n]; lists: [b, L]
    """
    scores: Tensor = _ListedScores.apply(user, offset, item, bias, lists)  # type: ignore[no-untyped-call]
    return scores


def two_layers(
    rows: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], dropout: float = 0.0,
    noise: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """[g, n, m] relu(dropout(rows W + b)) V + c. rows: [g, n, d]; first: W [g, d, k], b [g, 1, k]; second: V, c.

    Each g is 1 or the number of groups. noise: generator of the dropout; None: no dropout.
    """
    share = 0.0 if noise is None else dropout
    encoded: Tensor = _TwoLayers.apply(rows, *first, *second, share, noise)  # type: ignore[no-untyped-call]
    return encoded


class Sparse(nn.Module):
    """Constant sparse matrix, stored with its transpose: forward and backward products both go by rows."""

    matrix: Tensor
    transposed: Tensor

    def __init__(self, matrix: csr_array, kind: torch.dtype) -> None:
        super().__init__()
        for name, rows in (("matrix", csr_array(matrix)), ("transposed", csr_array(matrix.T))):
            ends, columns = (  # older versions of PyTorch refuse the strides of empty arrays
                torch.empty(len(part), dtype=torch.int64).copy_(torch.from_numpy(part))
                for part in (rows.indptr, rows.indices)
            )
            cells = torch.from_numpy(rows.data).to(kind)
            made = _quiet_csr(ends, columns, cells, rows.shape, check_invariants=True)
            self.register_buffer(name, made, persistent=False)

    @property
    def T(self) -> Sparse:
        """The transpose."""
        other = copy.copy(self)
        other._buffers = {"matrix": self.transposed, "transposed": self.matrix}
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Sparse:
        other = copy.copy(self)
        other._buffers = {name: part.clone() for name, part in self._buffers.items() if part is not None}
        return other

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[n, m] @ [m, d] -> [n, d]."""
        product: Tensor = _SparseProduct.apply(self.matrix, self.transposed, dense)  # type: ignore[no-untyped-call]
        return product


def _quiet_csr(*parts: Any, check_invariants: bool) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly)")
        return torch.sparse_csr_tensor(*parts, check_invariants=check_invariants)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ upstream.contiguous()


class _TwoLayers(torch.autograd.Function):
    """The derivative of a positive hidden unit is the dropout scale, else 0: the dropout mask is not stored."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, share: float, noise: torch.Generator | None
    ) -> Tensor:
        ctx.share, groups = share, max(len(rows), len(w), len(v))
        ctx.shapes = [part.shape for part in (rows, w, b, v, c)]
        rows, w, b, v, c = (part.expand(groups, -1, -1) for part in (rows, w, b, v, c))
        if triton_kernels := _triton(rows):
            ctx.seed = torch.zeros(1, dtype=torch.int64, device=rows.device).random_(generator=noise)
            ctx.save_for_backward(rows, w, b, v, c)
            encoded: Tensor = triton_kernels.two_layers(rows, w, b, v, c, share, ctx.seed)
            return encoded
        hidden = _side_by_side(rows, w)
        hidden += b
        if share and noise is not None:
            hidden *= _kept(hidden, share, noise)
        hidden.relu_()
        ctx.save_for_backward(rows, w, hidden, v)
        return torch.baddbmm(c, hidden, v)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows = ctx.saved_tensors[0]
        if triton_kernels := _triton(rows):
            gradients = triton_kernels.two_layers_gradient(upstream, ctx.share, ctx.seed, *ctx.saved_tensors)
        else:
            rows, w, hidden, v = ctx.saved_tensors
            inner = torch.bmm(upstream, v.transpose(1, 2) * (1 / (1 - ctx.share)))
            inner = torch.ops.aten.threshold_backward(inner, hidden, 0)
            gradients = (
                torch.bmm(inner, w.transpose(1, 2)),
                _side_by_side(rows.transpose(1, 2), inner).contiguous(),
                inner.sum(1, keepdim=True),
                torch.bmm(hidden.transpose(1, 2), upstream),
                upstream.sum(1, keepdim=True),
            )
        return *(part.sum_to_size(shape) for part, shape in zip(gradients, ctx.shapes, strict=True)), None, None


def _side_by_side(rows: Tensor, maps: Tensor) -> Tensor:
    """[g, n, k] rows [g, n, d] @ maps [g, d, k], as one product where all groups have the same rows."""
    if len(rows) == 1 or rows.stride(0) != 0:
        return torch.bmm(rows, maps)
    groups, size, width = maps.shape
    product = rows[0] @ maps.transpose(0, 1).reshape(size, groups * width)
    return product.view(-1, groups, width).transpose(0, 1)


def _kept(rows: Tensor, share: float, noise: torch.Generator) -> Tensor:
    """Dropout mask: 0 with probability `share`, else 1 / (1 - share); by 16 random bits per value."""
    words = torch.empty((rows.numel() + 3) // 4, dtype=torch.int64, device=rows.device)
    bits = words.random_(-(2**63), None, generator=noise).view(torch.int16)[: rows.numel()]
    kept = bits >= round(share * 2**16) - 2**15
    return kept.view(rows.shape) * (1 / (1 - share))


class _LogPartition(torch.autograd.Function):
    """Recomputes a softmax that is too large to keep in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        if rows.shape[1] <= NARROW and (triton_kernels := _triton(rows)):
            partition: Tensor = triton_kernels.log_partition(rows, table, bias)
            ctx.save_for_backward(rows, table, bias, partition)
            return partition
        ctx.kept = len(rows) * len(table) <= KEPT
        blocks, partitions = _logits(rows, table, bias, KEPT if ctx.kept else _block(rows)), []
        for _, logits in blocks:
            greatest = logits.amax(1, keepdim=True)
            partitions.append(logits.sub_(greatest).exp_().sum(1).log_().add_(greatest[:, 0]))
        partition = torch.cat(partitions)
        masses = (logits, greatest[:, 0]) if ctx.kept else ()
        ctx.save_for_backward(rows, table, bias, partition, *masses)
        return partition

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, table, bias, partition, *masses = ctx.saved_tensors
        if rows.shape[1] <= NARROW and (triton_kernels := _triton(rows)):
            d_rows, d_table, d_bias = triton_kernels.log_partition_gradient(rows, table, bias, partition, upstream)
            return d_rows, d_table, d_bias
        if ctx.kept:  # exp(logits - greatest): the softmax up to a factor of each row
            upstream = upstream * torch.exp(masses[1] - partition)
            blocks = iter([(slice(None), masses[0])])
        else:
            blocks = ((part, logits.exp_()) for part, logits in _logits(rows, table, bias, _block(rows), partition))
        d_rows, d_table = torch.empty_like(rows), table.new_zeros(len(table), table.shape[1] + 1)
        pulled = torch.cat([rows, torch.ones_like(partition)[:, None]], 1) * upstream[:, None]
        for part, softmax in blocks:
            torch.mm(softmax, table, out=d_rows[part])
            d_table.addmm_(softmax.T, pulled[part])
        return d_rows * upstream[:, None], d_table[:, :-1].contiguous(), d_table[:, -1].contiguous()


def _block(rows: Tensor) -> int:
    return GPU_BLOCK if rows.is_cuda else BLOCK


def _logits(
    rows: Tensor, table: Tensor, bias: Tensor, cells: int, less: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows and their logits, at most `cells`, minus `less` [b]; the caller may overwrite them.

    Bias and `less` are further columns of the factors, which saves another pass over the logits.
    """
    one, subtracted = torch.ones_like(rows[:, :1]), torch.zeros_like(rows[:, 0]) if less is None else -less
    left = torch.cat([rows, one, subtracted[:, None]], 1)
    right = torch.cat([table, bias[:, None], torch.ones_like(bias)[:, None]], 1).T
    size = max(LEAST, cells // max(1, len(table)))
    buffer = rows.new_empty(min(size, len(rows)), len(table))
    for begin in range(0, len(rows), size):
        part = slice(begin, min(begin + size, len(rows)))
        yield part, torch.mm(left[part], right, out=buffer[: part.stop - part.start])


class _ListedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, user: Tensor, offset: Tensor, item: Tensor, bias: Tensor, lists: Tensor) -> Tensor:
        if triton_kernels := _triton(user):
            ctx.save_for_backward(user, item, lists)
            scores: Tensor = triton_kernels.listed_scores(user, offset, item, bias, lists)
            return scores
        ctx.size, width = user.shape[2], -(user.shape[2] + 2) % 8  # rows of whole vector registers are faster
        none, nor = (side.new_zeros(*side.shape[:2], width) for side in (user, item))
        user = torch.cat([user, offset[..., None], torch.ones_like(offset)[..., None], none], 2)
        item = torch.cat([item, torch.ones_like(bias)[..., None], bias[..., None], nor], 2)
        ctx.save_for_backward(user, item, lists)
        return torch.stack([_scores_of(user[g], item[g], lists) for g in range(len(user))])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        user, item, lists = ctx.saved_tensors
        if triton_kernels := _triton(user):
            return *triton_kernels.listed_scores_gradient(user, item, lists, upstream.contiguous()), None
        d_user, d_item = torch.empty_like(user), torch.empty_like(item)
        for g in range(len(user)):
            d_user[g] = F.embedding_bag(lists, item[g], per_sample_weights=upstream[g], mode="sum")
            d_item[g] = _transposed_product(upstream[g], lists, user[g], item.shape[1])
        size = ctx.size
        return d_user[..., :size], d_user[..., size], d_item[..., :size], d_item[..., size + 1], None


def _scores_of(user: Tensor, item: Tensor, lists: Tensor) -> Tensor:
    """[b, L] scores of one group: a matrix product sampled at the listed items."""
    if user.device.type != "cpu" or lists.shape[1] <= FEW:
        return torch.einsum("bd,bld->bl", user, item[lists])
    ends = torch.arange(len(lists) + 1, dtype=lists.dtype) * lists.shape[1]
    shape = (len(lists), len(item))
    cells = _quiet_csr(ends, lists.flatten(), user.new_zeros(lists.numel()), shape, check_invariants=False)
    sampled: Tensor = torch.sparse.sampled_addmm(cells, user, item.T, beta=0.0).values()
    return sampled.view(lists.shape)


def _transposed_product(values: Tensor, lists: Tensor, user: Tensor, n_items: int) -> Tensor:
    """[n, d] sum of values_bl user_b over all (b, l) that list the item."""
    if user.device.type != "cpu":
        rows = values.reshape(-1, 1) * user.repeat_interleave(lists.shape[1], 0)
        return user.new_zeros(n_items, user.shape[1]).index_add_(0, lists.flatten(), rows)
    ends = torch.arange(len(lists) + 1, dtype=torch.int32) * lists.shape[1]
    cells = (values.numpy().ravel(), lists.to(torch.int32).numpy().ravel(), ends.numpy())
    product: Tensor = torch.from_numpy(csr_array(cells, shape=(len(lists), n_items)).T @ user.numpy())
    return product


def _triton(tensor: Tensor) -> Any:
    """The Triton kernels, where they support a tensor; else None."""
    return _triton_kernels() if tensor.is_cuda and tensor.dtype == torch.float32 else None


@cache
def _triton_kernels() -> Any:
    return import_module("concf.reference.triton_kernels") if find_spec("triton") else None


def take_rows(table: Tensor, ids: Tensor) -> Tensor:
    """[g, n, d], [b] -> [g, b, d]; the gradient is a scatter-add without a sort."""
    return take_from([table], [ids])


def take_from(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> Tensor:
    """[g, b + c + ..., d] rows of the first table [g, n, d] at its ids [b], of the second at its ids [c], ..."""
    rows: Tensor = _TakeRows.apply(len(tables), *tables, *ids)  # type: ignore[no-untyped-call]
    return rows


def sum_of_gradients(own: Tensor, more: Tensor | None, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """([g, n, d], [g], [g]) total = own + more, and |total|^2 and <own, total> of each group.

    own: [g, n, d]; more: [h, n, d] of the groups from `first` on; None: 0
    """
    total = own
    if more is not None:
        total = own.clone()
        total[first : first + len(more)] += more
    squares = _products(total, total)
    return total, squares, squares if more is None else _products(own, total)


def _products(one: Tensor, other: Tensor) -> Tensor:
    """[g] inner product of each group [n, d]."""
    return torch.stack(list(map(torch.dot, one.flatten(1), other.flatten(1))))


def _add_rows(rows: Tensor, ids: Tensor, n: int) -> Tensor:
    """[g, b, d], [b] -> [g, n, d]: scatter-add the rows."""
    groups, _, size = rows.shape
    flat = (torch.arange(groups, device=rows.device)[:, None] * n + ids).reshape(-1, 1).expand(-1, size)
    return rows.new_zeros(groups * n, size).scatter_add_(0, flat, rows.reshape(-1, size)).view(groups, n, size)


class _TakeRows(torch.autograd.Function):
    """Rows of expanded tables (stride 0) are gathered once; each copy has its own gradient."""

    @staticmethod
    def forward(ctx: Any, n: int, *parts: Tensor) -> Tensor:
        tables, ids = parts[:n], parts[n:]
        ctx.save_for_backward(*ids)
        ctx.lengths = [table.shape[1] for table in tables]
        copies = all(table.stride(0) == 0 for table in tables)
        sources = [table[:1] if copies else table for table in tables]
        rows = [source.index_select(1, at) for source, at in zip(sources, ids, strict=True)]
        taken = rows[0] if n == 1 else torch.cat(rows, 1)
        return taken.expand(len(tables[0]), -1, -1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        ids = ctx.saved_tensors
        parts = torch.split(upstream, [len(at) for at in ids], 1)
        added = [_add_rows(part, at, n) for part, at, n in zip(parts, ids, ctx.lengths, strict=True)]
        return None, *added, *(None for _ in ids)
