"""Rows of tables, taken and given their gradients back; and what groups of such gradients add up to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def take_rows(table: Tensor, places: Tensor) -> Tensor:
    """[g, n, d], [b] -> [g, b, d]; the gradients of a row that is taken twice add up, without a sort."""
    return take_from([table], [places])


def take_from(tables: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """[g, b + c + ..., d] rows of the first table [g, n, d] at its places [b], of the second at its places [c], ..."""
    rows: Tensor = _TakeRows.apply(len(tables), *tables, *places)  # type: ignore[no-untyped-call]
    return rows


def take_and_part(tables: Tensor, places: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`take_rows`, and each of the tables [n, d] by itself; their gradients add up in one tensor of their size."""
    rows, *parts = _TakeAndPart.apply(tables, places)  # type: ignore[no-untyped-call]
    return rows, tuple(parts)


def sums_of_groups(mine: Tensor, more: Tensor | None, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """([n, d], [g], [g]) of whole = mine + more: the sum over groups, |whole|^2 and <mine, whole> of each.

    mine: [g, n, d]; more: [h, n, d] of the groups `first` and on, nothing for the others
    """
    whole = mine
    if more is not None:
        whole = mine.clone()
        whole[first : first + len(more)] += more
    squares = _products(whole, whole)
    return whole.sum(0), squares, squares if more is None else _products(mine, whole)


def added_groups(mine: Tensor, more: Tensor | None, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """([g, n, d], [g], [g]) the same of groups that are not summed: mine becomes the whole."""
    products = _products(mine, mine)
    if more is None:
        return mine, products, products
    both, squares = slice(first, first + len(more)), products.clone()
    products[both] += _products(mine[both], more)
    mine[both] += more
    squares[both] = _products(mine[both], mine[both])
    return mine, squares, products


def _products(one: Tensor, other: Tensor) -> Tensor:
    """[g] the inner product of each group [n, d]."""
    return torch.stack(list(map(torch.dot, one.flatten(1), other.flatten(1))))


def _add_rows(rows: Tensor, places: Tensor, n: int, total: Tensor | None = None) -> Tensor:
    """[g, b, d], [b] -> [g, n, d]: each row added at its place, to 0 or the total."""
    groups, _, size = rows.shape
    total = rows.new_zeros(groups * n, size) if total is None else total.view(groups * n, size)
    flat = (torch.arange(groups, device=rows.device)[:, None] * n + places).reshape(-1, 1).expand(-1, size)
    return total.scatter_add_(0, flat, rows.reshape(-1, size)).view(groups, n, size)


class _TakeRows(torch.autograd.Function):
    """Copies of one table (stride 0) give copies of one block of rows; each copy has a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, n: int, *parts: Tensor) -> Tensor:
        tables, places = parts[:n], parts[n:]
        ctx.save_for_backward(*places)
        ctx.lengths = [table.shape[1] for table in tables]
        copies = all(table.stride(0) == 0 for table in tables)
        sources = [table[:1] if copies else table for table in tables]
        rows = [source.index_select(1, at) for source, at in zip(sources, places, strict=True)]
        taken = rows[0] if n == 1 else torch.cat(rows, 1)
        return taken.expand(len(tables[0]), -1, -1)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        places = ctx.saved_tensors
        parts = torch.split(upstream, [len(at) for at in places], 1)
        added = [_add_rows(part, at, n) for part, at, n in zip(parts, places, ctx.lengths, strict=True)]
        return None, *added, *(None for _ in places)


class _TakeAndPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tables: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(places)
        ctx.shape = tables.shape
        ctx.set_materialize_grads(False)
        source = tables[:1] if tables.stride(0) == 0 else tables
        return source.index_select(1, places).expand(len(tables), -1, -1), *tables.unbind()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, *parts: Tensor | None) -> tuple[Tensor | None, None]:
        (places,), (_, n, size) = ctx.saved_tensors, ctx.shape
        there = [each for each in parts if each is not None]
        total = None
        if there:
            total = torch.stack([there[0].new_zeros(n, size) if each is None else each for each in parts])
        return total if upstream is None else _add_rows(upstream, places, n, total), None
