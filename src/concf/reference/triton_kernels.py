"""The inner loops of `kernels` for a GPU, in float32; products inside a tile may use TF32.

A captured step of `reference` on an H200, CiteULike `paper` / Gowalla (benchmarks/results/compiled.jsonl): with every
formula compiled 1.79 / 3.18 ms. A kernel for the log-partition alone saves 0.40 / 0.98 ms of that, one for the two
layers alone 0.53 / 0.84; with both, one for the listed scores saves 0.67 / 0.70 ms compared with plain code. Three more
kernels, now plain PyTorch, saved 0.24 / 0.42 ms together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 64, 64  # a tile of logits
PROGRAMS = 512  # programs that keep a GPU busy
LAYER_SPLITS = 128  # programs that share the rows of a layer's gradient


def _tf() -> str:
    """Precision of tile products: that of PyTorch's own matrix products."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _padded(size: int) -> int:
    """Padded length of a vector in a tile product."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def _tile(
    rows, table, bias, row, column, n_rows, n_columns, size: tl.constexpr, padded: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    """Load the vectors of a tile's rows and columns, and compute its logits, -inf outside the catalogue."""
    dim = tl.arange(0, padded)
    inside = dim[None, :] < size
    left = tl.load(rows + row[:, None] * size + dim[None, :], (row[:, None] < n_rows) & inside, 0.0)
    right = tl.load(table + column[:, None] * size + dim[None, :], (column[:, None] < n_columns) & inside, 0.0)
    offset = tl.load(bias + column, column < n_columns, float("-inf"))
    return left, right, tl.dot(left, tl.trans(right), input_precision=TF) + offset[None, :]


@triton.jit
def _partition_kernel(
    rows, table, bias, greatest, total, n_rows, n_columns, span, size: tl.constexpr, padded: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    row, split = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1)
    high, mass = tl.full([R], float("-inf"), tl.float32), tl.zeros([R], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_columns), C):
        column = begin + tl.arange(0, C)
        _, _, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded, TF)
        higher = tl.maximum(high, tl.max(logits, 1))
        mass = mass * tl.exp(high - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        high = higher
    tl.store(greatest + split * n_rows + row, high, row < n_rows)
    tl.store(total + split * n_rows + row, mass, row < n_rows)


@triton.jit
def _rows_gradient_kernel(
    rows, table, bias, partition, upstream, parts, n_rows, n_columns, span, size: tl.constexpr, padded: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    row, split = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1)
    z = tl.load(partition + row, row < n_rows, 0.0)
    gradient = tl.zeros([R, padded], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_columns), C):
        column = begin + tl.arange(0, C)
        _, right, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded, TF)
        gradient += tl.dot(tl.exp(logits - z[:, None]), right, input_precision=TF)
    gradient *= tl.load(upstream + row, row < n_rows, 0.0)[:, None]
    dim = tl.arange(0, padded)
    target = parts + (split * n_rows + row[:, None]) * size + dim[None, :]
    tl.store(target, gradient, (row[:, None] < n_rows) & (dim[None, :] < size))


@triton.jit
def _table_gradient_kernel(
    rows, table, bias, partition, upstream, d_table, d_bias, n_rows, n_columns, span, size: tl.constexpr,
    padded: tl.constexpr, R: tl.constexpr, C: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    column, split = tl.program_id(0) * C + tl.arange(0, C), tl.program_id(1)
    gradient, bias_gradient = tl.zeros([C, padded], tl.float32), tl.zeros([C], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_rows), R):
        row = begin + tl.arange(0, R)
        left, _, logits = _tile(rows, table, bias, row, column, n_rows, n_columns, size, padded, TF)
        z = tl.load(partition + row, row < n_rows, 0.0)
        softmax = tl.exp(logits - z[:, None]) * tl.load(upstream + row, row < n_rows, 0.0)[:, None]
        gradient += tl.dot(tl.trans(softmax), left, input_precision=TF)
        bias_gradient += tl.sum(softmax, 0)
    dim = tl.arange(0, padded)
    inside = (column[:, None] < n_columns) & (dim[None, :] < size)
    cell = split * n_columns + column
    tl.store(d_table + cell[:, None] * size + dim[None, :], gradient, inside)
    tl.store(d_bias + cell, bias_gradient, column < n_columns)


def _splits(n: int, n_others: int) -> tuple[int, int]:
    """(splits, entries per split) of n entries, so that n_others blocks times the splits keep the GPU busy."""
    span = triton.cdiv(triton.cdiv(n, max(1, PROGRAMS // n_others)), COLUMNS) * COLUMNS
    return triton.cdiv(n, span), span


def log_partition(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """See `kernels.log_partition`."""
    rows, table, (n_rows, size) = rows.contiguous(), table.contiguous(), rows.shape
    blocks = triton.cdiv(n_rows, ROWS)
    splits, span = _splits(len(table), blocks)
    greatest, total = (rows.new_empty(splits, n_rows) for _ in range(2))
    _partition_kernel[(blocks, splits)](
        rows, table, bias, greatest, total, n_rows, len(table), span, size, _padded(size), ROWS, COLUMNS, _tf()
    )
    return (greatest + total.log()).logsumexp(0)


def log_partition_gradient(
    rows: Tensor, table: Tensor, bias: Tensor, partition: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by rows, table and bias."""
    rows, table, upstream, (n_rows, size) = rows.contiguous(), table.contiguous(), upstream.contiguous(), rows.shape
    tables, sizes = (rows, table, bias, partition, upstream), (size, _padded(size), ROWS, COLUMNS, _tf())
    blocks = triton.cdiv(n_rows, ROWS)
    splits, span = _splits(len(table), blocks)
    d_rows = rows.new_empty(splits, n_rows, size)
    _rows_gradient_kernel[(blocks, splits)](*tables, d_rows, n_rows, len(table), span, *sizes)
    blocks = triton.cdiv(len(table), COLUMNS)
    splits, span = _splits(n_rows, blocks)
    d_table, d_bias = rows.new_empty(splits, *table.shape), rows.new_empty(splits, len(table))
    _table_gradient_kernel[(blocks, splits)](*tables, d_table, d_bias, n_rows, len(table), span, *sizes)
    return d_rows.sum(0), d_table.sum(0), d_bias.sum(0)


@triton.jit
def _listed_kernel(
    user, offset, item, bias, lists, scores, n_rows, n_items, length, size: tl.constexpr, P: tl.constexpr,
    L: tl.constexpr
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    dim, entry = tl.arange(0, P), tl.arange(0, L)
    listed = group * n_items + tl.load(lists + row * length + entry, entry < length, 0)
    user_row = tl.load(user + (group * n_rows + row) * size + dim, dim < size, 0.0)
    item_rows = tl.load(item + listed[:, None] * size + dim[None, :], dim[None, :] < size, 0.0)
    score = tl.sum(item_rows * user_row[None, :], 1) + tl.load(offset + group * n_rows + row) + tl.load(bias + listed)
    tl.store(scores + (group * n_rows + row) * length + entry, score, entry < length)


@triton.jit
def _listed_gradient_kernel(
    user, item, lists, upstream, d_user, d_offset, d_item, d_bias, n_rows, n_items, length, size: tl.constexpr,
    P: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    row, group = tl.program_id(0), tl.program_id(1)
    dim, entry = tl.arange(0, P), tl.arange(0, L)
    listed = group * n_items + tl.load(lists + row * length + entry, entry < length, 0)
    user_row = tl.load(user + (group * n_rows + row) * size + dim, dim < size, 0.0)
    inside = (entry[:, None] < length) & (dim[None, :] < size)
    item_rows = tl.load(item + listed[:, None] * size + dim[None, :], inside, 0.0)
    pull = tl.load(upstream + (group * n_rows + row) * length + entry, entry < length, 0.0)
    tl.store(d_user + (group * n_rows + row) * size + dim, tl.sum(pull[:, None] * item_rows, 0), dim < size)
    tl.store(d_offset + group * n_rows + row, tl.sum(pull, 0))
    tl.atomic_add(d_item + listed[:, None] * size + dim[None, :], pull[:, None] * user_row[None, :], inside)
    tl.atomic_add(d_bias + listed, pull, entry < length)


def _warps(size: int, length: int) -> int:
    """Number of warps such that a program's tile of vectors stays in registers."""
    return 4 if size * length <= 1 << 13 else 16


def listed_scores(user: Tensor, offset: Tensor, item: Tensor, bias: Tensor, lists: Tensor) -> Tensor:
    """See `kernels.listed_scores`."""
    user, offset, item, bias, lists = (part.contiguous() for part in (user, offset, item, bias, lists))
    groups, n_rows, size = user.shape
    scores = user.new_empty(groups, *lists.shape)
    shape = (n_rows, item.shape[1], lists.shape[1], size, _padded(size), triton.next_power_of_2(lists.shape[1]))
    _listed_kernel[(n_rows, groups)](user, offset, item, bias, lists, scores, *shape, num_warps=_warps(*shape[-2:]))
    return scores


def listed_scores_gradient(user: Tensor, item: Tensor, lists: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    """The gradients by user, offset, item and bias."""
    user, item, lists = user.contiguous(), item.contiguous(), lists.contiguous()
    groups, n_rows, size = user.shape
    d_user, d_item = torch.empty_like(user), torch.zeros_like(item)
    d_offset, d_bias = user.new_empty(groups, n_rows), item.new_zeros(item.shape[:2])
    shape = (n_rows, item.shape[1], lists.shape[1], size, _padded(size), triton.next_power_of_2(lists.shape[1]))
    _listed_gradient_kernel[(n_rows, groups)](
        user, item, lists, upstream, d_user, d_offset, d_item, d_bias, *shape, num_warps=_warps(*shape[-2:])
    )  # fmt: skip
    return d_user, d_offset, d_item, d_bias


@triton.jit
def _hidden(
    rows, w, b, group, row, n_rows, s_rows, s_w, s_b, seed, share, size: tl.constexpr, width: tl.constexpr,
    P: tl.constexpr, K: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    """Load a tile of rows [R, P] and the first layer [P, K]; compute hidden units [R, K] after dropout and relu."""
    dim, unit = tl.arange(0, P), tl.arange(0, K)
    inside = dim < size
    x = tl.load(
        rows + group * s_rows + row[:, None] * size + dim[None, :], (row[:, None] < n_rows) & inside[None, :], 0.0
    )
    known = inside[:, None] & (unit[None, :] < width)
    first = tl.load(w + group * s_w + dim[:, None] * width + unit[None, :], known, 0.0)
    offset = tl.load(b + group * s_b + unit, unit < width, 0.0)
    hidden = tl.dot(x, first, input_precision=TF) + offset[None, :]
    if share > 0:
        drawn = tl.rand(tl.load(seed), (group * n_rows + row[:, None]) * K + unit[None, :])
        hidden = tl.where(drawn < share, 0.0, hidden / (1 - share))
    return x, first, tl.maximum(hidden, 0.0)


@triton.jit
def _two_layers_kernel(
    rows, w, b, v, c, out, seed, n_rows, s_rows, s_w, s_b, s_v, s_c, share, size: tl.constexpr, width: tl.constexpr,
    result: tl.constexpr, P: tl.constexpr, K: tl.constexpr, M: tl.constexpr, R: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    row, group = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1).to(tl.int64)
    _, _, hidden = _hidden(rows, w, b, group, row, n_rows, s_rows, s_w, s_b, seed, share, size, width, P, K, TF)
    unit, dim = tl.arange(0, K), tl.arange(0, M)
    known = (unit[:, None] < width) & (dim[None, :] < result)
    second = tl.load(v + group * s_v + unit[:, None] * result + dim[None, :], known, 0.0)
    offset = tl.load(c + group * s_c + dim, dim < result, 0.0)
    encoded = tl.dot(hidden, second, input_precision=TF) + offset[None, :]
    target = out + (group * n_rows + row[:, None]) * result + dim[None, :]
    tl.store(target, encoded, (row[:, None] < n_rows) & (dim[None, :] < result))


@triton.jit
def _two_layers_gradient_kernel(
    rows, w, b, v, upstream, d_rows, parts, seed, n_rows, s_rows, s_w, s_b, s_v, share, span, length,
    size: tl.constexpr, width: tl.constexpr, result: tl.constexpr, P: tl.constexpr, K: tl.constexpr, M: tl.constexpr,
    R: tl.constexpr, TF: tl.constexpr
):  # fmt: skip
    split, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dim, unit, output = tl.arange(0, P), tl.arange(0, K), tl.arange(0, M)
    known = (unit[:, None] < width) & (output[None, :] < result)
    second = tl.load(v + group * s_v + unit[:, None] * result + output[None, :], known, 0.0)
    d_w, d_b = tl.zeros([P, K], tl.float32), tl.zeros([K], tl.float32)
    d_v, d_c = tl.zeros([K, M], tl.float32), tl.zeros([M], tl.float32)
    for begin in range(split * span, min((split + 1) * span, n_rows), R):
        row = begin + tl.arange(0, R)
        x, first, hidden = _hidden(rows, w, b, group, row, n_rows, s_rows, s_w, s_b, seed, share, size, width, P, K, TF)
        there = row[:, None] < n_rows
        pull = tl.load(
            upstream + (group * n_rows + row[:, None]) * result + output[None, :],
            there & (output[None, :] < result),
            0.0,
        )
        inner = tl.dot(pull, tl.trans(second), input_precision=TF)
        inner = tl.where(hidden > 0, inner / (1 - share), 0.0)
        target = d_rows + (group * n_rows + row[:, None]) * size + dim[None, :]
        tl.store(target, tl.dot(inner, tl.trans(first), input_precision=TF), there & (dim[None, :] < size))
        d_w += tl.dot(tl.trans(x), inner, input_precision=TF)
        d_b += tl.sum(inner, 0)
        d_v += tl.dot(tl.trans(tl.where(there, hidden, 0.0)), pull, input_precision=TF)
        d_c += tl.sum(pull, 0)
    start = parts + (split * tl.num_programs(1) + group) * length
    tl.store(start + dim[:, None] * width + unit[None, :], d_w, (dim[:, None] < size) & (unit[None, :] < width))
    tl.store(start + size * width + unit, d_b, unit < width)
    start += size * width + width
    tl.store(start + unit[:, None] * result + output[None, :], d_v, known)
    tl.store(start + width * result + output, d_c, output < result)


def _inner_contiguous(*parts: Tensor) -> list[Tensor]:
    """[g, ...] parts whose groups are contiguous, or one and the same (stride 0)."""
    return [part if part[0].is_contiguous() else part.contiguous() for part in parts]


def two_layers(rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor, share: float, seed: Tensor) -> Tensor:
    """See `kernels.two_layers`."""
    rows, w, b, v, c = parts = _inner_contiguous(rows, w, b, v, c)
    (groups, n_rows, size), width, result = rows.shape, w.shape[2], v.shape[2]
    out = rows.new_empty(groups, n_rows, result)
    strides = [part.stride(0) for part in parts]
    _two_layers_kernel[(triton.cdiv(n_rows, ROWS), groups)](
        *parts, out, seed, n_rows, *strides, share, size, width, result, _padded(size), _padded(width),
        _padded(result), ROWS, _tf()
    )  # fmt: skip
    return out


def two_layers_gradient(
    upstream: Tensor, share: float, seed: Tensor, rows: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor
) -> tuple[Tensor, ...]:
    """The gradients by rows, w, b, v and c, a group each."""
    rows, w, b, v = parts = _inner_contiguous(rows, w, b, v)
    (groups, n_rows, size), width, result = rows.shape, w.shape[2], v.shape[2]
    span = triton.cdiv(triton.cdiv(n_rows, ROWS), LAYER_SPLITS) * ROWS
    splits, lengths = triton.cdiv(n_rows, span), [size * width, width, width * result, result]
    d_rows, partial = rows.new_empty(groups, n_rows, size), rows.new_empty(splits, groups, sum(lengths))
    strides = [part.stride(0) for part in parts]
    _two_layers_gradient_kernel[(splits, groups)](
        *parts, upstream.contiguous(), d_rows, partial, seed, n_rows, *strides, share, span, sum(lengths), size, width,
        result, _padded(size), _padded(width), _padded(result), ROWS, _tf()
    )  # fmt: skip
    shapes = (w.shape, b.shape, v.shape, c.shape)
    gradients = partial.sum(0).split(lengths, 1)
    return d_rows, *(part.reshape(shape).contiguous() for part, shape in zip(gradients, shapes, strict=True))
