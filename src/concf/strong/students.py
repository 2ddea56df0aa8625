"""Distillation: one head that ranks as the consensus does.

The student is first fitted by least squares: every user's consensus list joins the observed pairs, with targets that
decrease with the rank, and ALS fits both (`baselines/als.py`). Then a few epochs of the consensus loss itself (Eq. 13,
14) fine-tune the order of the first ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS, Pairs, products, sums
from concf.consensus.listwise import listwise
from concf.runtime.executors import blocks_of, in_blocks
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong.softmax import Adam

LOWEST_TARGET = 0.3  # target of the last listed item; the first has 1
LENGTH = 150  # items of a list that the regression learns: all that are re-ranked
LISTED_WEIGHT = 3.0  # weight of a listed pair; an observed one has 1
SOLVED_BY = {"unobserved": 0.03, "penalty": 0.003}  # settings of ALS
USUAL = SOLVED_BY | {"listed": LISTED_WEIGHT}  # settings of the least squares
CLOSER_WEIGHT = 30.0  # of a listed pair where the usual settings lose too much of the consensus: see `closer`
TAUGHT = 50  # N of Eq. 14: ranks that the consensus loss orders; later ranks are only in its denominators
SCALE = 30.0  # logits of the consensus loss are scores times this; scores are between 0 and 1
RIDGE = 1.0  # penalty of a squared weight, times the number of users; features have mean square 1
RIDGE_USERS = 1 << 14  # users of a block
LEARNING_RATE, BATCHES, USERS = 0.001, 12, 256  # batches of an epoch, and the fewest users of one


def closer(als: Mapping[str, float], log: csr_array) -> dict[str, float]:
    """Settings that follow the consensus on dense logs, too. als: settings chosen for ALS on the log [users, items]

    A row's penalty grows with its weights, and lists add many: it is scaled so that a mean user's is that of ALS.
    """
    users, items = log.shape
    weight = float(log.sum(dtype=np.float64)) / users + als["unobserved"] * items
    listed = CLOSER_WEIGHT * min(LENGTH, items)
    return {**als, "listed": CLOSER_WEIGHT, "penalty": als["penalty"] * weight / (weight + listed)}


def listed_pairs(users: Tensor, lists: Tensor, weight: float = LISTED_WEIGHT) -> Pairs:
    """Convert the lists [n, L] of users [n] to weighted pairs for ALS; an observed pair has weight 1."""
    listed, device = lists.long(), lists.device
    rank = torch.arange(listed.shape[1], dtype=torch.get_default_dtype(), device=device)
    target = 1 - (1 - LOWEST_TARGET) * torch.log1p(rank) / log(1 + max(listed.shape[1] - 1, 1))
    valid = listed >= 0
    user = users[:, None].expand_as(listed)[valid]
    weights = torch.full((len(user),), weight, dtype=target.dtype, device=device)
    return Pairs(user, listed[valid], weights, target.expand_as(listed)[valid])


def solve_student(
    observed: Pairs, users: Tensor, lists: Tensor, start: tuple[Tensor, Tensor], sweeps: int,
    settings: Mapping[str, float] = USUAL, group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fit the student's ([users, d], [items, d]) by ALS. lists: [n, L] of users [n]; start: initial vectors.

    Each process has the pairs and lists of its local users (see `ALS`).
    """
    shape, factors = (len(start[0]), len(start[1])), start[1].shape[1]
    listed = listed_pairs(users, lists[:, :LENGTH], settings["listed"])
    als = ALS(observed.and_more(listed), shape, factors, group)
    solved_by = {name: settings[name] for name in SOLVED_BY}
    return als.fit_users(als.fit(start, **solved_by, sweeps=sweeps), **solved_by)


def teach_student(
    user: Tensor, item: Tensor, users: Tensor, lists: Tensor, epochs: int, seed: int, group: ProcessGroup = ALONE
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fine-tune the vectors by Adam on the consensus loss of the lists [n, L] of users [n].

    Each process has the vectors and lists of its local users, and computes the gradients of its users of every batch.
    """
    user, item = user.clone(), item.clone()
    optimiser = Adam([user, item])
    random = torch.Generator().manual_seed(seed)
    lengths = group.lengths(users)
    begin, n = sum(lengths[: group.rank]), sum(lengths)
    batches = max(1, min(BATCHES, n // USERS))
    for _ in range(epochs):
        for batch in torch.randperm(n, generator=random).to(users.device).chunk(batches):
            local = batch[(batch >= begin) & (batch < begin + len(users))] - begin
            d_user, d_item = gradients(user, item, users[local], lists[local].long(), len(batch))
            group.all_reduce([d_item])
            optimiser.step(LEARNING_RATE, [d_user, d_item])
    return user, item


def without_lists(
    alone: Tensor, taught: Tensor, voters: Sequence[Tensor], consensus_users: Tensor, group: ProcessGroup = ALONE
) -> Tensor:
    """[users, d] student vectors of users without a consensus list: `alone`, plus a prediction of what lists would add.

    A ridge regression over the consensus users [n] predicts taught - alone from `alone` and the voters' vectors, each
    dimension divided by its root mean square. Consensus users keep the vectors `taught`.

    alone: [users, d] fitted to the log with the student's item vectors; taught: [users, d]; voters: [users, d'] each
    group: each process has its local users
    """
    tables, n = [*voters, alone], float(sum(group.lengths(consensus_users)))
    blocks = torch.split(consensus_users, RIDGE_USERS)
    square = torch.zeros(sum(table.shape[1] for table in tables), dtype=torch.float64, device=alone.device)
    for users in blocks:
        square += torch.cat([table[users] for table in tables], 1).double().square().sum(0)
    group.all_reduce([square])
    scale = (square / n).sqrt().clamp(min=torch.finfo(torch.float32).tiny)

    def features(users: Tensor) -> Tensor:
        return F.pad(torch.cat([table[users] for table in tables], 1).double() / scale, (0, 1), value=1.0)

    gram = square.new_zeros(len(square) + 1, len(square) + 1)
    right_side = square.new_zeros(len(square) + 1, alone.shape[1])
    for users in blocks:
        block = features(users)
        gram += block.T @ block
        right_side += block.T @ (taught[users] - alone[users]).double()
    group.all_reduce([gram, right_side])
    gram.diagonal().add_(RIDGE * n)
    weights = torch.linalg.solve(gram, right_side)
    vectors = torch.empty_like(alone)
    for users in torch.split(torch.arange(len(alone), device=alone.device), RIDGE_USERS):
        vectors[users] = alone[users] + (features(users) @ weights).to(alone)
    return vectors.index_copy_(0, consensus_users, taught[consensus_users])


def gradients(user: Tensor, item: Tensor, users: Tensor, lists: Tensor, n: int | None = None) -> tuple[Tensor, Tensor]:
    """([users, d], [items, d]) gradients of the consensus loss of lists [b, L], its mean over users and ranks.

    With g_uj the derivative by the score of the item at rank j, the gradient of user u is sum_j g_uj y_j, and that of
    an item the sum of g_uj x_u over the lists that hold it. n: number of users in the mean; None: len(users)
    """
    if not len(users):
        return torch.zeros_like(user), torch.zeros_like(item)
    valid, rows, device = lists >= 0, F.embedding(users, user), item.device
    scores, d_rows, d_item = item.new_empty(lists.shape), torch.empty_like(rows), torch.empty_like(item)

    def at_scores(block: slice) -> tuple[slice, Tensor]:
        vectors = F.embedding(lists[block].clamp(min=0), item)
        scores[block] = products(vectors, rows[block, None])[..., 0].mul_(SCALE)
        return block, vectors

    def at_users(block: slice, vectors: Tensor) -> None:
        d_rows[block] = sums(slope[block], vectors)

    def at_items() -> None:
        row, rank = valid.nonzero(as_tuple=True)
        listed, order = lists[row, rank].sort(stable=True)
        count = torch.bincount(listed, minlength=len(item))
        weights = slope[row, rank][order]
        d_item.copy_(F.embedding_bag(row[order], rows, count.cumsum(0) - count, mode="sum", per_sample_weights=weights))

    parts = list(in_blocks(at_scores, blocks_of(len(users), device), device))
    scores = scores.masked_fill_(~valid, -torch.inf).requires_grad_()
    weight = scores.new_full((len(users),), 1 / (TAUGHT * (n or len(users))))
    loss = listwise(scores, min(TAUGHT, lists.shape[1]), weight)
    slope = torch.autograd.grad(loss, scores)[0].mul_(SCALE)
    jobs: list[Callable[[], None]] = [at_items, *(partial(at_users, *part) for part in parts)]
    for _ in in_blocks(lambda job: job(), jobs, device):
        pass
    return torch.zeros_like(user).index_copy_(0, users, d_rows), d_item
