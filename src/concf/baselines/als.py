"""Alternating least squares: the objective of iALS, solved for one side at a time.

    L = sum_(u,i) w_ui (t_ui - <x_u, y_i>)^2  +  a sum_u,i <x_u, y_i>^2  +  sum_u p_u |x_u|^2  +  sum_i q_i |y_i|^2

The first sum is over the given pairs, the second over all: a is the weight of an unobserved pair. The penalties grow
with what a row explains, p_u = b (sum_i w_ui + a items), q_i likewise (Rendle et al., 2022). With the items fixed,

    x_u = (M_u + Y_u' W_u Y_u)^-1 Y_u' W_u t_u,   M_u = a Y'Y + p_u.

In the basis of the eigenvectors of Y'Y every M_u is diagonal, and scores do not depend on the basis. A row with fewer
pairs than there are factors is then solved as a system of the size of its pairs (Woodbury's identity),

    x_u = M_u^-1 Y_u' (W_u^-1 + Y_u M_u^-1 Y_u')^-1 t_u,

all others as one of the size of the factors. Rows of similar length are solved together.

A fit on a CPU solves only short rows exactly. Long ones take a few steps of conjugate gradients from the vectors of the
sweep before, preconditioned by M_u: the cost grows with a row's pairs, not their square. New users are solved exactly.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from concf.runtime.executors import blocks_of, each_block, in_blocks, one_thread_each
from concf.runtime.process_group import ALONE, ProcessGroup

CPU_CELLS, GPU_CELLS = 1 << 21, 1 << 27  # numbers in memory per block of rows; on a CPU threads share their cache
LONGER, MORE = 1.2, 3  # a block's longest row has at most LONGER times the pairs of its shortest, or MORE more
SHORT = 24  # on a CPU, a fit does not solve rows with more pairs exactly ...
STEPS = 4  # ... but improves them by this many steps of conjugate gradients
TINY = 1e-37  # positive in single precision
START = 0.1  # length of an item's vector at the start
Array: TypeAlias = np.ndarray[Any, Any]


class Pairs(NamedTuple):
    """The pairs that a side's rows are fitted to. user, item: [n] int64; weight, target: [n], floating point."""

    user: Tensor
    item: Tensor
    weight: Tensor
    target: Tensor

    @classmethod
    def observed(
        cls, train: csr_array, device: torch.device, dtype: torch.dtype = torch.float32, target: float = 1.0
    ) -> Pairs:
        """Every pair of a log [users, items], with its weight and one target: 1, or 0 if it is a log of dislikes."""
        user = np.repeat(np.arange(train.shape[0]), np.diff(train.indptr))
        users, items = (torch.from_numpy(each.astype(np.int64)).to(device) for each in (user, train.indices))
        weight = torch.from_numpy(train.data).to(device, dtype)
        return cls(users, items, weight, torch.full_like(weight, target))

    def by_item(self, first: int, group: ProcessGroup) -> Pairs:
        """Exchange pairs (all-to-all): return those of this rank's items, of all users. first: the first local user."""
        if not group.several:
            return self
        owner, order = (self.item % group.size).sort(stable=True)
        sent = torch.bincount(owner, minlength=group.size)
        counts = group.join(sent).view(group.size, group.size)  # [sender, receiver]
        received = counts[:, group.rank].tolist()
        columns = (self.user + first, *self[1:])
        return Pairs(*(group.exchange(column[order], sent.tolist(), received) for column in columns))

    def and_more(self, others: Pairs) -> Pairs:
        """Concatenate these pairs and others."""
        return Pairs(*(torch.cat(both) for both in zip(self, others, strict=True)))


class Block(NamedTuple):
    """Rows that are solved together.

    rows: [b]; columns: [b, L] the other side of each row's pairs, padded with the number of columns
    root, target: [b, L] square roots of the weights, and targets, padded with 0
    """

    rows: Tensor
    columns: Tensor
    root: Tensor
    target: Tensor


class Basis(NamedTuple):
    """The vectors of the side that is held fixed, in the basis of the eigenvectors of their Gram matrix.

    rotated: [columns + 1, d] rotated vectors, then a zero row for padding; values: [d] eigenvalues; vectors: [d, d]
    """

    rotated: Tensor
    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, fixed: Tensor) -> Basis:
        """Rotate vectors [columns, d] into the eigenbasis of their Gram matrix."""
        grams = in_blocks(lambda rows: fixed[rows].T @ fixed[rows], blocks_of(len(fixed), fixed.device), fixed.device)
        values, basis = torch.linalg.eigh(sum(grams, fixed.new_zeros(fixed.shape[1], fixed.shape[1])).double())
        basis *= basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()  # makes signs unique
        vectors, rotated = basis.to(fixed), fixed.new_zeros(len(fixed) + 1, fixed.shape[1])
        each_block(lambda rows: torch.mm(fixed[rows], vectors, out=rotated[rows]), len(fixed), fixed.device)
        return cls(rotated, values.clamp(min=0).to(fixed), vectors)


class Side:
    """The rows of one side, users or items, in blocks of similar length. weight: [n] the sum of each row's weights."""

    def __init__(self, row: Tensor, column: Tensor, pairs: Pairs, shape: tuple[int, int], factors: int) -> None:
        self.n, n_columns = shape
        self.factors = factors
        # `index_select` takes a third of an index's time, and small keys are sorted faster
        key = row * n_columns + column
        order = (key.int() if self.n * n_columns < 2**31 else key).argsort(stable=True)
        column, weight, target = (each.index_select(0, order) for each in (column, pairs.weight, pairs.target))
        count, root = torch.bincount(row, minlength=self.n), weight.sqrt()
        ends = F.pad(count.cumsum(0), (1, 0))
        self.weight, first = torch.segment_reduce(weight, "sum", offsets=ends, axis=0), ends[:-1]
        by_length = count.sort(stable=True).indices
        self.blocks = []
        for begin, end, length in _blocks(count[by_length].cpu(), factors, column.device):
            rows = by_length[begin:end]
            place = torch.arange(length, device=column.device)
            valid = place < count[rows, None]
            at = (first[rows, None] + place).where(valid, 0).flatten()
            columns, roots, targets = (each.index_select(0, at).view_as(valid) for each in (column, root, target))
            self.blocks.append(Block(rows, columns.where(valid, n_columns), roots * valid, targets * valid))
        self.blocks.sort(key=lambda block: -block.columns.numel())  # so that threads end together

    def solve(self, fixed: Tensor, unobserved: float, penalty: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """([n, d], [columns, d]) improved rows, and the fixed side unchanged, both in the basis of the solution.

        fixed: [columns, d] the other side; penalty: [n]; start: [n, d] the rows so far, in the basis of `fixed`
        """
        basis = Basis.of(fixed)
        return self.solve_in(basis, unobserved, penalty, start), basis.rotated[:-1]

    def solve_in(self, basis: Basis, unobserved: float, penalty: Tensor, start: Tensor | None = None) -> Tensor:
        """[n, d] solve for the rows in a basis; long rows only improve a start [n, d], given in the basis before."""
        rotated, everywhere = basis.rotated, unobserved * basis.values
        solved = rotated.new_zeros(self.n, self.factors)

        def solve(block: Block) -> None:
            diagonal = everywhere + penalty[block.rows, None]
            if start is not None and rotated.device.type == "cpu" and block.columns.shape[1] > SHORT:
                solved[block.rows] = _improve(block, rotated, diagonal, start[block.rows] @ basis.vectors)
            else:
                solved[block.rows] = _solve(block, rotated, diagonal)

        for _ in in_blocks(solve, self.blocks, rotated.device):
            pass
        return solved


class UserSolver:
    """Solve for the vectors of new users, given item vectors [items, d]. unobserved: a; penalty: b"""

    def __init__(self, item: Tensor, unobserved: float, penalty: float) -> None:
        self.shape, self.unobserved, self.penalty = item.shape, unobserved, penalty
        self.basis = Basis.of(item)

    def __call__(self, pairs: Pairs, n_users: int) -> Tensor:
        """[users, d] vectors fitted to the users' pairs."""
        items, factors = self.shape
        if n_users == 1 and self.basis.values.device.type == "cpu":  # in numpy: PyTorch's time for calls would count
            rotated, values, vectors = (each.numpy() for each in self.basis)
            root = np.sqrt(pairs.weight.numpy())
            paired, right = rotated[pairs.item.numpy()] * root[:, None], root * pairs.target.numpy()
            diagonal = self.unobserved * values + self.penalty * (root @ root + self.unobserved * items)
            if len(paired) > factors:
                solved = np.linalg.solve(paired.T @ paired + np.diag(diagonal), right @ paired)
            else:
                scaled = paired / diagonal
                solved = np.linalg.solve(scaled @ paired.T + np.eye(len(paired), dtype=root.dtype), right) @ scaled
            return torch.from_numpy(vectors @ solved)[None]
        side = Side(pairs.user, pairs.item, pairs, (n_users, items), factors)
        penalty = self.penalty * (side.weight + self.unobserved * items)
        return side.solve_in(self.basis, self.unobserved, penalty) @ self.basis.vectors.T


class ALS:
    """Alternating least squares on the pairs of a log.

    pairs: the pairs to fit; shape: (users, items); factors: d; unobserved: a; penalty: b
    group: each rank has the pairs and vectors of its `shape[0]` local users; it solves these, and every `size`-th
           item, whose pairs the others send. All hold all item vectors, and all users' while items are solved
    """

    def __init__(self, pairs: Pairs, shape: tuple[int, int], factors: int, group: ProcessGroup = ALONE) -> None:
        self.pairs, self.shape, self.factors, self.group = pairs, shape, factors, group
        lengths = group.lengths(pairs.weight.new_empty(shape[0]))
        first, self.n_users = sum(lengths[: group.rank]), sum(lengths)
        self.own, theirs = slice(first, first + shape[0]), pairs.by_item(first, group)
        of_users = partial(Side, pairs.user, pairs.item, pairs, shape, factors)
        of_items = partial(Side, theirs.item, theirs.user, theirs, (shape[1], self.n_users), factors)
        self.users, self.items = in_blocks(lambda side: side(), [of_users, of_items], pairs.user.device)

    def start(self, seed: int) -> Tensor:
        """[items, d] random item vectors, drawn on the CPU: the same on every device."""
        random = torch.Generator().manual_seed(seed)
        weight = self.pairs.weight
        drawn: Tensor = torch.randn(self.shape[1], self.factors, generator=random, dtype=weight.dtype)
        return drawn.mul_(START / self.factors**0.5).to(weight.device)

    def penalties(self, unobserved: float, penalty: float) -> tuple[Tensor, Tensor]:
        """([users], [items]) penalties p_u and q_i."""
        items, weights = self.shape[1], (self.users.weight, self.items.weight)
        return penalty * (weights[0] + unobserved * items), penalty * (weights[1] + unobserved * self.n_users)

    @one_thread_each()
    def fit(
        self, start: Tensor | tuple[Tensor, Tensor], unobserved: float, penalty: float, sweeps: int
    ) -> tuple[Tensor, Tensor]:
        """([users, d], [items, d]) vectors after sweeps over users, then items. start: those before, or items alone."""
        of_users, of_items = self.penalties(unobserved, penalty)
        user, item = (start.new_zeros(self.shape[0], self.factors), start) if isinstance(start, Tensor) else start
        for _ in range(sweeps):
            user, item = self.users.solve(item, unobserved, of_users, user)
            item, everyone = self.items.solve(self.group.join(user), unobserved, of_items, item)
            self.group.all_reduce([item])  # a row is nonzero on one rank only, so the sum is exact
            user = everyone[self.own].clone() if self.group.several else everyone
        return user, item

    def fit_users(self, start: tuple[Tensor, Tensor], unobserved: float, penalty: float) -> tuple[Tensor, Tensor]:
        """([users, d], [items, d]) vectors of a fit after another half-sweep, over users."""
        return self.users.solve(start[1], unobserved, self.penalties(unobserved, penalty)[0], start[0])


def _solve(block: Block, rotated: Tensor, diagonal: Tensor) -> Tensor:
    """[b, d] the rows of a block. rotated: [columns + 1, d] the other side; diagonal: [b, d] of M_u."""
    paired, root = F.embedding(block.columns, rotated), block.root  # [b, L, d], [b, L]
    right = root * block.target
    if block.columns.shape[1] > rotated.shape[1]:
        paired *= root[..., None]
        system = torch.bmm(paired.transpose(1, 2), paired)
        system.diagonal(dim1=1, dim2=2).add_(diagonal)
        return _cholesky_solve(system, sums(right, paired))
    scale = diagonal.rsqrt()
    paired *= scale[:, None]
    system = products(paired, paired).mul_(root[..., None]).mul_(root[:, None])
    system.diagonal(dim1=1, dim2=2).add_(1)
    return sums(_cholesky_solve(system, right).mul_(root), paired).mul_(scale)


def _improve(block: Block, rotated: Tensor, diagonal: Tensor, start: Tensor) -> Tensor:
    """[b, d] the rows of a block after STEPS of conjugate gradients from the start [b, d], preconditioned by M_u.

    In numpy: most of the blocks are so small that PyTorch's time for calls would count.
    """
    paired = F.embedding(block.columns, rotated).numpy()  # [b, L, d]
    root, target, m, x = (each.numpy() for each in (block.root, block.target, diagonal, start))
    weight = root * root

    def inner(vectors: Array) -> Any:  # [b, L] Y x
        return np.matmul(paired, vectors[:, :, None])[..., 0]

    def weighted(values: Array) -> Any:  # [b, d] Y' W v
        return np.matmul((weight * values)[:, None], paired)[:, 0]

    def dots(one: Array, other: Array) -> Any:  # [b, 1]
        return np.einsum("bd,bd->b", one, other)[:, None]

    residual = weighted(target - inner(x)) - m * x
    direction = residual / m
    energy = dots(residual, direction)
    for step in range(STEPS):
        curved = weighted(inner(direction)) + m * direction
        length = energy / np.maximum(dots(direction, curved), TINY)  # 0 / 0 where a row is solved
        x = x + length * direction
        if step == STEPS - 1:
            break
        residual -= length * curved
        downhill = residual / m
        before, energy = energy, dots(residual, downhill)
        direction = downhill + energy / np.maximum(before, TINY) * direction
    return torch.from_numpy(x)


def products(one: Tensor, other: Tensor) -> Tensor:
    """[b, L, H] inner products of the rows [b, L, d] and [b, H, d].

    On a CPU, many small products are several times faster in numpy than in PyTorch.
    """
    if one.device.type != "cpu":
        return torch.bmm(one, other.transpose(1, 2))
    return torch.from_numpy(np.matmul(one.numpy(), other.numpy().transpose(0, 2, 1)))


def sums(weight: Tensor, rows: Tensor) -> Tensor:
    """[b, d] sums of rows [b, L, d] with weights [b, L], as fast as `products`."""
    if rows.device.type != "cpu":
        return torch.bmm(weight[:, None], rows)[:, 0]
    return torch.from_numpy(np.matmul(weight.numpy()[:, None], rows.numpy())[:, 0])


def _blocks(lengths: Tensor, factors: int, device: torch.device) -> list[tuple[int, int, int]]:
    """(begin, end, longest) of the blocks of rows with ascending lengths; rows without pairs are in none."""
    cells = CPU_CELLS if device.type == "cpu" else GPU_CELLS
    begin, blocks = int((lengths == 0).sum()), []
    while begin < len(lengths):
        shortest = int(lengths[begin])
        longest = max(int(shortest * LONGER), shortest + MORE)
        longest = min(longest, SHORT) if shortest <= SHORT else longest
        end = int(torch.searchsorted(lengths, longest, right=True))
        longest = int(lengths[end - 1])
        held = longest * factors + min(longest, factors) ** 2
        end = min(end, begin + max(1, cells // held))
        blocks.append((begin, end, int(lengths[end - 1])))
        begin = end
    return blocks


def _cholesky_solve(system: Tensor, right: Tensor) -> Tensor:
    """[b, n] solutions of positive definite systems [b, n, n]; a failure is not raised, but is not finite."""
    return torch.cholesky_solve(right[..., None], torch.linalg.cholesky_ex(system).L)[..., 0]
