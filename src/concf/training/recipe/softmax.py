"""A softmax over all items of the cosine between user and item, learned by gradients from given vectors.

L = -sum_(u,i) log softmax(cos(x_u, .) / t)_i   over the observed pairs
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from concf.model.als import Pairs
from concf.training.recipe.adam import Adam

LEARNING_RATE = 0.01
STEPS = 24  # batches of an epoch, each of a share of the users ...
FEWEST_USERS = 64  # ... and of no fewer users than that
LENGTH = 1.6  # of every vector at the start: Adam moves each of its numbers by about the learning rate
CPU_CELLS, GPU_CELLS = 1 << 25, 1 << 28  # scores that are held at a time


def fit_softmax(
    train: csr_array, user: Tensor, item: Tensor, temperature: float, epochs: int, seed: int,
    users: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([users, d], [items, d]) of length 1. user, item: the start; users: [n] those who are learned from, None: all."""
    pairs = Pairs.observed(train, user.device)
    count = torch.bincount(pairs.user, minlength=len(user))
    first = count.cumsum(0) - count
    everyone = torch.arange(len(user), device=user.device) if users is None else users
    everyone = everyone[count[everyone] > 0]
    vectors = [(F.normalize(each) * LENGTH).requires_grad_() for each in (user, item)]
    optimiser = Adam(vectors)
    random = torch.Generator().manual_seed(seed)
    batches = max(1, min(STEPS, len(everyone) // FEWEST_USERS))
    total, step = epochs * batches, 0
    for _ in range(epochs):
        order = everyone[torch.randperm(len(everyone), generator=random).to(user.device)]
        for mine in order.chunk(batches):
            row = torch.repeat_interleave(torch.arange(len(mine), device=mine.device), count[mine])
            place = torch.arange(len(row), device=mine.device) - (count[mine].cumsum(0) - count[mine])[row]
            _backward(vectors[0], vectors[1], mine, row, pairs.item[first[mine][row] + place], temperature)
            optimiser.step(LEARNING_RATE * min(1.0, 2 * (total - step) / total))  # it falls in the second half
            step += 1
    return F.normalize(vectors[0].detach()), F.normalize(vectors[1].detach())


def _backward(user: Tensor, item: Tensor, users: Tensor, row: Tensor, items: Tensor, temperature: float) -> None:
    """The gradient of the mean loss over the pairs (users[row], items), added to that of the vectors.

    The users go through in blocks, whose scores of all items are held one block at a time.
    """
    mine, theirs = F.normalize(user[users]) / temperature, F.normalize(item)
    positive = (mine[row] * theirs[items]).sum() / len(row)
    size = max(1, (CPU_CELLS if user.device.type == "cpu" else GPU_CELLS) // len(item))
    weight = torch.bincount(row, minlength=len(users)).to(mine) / len(row)
    of_users, of_items = torch.zeros_like(mine), torch.zeros_like(theirs)
    with torch.no_grad():  # of the sum over users of weight_u log sum_i exp <m_u, t_i>
        for block in torch.split(torch.arange(len(users), device=users.device), size):
            share = torch.softmax(mine[block] @ theirs.T, 1).mul_(weight[block, None])
            of_users[block] = share @ theirs
            of_items.addmm_(share.T, mine[block])
    torch.autograd.backward([positive, mine, theirs], [-torch.ones_like(positive), of_users, of_items])
