"""A softmax over all items of the cosine between user and item, learned by gradients from given vectors.

L = -sum_(u,i) w_ui log softmax(cos(x_u, .) / t)_i   over the observed pairs and their weights
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor
from torch.optim.adam import adam

from concf.baselines.als import Pairs
from concf.baselines.neighbours import degrees
from concf.runtime.executors import each_block
from concf.runtime.process_group import ALONE, ProcessGroup

LEARNING_RATE = 0.01
STEPS = 24  # batches of an epoch, each of a share of the users ...
FEWEST_USERS = 64  # ... and of no fewer users than that
LENGTH = 1.6  # of every vector at the start: Adam moves each of its numbers by about the learning rate
LEAST_LENGTH = 1e-12  # of a vector, whose direction is its quotient by no less
CPU_CELLS, GPU_CELLS = 1 << 25, 1 << 28  # scores that are held at a time
USER_STEPS, USER_STEP = 3, (0.02, 10.0)  # of a user who was not there, and how long a step may be


class Adam:
    """Steps of PyTorch's Adam along given gradients.

    A function of torch.optim, whose classes load PyTorch's compiler: that takes as long as training on a small log.
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
    """([users, d], [items, d]) of length 1. user, item: the start; users: [n] those who are learned from, None: all.

    Of several processes each has the log, the vectors and the positions of its own users, and looks at those of every
    batch.
    """
    pairs = Pairs.observed(train, user.device, user.dtype)
    count = torch.bincount(pairs.user, minlength=len(user))
    first = count.cumsum(0) - count
    everyone = torch.arange(len(user), device=user.device) if users is None else users
    everyone = everyone[count[everyone] > 0]
    lengths = group.lengths(user)
    begin = sum(lengths[: group.rank])  # of the own users among all
    everyone = group.join(everyone + begin)
    if not len(everyone):
        return F.normalize(user), F.normalize(item)
    vectors = [F.normalize(each) * LENGTH for each in (user, item)]
    optimiser = Adam(vectors)
    random = torch.Generator().manual_seed(seed)
    batches = max(1, min(STEPS, len(everyone) // FEWEST_USERS))
    total, step = epochs * batches, 0
    for _ in range(epochs):
        order = everyone[torch.randperm(len(everyone), generator=random).to(user.device)]
        for batch in order.chunk(batches):
            mine = batch[(batch >= begin) & (batch < begin + len(user))] - begin
            row = torch.repeat_interleave(torch.arange(len(mine), device=mine.device), count[mine])
            place = torch.arange(len(row), device=mine.device) - (count[mine].cumsum(0) - count[mine])[row]
            at = first[mine][row] + place
            slopes = gradients(vectors[0], vectors[1], mine, row, pairs.item[at], pairs.weight[at], temperature, group)
            optimiser.step(LEARNING_RATE * min(1.0, 2 * (total - step) / total), slopes)  # it falls in the second half
            step += 1
    return F.normalize(vectors[0]), F.normalize(vectors[1])


def gradients(
    user: Tensor, item: Tensor, users: Tensor, row: Tensor, items: Tensor, weight: Tensor, temperature: float,
    group: ProcessGroup = ALONE,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """([users, d], [items, d]) of the weighted mean loss over the pairs (users[row], items), row ascending.

    With p_ui the softmax of the scores of user u and n_u the weights of u's pairs together, the slope of the loss at
    the score of item i is n_u p_ui, less the weight of each pair (u, i), over the weights of all pairs. As many users
    go through together as the scores of all items can be held of. Of several processes each has its own users, and
    their pairs.
    """
    device, own = user.device, user[users]
    mine, theirs = F.normalize(own), F.normalize(item)
    count = torch.bincount(row, minlength=len(own))
    ends, mass = [0, *count.cumsum(0).tolist()], weight.new_zeros(len(own)).index_add_(0, row, weight)
    of_users, of_items = torch.zeros_like(mine), torch.zeros_like(theirs)
    size = max(1, (CPU_CELLS if device.type == "cpu" else GPU_CELLS) // len(item))
    for first in range(0, len(own), size):
        chunk = slice(first, min(first + size, len(own)))
        slope = mine.new_empty(chunk.stop - first, len(item))

        def at_users(some: slice, slope: Tensor = slope, first: int = first) -> None:
            here = slice(first + some.start, first + some.stop)
            pairs = slice(ends[here.start], ends[here.stop])
            part = torch.mm(mine[here], theirs.T, out=slope[some]).div_(temperature)
            torch.softmax(part, 1, out=part).mul_(mass[here, None])
            cells = (row[pairs] - here.start) * len(item) + items[pairs]
            part.view(-1).index_add_(0, cells, weight[pairs], alpha=-1)
            of_users[here] = _through_norm(part @ theirs, mine[here], own[here])

        def at_items(some: slice, slope: Tensor = slope, chunk: slice = chunk) -> None:
            of_items[some].addmm_(slope[:, some].T, mine[chunk])

        each_block(at_users, len(slope), device)
        each_block(at_items, len(item), device)
    total = weight.sum(dtype=torch.float64)
    group.all_reduce([total])
    group.all_reduce([of_items])
    scale = 1 / (temperature * float(total))

    def finish(some: slice) -> None:
        of_items[some] = _through_norm(of_items[some], theirs[some], item[some]).mul_(scale)

    each_block(finish, len(item), device)
    return torch.zeros_like(user).index_copy_(0, users, of_users.mul_(scale)), of_items


def _through_norm(slope: Tensor, direction: Tensor, vector: Tensor) -> Tensor:
    """[n, d] the slope at vectors of that at their directions."""
    along: Tensor = (slope * direction).sum(1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=LEAST_LENGTH)
    return (slope - along * direction) / length


class UserSoftmax:
    """The best directions of users who were not there: the minimum of L to given item vectors [items, d].

    With m the weighted mean direction of a history and p the softmax, the slope along the sphere is that of
    m - sum_j p_j y_j. Each user moves along it by a step of its own, from the last two slopes (Barzilai and Borwein,
    1988): Newton's method with a curvature that is one number. What a step has made worse is kept as it was best.
    """

    def __init__(self, item: Tensor, temperature: float) -> None:
        self.item, self.temperature = F.normalize(item), temperature

    def __call__(self, histories: csr_array, steps: int = USER_STEPS) -> Tensor:
        """[users, d] of length 1, of histories [users, items]; 0 of an empty one."""
        mean = torch.from_numpy(np.asarray(histories @ self.item.numpy() / degrees(histories)[0][:, None], np.float32))
        here, best = F.normalize(mean), F.normalize(mean)
        least, step = torch.full((len(mean), 1), torch.inf), torch.ones(len(mean), 1)
        before: tuple[Tensor, Tensor] | None = None
        for turn in range(steps + 1):
            scores = (here @ self.item.T).div_(self.temperature)
            normaliser = scores.logsumexp(1, keepdim=True)
            loss = normaliser - (here * mean).sum(1, keepdim=True) / self.temperature
            best, least = here.where(loss < least, best), loss.minimum(least)
            if turn == steps:
                break
            slope = mean - scores.sub_(normaliser).exp_() @ self.item
            slope -= (slope * here).sum(1, keepdim=True) * here
            if before is not None:
                moved, bent = here - before[0], before[1] - slope
                both = (moved * bent).sum(1, keepdim=True)
                long, short = moved.square().sum(1, keepdim=True) / both, both / bent.square().sum(1, keepdim=True)
                step = (short if turn % 2 else long).clamp(*USER_STEP).where(both > 0, step)
            before, here = (here, slope), F.normalize(here + step * slope)
        return best
