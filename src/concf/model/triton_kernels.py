"""The inner loops of `kernels` for a GPU, in float32; products inside a tile may use TF32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64  # a tile of logits
SPLITS = 16  # programs that share a block of rows


def _padded(size: int) -> int:
    """Of a vector in a tile product."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def _tile(rows, table, bias, row, column, n_rows, n_columns, size: tl.constexpr, padded: tl.constexpr):  # type: ignore[no-untyped-def]
    """The vectors of a tile's rows and columns, and its logits, -inf outside the catalogue."""
    place = tl.arange(0, padded)
    inside = place[None, :] < size
    left = tl.load(rows + row[:, None] * size + place[None, :], (row[:, None] < n_rows) & inside, 0.0)
    right = tl.load(table + column[:, None] * size + place[None, :], (column[:, None] < n_columns) & inside, 0.0)
    offset = tl.load(bias + column, column < n_columns, float("-inf"))
    return left, right, tl.dot(left, tl.trans(right), input_precision="tf32") + offset[None, :]


@triton.jit
def _partition_kernel(
    rows,
    table,
    bias,
    greatest,
    total,
    n_rows,
    n_columns,
    span,
    size: tl.constexpr,
    padded: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # type: ignore[no-untyped-def]
    row, split = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1)
    high, mass = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_columns), C):
        column = begin + tl.arange(0, C)
        _, _, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded)
        higher = tl.maximum(high, tl.max(logits, 1))
        mass = mass * tl.exp(high - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        high = higher
    tl.store(greatest + split * n_rows + row, high, row < n_rows)
    tl.store(total + split * n_rows + row, mass, row < n_rows)


@triton.jit
def _rows_gradient_kernel(
    rows,
    table,
    bias,
    partition,
    upstream,
    parts,
    n_rows,
    n_columns,
    span,
    size: tl.constexpr,
    padded: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # type: ignore[no-untyped-def]
    row, split = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1)
    z = tl.load(partition + row, row < n_rows, 0.0)
    gradient = tl.zeros([R, padded], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_columns), C):
        column = begin + tl.arange(0, C)
        _, right, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded)
        gradient += tl.dot(tl.exp(logits - z[:, None]), right, input_precision="tf32")
    gradient *= tl.load(upstream + row, row < n_rows, 0.0)[:, None]
    place = tl.arange(0, padded)
    target = parts + (split * n_rows + row[:, None]) * size + place[None, :]
    tl.store(target, gradient, (row[:, None] < n_rows) & (place[None, :] < size))


@triton.jit
def _table_gradient_kernel(
    rows,
    table,
    bias,
    partition,
    upstream,
    d_table,
    d_bias,
    n_rows,
    n_columns,
    size: tl.constexpr,
    padded: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * C + tl.arange(0, C)
    gradient, bias_gradient = tl.zeros([C, padded], tl.float32), tl.zeros([C], tl.float32)
    for begin in range(0, n_rows, R):
        row = begin + tl.arange(0, R)
        left, _, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded)
        z = tl.load(partition + row, row < n_rows, 0.0)
        softmax = tl.exp(logits - z[:, None]) * tl.load(upstream + row, row < n_rows, 0.0)[:, None]
        gradient += tl.dot(tl.trans(softmax), left, input_precision="tf32")
        bias_gradient += tl.sum(softmax, 0)
    place = tl.arange(0, padded)
    inside = (column[:, None] < n_columns) & (place[None, :] < size)
    tl.store(d_table + column[:, None] * size + place[None, :], gradient, inside)
    tl.store(d_bias + column, bias_gradient, column < n_columns)


def _grid(n_rows: int, n_columns: int) -> tuple[tuple[int, int], int]:
    """Programs, and columns of each: as many splits as keep the card busy."""
    span = triton.cdiv(triton.cdiv(n_columns, SPLITS), COLUMNS) * COLUMNS
    return (triton.cdiv(n_rows, ROWS), triton.cdiv(n_columns, span)), span


def log_partition(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """See `kernels.log_partition`."""
    rows, table, (n_rows, size) = rows.contiguous(), table.contiguous(), rows.shape
    grid, span = _grid(n_rows, len(table))
    greatest, total = (rows.new_empty(grid[1], n_rows) for _ in range(2))
    _partition_kernel[grid](
        rows, table, bias, greatest, total, n_rows, len(table), span, size, _padded(size), ROWS, COLUMNS
    )
    return (greatest + total.log()).logsumexp(0)


def log_partition_gradient(
    rows: Tensor, table: Tensor, bias: Tensor, partition: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by rows, table and bias."""
    rows, table, upstream, (n_rows, size) = rows.contiguous(), table.contiguous(), upstream.contiguous(), rows.shape
    grid, span = _grid(n_rows, len(table))
    parts, d_table, d_bias = rows.new_empty(grid[1], n_rows, size), torch.empty_like(table), torch.empty_like(bias)
    shape = (n_rows, len(table), span, size, _padded(size), ROWS, COLUMNS)
    _rows_gradient_kernel[grid](rows, table, bias, partition, upstream, parts, *shape)
    _table_gradient_kernel[(triton.cdiv(len(table), COLUMNS),)](
        rows, table, bias, partition, upstream, d_table, d_bias, *shape[:2], *shape[3:]
    )
    return parts.sum(0), d_table, d_bias


@triton.jit
def _listed_kernel(
    user, item, lists, scores, n_rows, n_items, length, size: tl.constexpr, padded: tl.constexpr, L: tl.constexpr
):  # type: ignore[no-untyped-def]
    row, group = tl.program_id(0), tl.program_id(1)
    place, entry = tl.arange(0, padded), tl.arange(0, L)
    listed = tl.load(lists + row * length + entry, entry < length, 0)
    mine = tl.load(user + (group * n_rows + row) * size + place, place < size, 0.0)
    theirs = tl.load(item + (group * n_items + listed[:, None]) * size + place[None, :], place[None, :] < size, 0.0)
    tl.store(scores + (group * n_rows + row) * length + entry, tl.sum(theirs * mine[None, :], 1), entry < length)


@triton.jit
def _listed_gradient_kernel(
    user,
    item,
    lists,
    upstream,
    d_user,
    d_item,
    n_rows,
    n_items,
    length,
    size: tl.constexpr,
    padded: tl.constexpr,
    L: tl.constexpr,
):  # type: ignore[no-untyped-def]
    row, group = tl.program_id(0), tl.program_id(1)
    place, entry = tl.arange(0, padded), tl.arange(0, L)
    listed = tl.load(lists + row * length + entry, entry < length, 0)
    mine = tl.load(user + (group * n_rows + row) * size + place, place < size, 0.0)
    at = (group * n_items + listed[:, None]) * size + place[None, :]
    inside = (entry[:, None] < length) & (place[None, :] < size)
    theirs = tl.load(item + at, inside, 0.0)
    pull = tl.load(upstream + (group * n_rows + row) * length + entry, entry < length, 0.0)
    tl.store(d_user + (group * n_rows + row) * size + place, tl.sum(pull[:, None] * theirs, 0), place < size)
    tl.atomic_add(d_item + at, pull[:, None] * mine[None, :], inside)


def listed_scores(user: Tensor, item: Tensor, lists: Tensor) -> Tensor:
    """See `kernels.listed_scores`."""
    user, item, lists = user.contiguous(), item.contiguous(), lists.contiguous()
    groups, n_rows, size = user.shape
    scores = user.new_empty(groups, *lists.shape)
    shape = (n_rows, item.shape[1], lists.shape[1], size, _padded(size), triton.next_power_of_2(lists.shape[1]))
    _listed_kernel[(n_rows, groups)](user, item, lists, scores, *shape)
    return scores


def listed_scores_gradient(user: Tensor, item: Tensor, lists: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by user and item."""
    user, item, lists = user.contiguous(), item.contiguous(), lists.contiguous()
    groups, n_rows, size = user.shape
    d_user, d_item = torch.empty_like(user), torch.zeros_like(item)
    shape = (n_rows, item.shape[1], lists.shape[1], size, _padded(size), triton.next_power_of_2(lists.shape[1]))
    _listed_gradient_kernel[(n_rows, groups)](user, item, lists, upstream, d_user, d_item, *shape)
    return d_user, d_item
