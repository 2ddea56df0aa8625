"""Distillation: one head that ranks as the consensus does.

First by least squares: the consensus list of every user is added to the observed pairs, with targets that fall with the
rank, and the whole is solved as any other log (`model/als.py`). Then by the consensus loss itself (Eq. 13, 14), a few
epochs of gradients from there, which put the first places in order. It may order the items of each group of
popularity by themselves (Chen et al., "Unbiased knowledge distillation for recommendation", 2023), so that nothing that
the consensus thinks of popular items is learned at the cost of the rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from concf.baselines.als import ALS, Pairs
from concf.consensus.listwise import listwise
from concf.runtime.executors import each_block
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong.softmax import Adam

LISTED_WEIGHT = 3.0  # of a listed pair, where an observed one has 1
LOWEST_TARGET = 0.3  # of the last listed item; the first has 1
SOLVED_BY = {
    "unobserved": 0.03,
    "penalty": 0.003,
}  # by ALS; a list weighs the same for every user of every log
TAUGHT = 50  # places that the consensus loss orders; the further ones are in its denominators
SCALE = 30.0  # scores are between 0 and 1: times this they are the logits of the consensus loss
RIDGE = 1.0  # of a weight's square, times the users, where a figure's own squares are as many
RIDGE_USERS = 1 << 14  # that go through together
LEARNING_RATE, BATCHES, USERS = 0.001, 12, 256  # batches of an epoch, and the fewest users of one


def listed_pairs(users: Tensor, lists: Tensor) -> Pairs:
    """The lists [n, L] of the users [n] as pairs to be solved for."""
    listed, device = lists.long(), lists.device
    rank = torch.arange(listed.shape[1], dtype=torch.get_default_dtype(), device=device)
    target = 1 - (1 - LOWEST_TARGET) * torch.log1p(rank) / log(1 + max(listed.shape[1] - 1, 1))
    there = listed >= 0
    user = users[:, None].expand_as(listed)[there]
    weight = torch.full((len(user),), LISTED_WEIGHT, dtype=target.dtype, device=device)
    return Pairs(user, listed[there], weight, target.expand_as(listed)[there])


def solve_student(
    observed: Pairs, users: Tensor, lists: Tensor, shape: tuple[int, int], item: Tensor, sweeps: int,
    group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([users, d], [items, d]) by least squares. lists: [n, L] of the users [n]; item: [items, d] the start.

    group: each process has the pairs and lists of its own users, see `ALS`
    """
    als = ALS(observed.and_more(listed_pairs(users, lists)), shape, item.shape[1], group)
    _, item = als.fit(item, **SOLVED_BY, sweeps=sweeps)
    return als.fit_users(item, **SOLVED_BY)


def by_groups(lists: Tensor, group: Tensor, groups: int) -> list[Tensor]:
    """Of lists [n, L], [n, L] for each group: its items in their order, -1 after them. group: [items] of each."""
    found, places = [], torch.arange(lists.shape[1], device=lists.device)
    of_places = group[lists.long().clamp(min=0)].masked_fill(lists < 0, groups)
    for number in range(groups):
        mine = of_places == number
        order = mine.long().sort(dim=1, descending=True, stable=True).indices
        found.append(lists.gather(1, order).masked_fill(places >= mine.sum(1, keepdim=True), -1))
    return found


def teach_student(
    user: Tensor, item: Tensor, users: Tensor, lessons: Sequence[Tensor], epochs: int, seed: int,
    group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The vectors after some epochs of the consensus loss, by Adam. lessons: lists [n, L] of the users [n] each.

    Of several processes each has the vectors and the lists of its own users, and looks at those of every batch.
    """
    user, item = user.clone(), item.clone()
    optimiser = Adam([user, item])
    random = torch.Generator().manual_seed(seed)
    lengths = group.lengths(users)
    begin, n = sum(lengths[: group.rank]), sum(lengths)
    batches = max(1, min(BATCHES, n // USERS))
    for _ in range(epochs):
        for batch in torch.randperm(n, generator=random).to(users.device).chunk(batches):
            mine = batch[(batch >= begin) & (batch < begin + len(users))] - begin
            slopes = [gradients(user, item, users[mine], lists[mine].long(), len(batch)) for lists in lessons]
            of_users, of_items = (sum(some[1:], some[0]) for some in zip(*slopes, strict=True))
            group.all_reduce([of_items])
            optimiser.step(LEARNING_RATE, [of_users, of_items])
    return user, item


def without_lists(
    alone: Tensor, taught: Tensor, voters: Sequence[Tensor], asked: Tensor, group: ProcessGroup = ALONE
) -> Tensor:
    """[users, d] vectors of users who have no list: `alone`, and what lists would add, as far as voters' vectors tell.

    A ridge regression, over the users who were asked for [n], of taught - alone on `alone` and the voters' vectors,
    each of their figures divided by its root mean square; those of the asked users are what was taught.

    alone: [users, d] solved beside the student's items from the log; taught: [users, d]; voters: [users, d'] of each
    group: of several processes each has its own users
    """
    parts, n = [*voters, alone], float(sum(group.lengths(asked)))
    blocks = torch.split(asked, RIDGE_USERS)
    square = torch.zeros(sum(each.shape[1] for each in parts), dtype=torch.float64, device=alone.device)
    for some in blocks:
        square += torch.cat([each[some] for each in parts], 1).double().square().sum(0)
    group.all_reduce([square])
    scale = (square / n).sqrt().clamp(min=torch.finfo(torch.float32).tiny)

    def features(some: Tensor) -> Tensor:
        return F.pad(torch.cat([each[some] for each in parts], 1).double() / scale, (0, 1), value=1.0)

    gram = square.new_zeros(len(square) + 1, len(square) + 1)
    wanted = square.new_zeros(len(square) + 1, alone.shape[1])
    for some in blocks:
        mine = features(some)
        gram += mine.T @ mine
        wanted += mine.T @ (taught[some] - alone[some]).double()
    group.all_reduce([gram, wanted])
    gram.diagonal().add_(RIDGE * n)
    weights = torch.linalg.solve(gram, wanted)
    found = torch.empty_like(alone)
    for some in torch.split(torch.arange(len(alone), device=alone.device), RIDGE_USERS):
        found[some] = alone[some] + (features(some) @ weights).to(alone)
    return found.index_copy_(0, asked, taught[asked])


def gradients(user: Tensor, item: Tensor, users: Tensor, lists: Tensor, n: int | None = None) -> tuple[Tensor, Tensor]:
    """([users, d], [items, d]) of the consensus loss of lists [b, L], its mean over users and places.

    With g_uj its slope at the score of the item at place j, that of user u is sum_j g_uj y_j, and that of an item the
    sum of g_uj x_u over the places where it stands. n: users that the mean is over; None: these
    """
    if not len(users):
        return torch.zeros_like(user), torch.zeros_like(item)
    of_users, of_items = _gradients(user, item, users, lists, 1 / (TAUGHT * (n or len(users))))
    return torch.zeros_like(user).index_copy_(0, users, of_users), of_items


def _gradients(
    user: Tensor, item: Tensor, users: Tensor, lists: Tensor, weight_of_user: float
) -> tuple[Tensor, Tensor]:
    """([b, d], [items, d])."""
    there, mine = lists >= 0, F.embedding(users, user)
    scores, of_users = item.new_empty(lists.shape), torch.empty_like(mine)
    wanted = item.new_empty(*lists.shape, item.shape[1])

    def at_scores(some: slice) -> None:
        wanted[some] = F.embedding(lists[some].clamp(min=0), item)
        scores[some] = torch.bmm(wanted[some], mine[some, :, None])[..., 0].mul_(SCALE)

    def at_users(some: slice) -> None:
        of_users[some] = torch.bmm(slope[some, None], wanted[some])[:, 0]

    each_block(at_scores, len(users), item.device)
    scores = scores.masked_fill_(~there, -torch.inf).requires_grad_()
    weight = scores.new_full((len(users),), weight_of_user)
    loss = listwise(scores, min(TAUGHT, lists.shape[1]), weight)
    slope = torch.autograd.grad(loss, scores)[0].mul_(SCALE)
    each_block(at_users, len(users), item.device)
    row, place = there.nonzero(as_tuple=True)
    listed, order = lists[row, place].sort(stable=True)
    count = torch.bincount(listed, minlength=len(item))
    of_items = F.embedding_bag(
        row[order], mine, count.cumsum(0) - count, mode="sum", per_sample_weights=slope[row, place][order]
    )
    return of_users, of_items
