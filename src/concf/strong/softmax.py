"""Softmax head: cosine of user and item, a softmax over all items, trained by Adam from given vectors.

L = -sum_(u,i) w_ui log softmax(cos(x_u, .) / t)_i   over the observed pairs and their weights
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.optim.adam import adam

from concf.baselines.als import Pairs
from concf.baselines.neighbours import degrees, runs
from concf.runtime.executors import each_block
from concf.runtime.process_group import ALONE, ProcessGroup

LEARNING_RATE = 0.01
STEPS = 24  # most batches of an epoch, each a share of the users ...
FEWEST_USERS = 64  # ... and fewest users of a batch
LENGTH = 1.6  # initial length of all vectors: Adam moves each dimension by about the learning rate
LEAST_LENGTH = 1e-12  # lower bound of a norm in a denominator
CPU_CELLS, GPU_CELLS = 1 << 25, 1 << 28  # scores in memory at a time
USER_STEPS, USER_STEP = 3, (0.02, 10.0)  # steps for a new user, and the range of their lengths


class Adam:
    """Steps of PyTorch's Adam along given gradients.

    Uses the function of torch.optim: its classes import PyTorch's compiler, which takes as long as a small training.
    """

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables = list(tables)
        self.first, self.second = ([torch.zeros_like(each) for each in tables] for _ in range(2))
        self.steps = [torch.zeros(()) for _ in tables]
        self.fused = not any(each.is_cuda for each in tables)  # a GPU's fused kernel corrects the bias in float32

    @torch.no_grad()
    def step(self, rate: float, gradients: Sequence[Tensor]) -> None:
        """Move the tables at a learning rate."""
        adam(
            self.tables, list(gradients), self.first, self.second, [], self.steps, fused=self.fused,
            foreach=not self.fused, amsgrad=False, beta1=0.9, beta2=0.999, lr=rate, weight_decay=0.0, eps=1e-8,
            maximize=False,
        )  # fmt: skip


def fit_softmax(
    train: csr_array, user: Tensor, item: Tensor, temperature: float, epochs: int, seed: int,
    users: Tensor | None = None, group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fit vectors ([users, d], [items, d]) of length 1. user, item: initial vectors; users: [n] to train on, None: all.

    Each process has the log and vectors of its local users, and computes the gradients of its users of every batch.
    """
    pairs = Pairs.observed(train, user.device, user.dtype)
    count = torch.bincount(pairs.user, minlength=len(user))
    first = count.cumsum(0) - count
    everyone = torch.arange(len(user), device=user.device) if users is None else users
    everyone = everyone[count[everyone] > 0]
    lengths = group.lengths(user)
    begin = sum(lengths[: group.rank])  # offset of the local users
    everyone = group.join(everyone + begin)
    if not len(everyone):
        return F.normalize(user), F.normalize(item)
    vectors = [F.normalize(table) * LENGTH for table in (user, item)]
    optimiser = Adam(vectors)
    random = torch.Generator().manual_seed(seed)
    batches = max(1, min(STEPS, len(everyone) // FEWEST_USERS))
    total, step = epochs * batches, 0
    for _ in range(epochs):
        order = everyone[torch.randperm(len(everyone), generator=random).to(user.device)]
        for batch in order.chunk(batches):
            local = batch[(batch >= begin) & (batch < begin + len(user))] - begin
            row = torch.repeat_interleave(torch.arange(len(local), device=local.device), count[local])
            at = runs(first[local], count[local])
            slopes = gradients(vectors[0], vectors[1], local, row, pairs.item[at], pairs.weight[at], temperature, group)
            optimiser.step(LEARNING_RATE * min(1.0, 2 * (total - step) / total), slopes)  # decays in the second half
            step += 1
    return F.normalize(vectors[0]), F.normalize(vectors[1])


def gradients(
    user: Tensor, item: Tensor, users: Tensor, row: Tensor, items: Tensor, weight: Tensor, temperature: float,
    group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([users, d], [items, d]) gradients of the weighted mean loss over the pairs (users[row], items), row ascending.

    With p_ui the softmax of user u and n_u the sum of the weights of u's pairs, the derivative by the score of item i
    is n_u p_ui - w_ui, over the sum of all weights. Users are taken in blocks whose scores fit into memory. Each
    process has its local users and their pairs.
    """
    device, rows = user.device, user[users]
    user_dirs, item_dirs = F.normalize(rows), F.normalize(item)
    count = torch.bincount(row, minlength=len(rows))
    ends, mass = [0, *count.cumsum(0).tolist()], weight.new_zeros(len(rows)).index_add_(0, row, weight)
    d_rows, d_item = torch.zeros_like(user_dirs), torch.zeros_like(item_dirs)
    size = max(1, (CPU_CELLS if device.type == "cpu" else GPU_CELLS) // len(item))
    for first in range(0, len(rows), size):
        chunk = slice(first, min(first + size, len(rows)))
        slope = user_dirs.new_empty(chunk.stop - first, len(item))

        def at_users(block: slice, slope: Tensor = slope, first: int = first) -> None:
            at = slice(first + block.start, first + block.stop)
            pairs = slice(ends[at.start], ends[at.stop])
            part = torch.mm(user_dirs[at], item_dirs.T, out=slope[block]).div_(temperature)
            torch.softmax(part, 1, out=part).mul_(mass[at, None])
            cells = (row[pairs] - at.start) * len(item) + items[pairs]
            part.view(-1).index_add_(0, cells, weight[pairs], alpha=-1)
            d_rows[at] = _through_norm(part @ item_dirs, user_dirs[at], rows[at])

        def at_items(block: slice, slope: Tensor = slope, chunk: slice = chunk) -> None:
            d_item[block].addmm_(slope[:, block].T, user_dirs[chunk])

        each_block(at_users, len(slope), device)
        each_block(at_items, len(item), device)
    total = weight.sum(dtype=torch.float64)
    group.all_reduce([total])
    group.all_reduce([d_item])
    scale = 1 / (temperature * float(total))

    def finish(block: slice) -> None:
        d_item[block] = _through_norm(d_item[block], item_dirs[block], item[block]).mul_(scale)

    each_block(finish, len(item), device)
    return torch.zeros_like(user).index_copy_(0, users, d_rows.mul_(scale)), d_item


def _through_norm(slope: Tensor, direction: Tensor, vector: Tensor) -> Tensor:
    """[n, d] gradient by vectors, from the gradient by their directions."""
    along: Tensor = (slope * direction).sum(1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=LEAST_LENGTH)
    return (slope - along * direction) / length


class UserSoftmax:
    """Directions of new users that minimise L for fixed item vectors [items, d].

    With m the weighted mean direction of a history and p the softmax, users move along the tangential part of
    m - sum_j p_j y_j, each with its own step length from the last two gradients (Barzilai and Borwein, 1988). The best
    vector of all steps is kept.
    """

    def __init__(self, item: Tensor, temperature: float) -> None:
        self.item: NDArray[np.float32] = F.normalize(item).numpy()  # for few users, numpy is much faster than PyTorch
        self.temperature = temperature

    def __call__(self, histories: csr_array, steps: int = USER_STEPS) -> Tensor:
        """[users, d] vectors of length 1 for histories [users, items]; 0 for an empty history."""
        mean = np.asarray(histories @ self.item / degrees(histories)[0][:, None], np.float32)
        current = best = _unit(mean)
        least, step = np.full((len(mean), 1), np.inf, np.float32), np.ones((len(mean), 1), np.float32)
        before: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        for turn in range(steps + 1):
            odds = current @ self.item.T
            odds -= 1  # the largest cosine
            odds /= self.temperature
            total = np.exp(odds, out=odds).sum(1, keepdims=True)
            loss = np.log(total) - _dots(current, mean) / self.temperature
            best, least = np.where(loss < least, current, best), np.minimum(loss, least)
            if turn == steps:
                break
            slope = mean - odds @ self.item / total
            slope -= _dots(slope, current) * current
            if before is not None:
                moved, bent = current - before[0], before[1] - slope
                both, long, short = _dots(moved, bent), _dots(moved, moved), _dots(bent, bent)
                length = both / np.maximum(short, LEAST_LENGTH) if turn % 2 else long / np.where(both > 0, both, 1)
                step = np.where(both > 0, length.clip(*USER_STEP), step)
            before, current = (current, slope), _unit(current + step * slope)
        return torch.from_numpy(best)


def _dots(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, 1] inner products of the rows [n, d]."""
    return np.asarray(np.einsum("ud,ud->u", one, other)[:, None])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """[n, d] vectors of length 1; 0 stays 0."""
    return np.asarray(vectors / np.maximum(np.sqrt(_dots(vectors, vectors)), LEAST_LENGTH))
