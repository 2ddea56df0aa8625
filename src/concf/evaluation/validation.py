"""Figures of ranked lists that are there anyway, without ranking again: validation, and how much heads agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.data.split import Split
from concf.evaluation.metrics import ACCURACY, flat_cells
from concf.evaluation.validation_metric import parsed
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.seeds import derive_seed

CELLS = 1 << 24  # of a table [users, items] that is held at a time


class Validation:
    """The mean of a metric such as recall@50 on the validation part; what `evaluate` would give for the same lists.

    The test part is not looked at, not even to leave its items out of the lists.
    depth: places of a list that are looked at
    users: [e] this process's validated users, counted from its `first` user
    group: of several processes each looks at the lists of its own users, and all know the figure of everyone's
    validated: the users whose lists are looked at; None: all who hold out items
    """

    def __init__(
        self, data: Split, metric: str, device: torch.device, group: ProcessGroup = ALONE,
        validated: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        name, self.n = parsed(metric)
        self.metric = ACCURACY[name]
        self.n_users, self.n_items = data.train.shape
        self.group, self.validated = group, data.validated if validated is None else validated
        mine = group.share(self.n_users)
        self.first = mine.start
        users = self.validated[(self.validated >= mine.start) & (self.validated < mine.stop)]
        self.users = torch.from_numpy(users - mine.start).to(device)
        self.total: NDArray[np.float64] = np.diff(data.valid.indptr)[users].astype(np.float64)
        self.valid = torch.from_numpy(np.sort(flat_cells(data.valid[users]))).to(device)
        self.depth = min(self.n, self.n_items)

    def __call__(self, lists: Tensor) -> float:
        """The figure of lists [this process's users, depth or more] over all users, training items not in them."""
        return self.of_its_users(lists[self.users])

    def of_its_users(self, lists: Tensor) -> float:
        """The same of the lists [e, depth or more] of this process's `users` alone."""
        hit = self.held_out(lists[:, : self.depth])
        if hit.shape[1] < self.n:
            hit = torch.nn.functional.pad(hit, (0, self.n - hit.shape[1]))
        return float(self._of_everyone(self.metric(hit.cpu().numpy(), self.total)).mean())

    def held_out(self, lists: Tensor) -> Tensor:
        """[e, L] where the lists [e, L] of this process's `users` have an item that is held out for validation."""
        items = lists.long()
        keys = torch.arange(len(items), device=items.device)[:, None] * self.n_items + items
        return _among(keys, self.valid) & (items >= 0)

    def _of_everyone(self, figures: NDArray[np.float64]) -> NDArray[np.float64]:
        """[e] of all validated users in their order, so that the mean does not depend on the number of processes."""
        if not self.group.several:
            return figures
        share, device = self.group.share(self.n_users), self.users.device
        mine = torch.zeros(share.stop - share.start, dtype=torch.float64, device=device)
        mine[self.users] = torch.from_numpy(figures).to(device)
        return np.asarray(self.group.gather(mine, self.n_users).cpu().numpy()[self.validated])


def sample(users: NDArray[np.int64], n: int | None, seed: int) -> NDArray[np.int64]:
    """[n] of the users, ascending, drawn by the run's seed and the same in every epoch; None, or too many: all."""
    if n is None or n >= len(users):
        return users
    random = np.random.Generator(np.random.Philox(derive_seed(seed, 0, 3)))
    return np.sort(random.choice(users, n, replace=False))


def shared_items(
    lists: Mapping[str, Tensor], agreed: Tensor, n: int, n_items: int, group: ProcessGroup = ALONE
) -> dict[str, float]:
    """name -> the share of the first n items of `agreed` that its own first n hold too, of all users together.

    lists: of [users, n or more], agreed: [users, n or more]; -1 at an empty place. Whole numbers are added, so that the
    order of a GPU's sums does not show.
    """
    both, there = torch.zeros(len(lists), dtype=torch.int64, device=agreed.device), (agreed[:, :n] >= 0).sum()
    size = max(1, CELLS // (n_items + 1))
    for begin in range(0, len(agreed), size):
        items = [each[begin : begin + size, :n].long() for each in (agreed, *lists.values())]
        items = [each.where(each >= 0, n_items) for each in items]
        in_consensus = torch.zeros(len(items[0]), n_items + 1, dtype=torch.bool, device=agreed.device)
        in_consensus.scatter_(1, items[0], True)
        in_consensus[:, n_items] = False  # empty places
        both += torch.stack([in_consensus.gather(1, each).sum() for each in items[1:]])
    group.all_reduce([both, there])
    return dict(zip(lists, (both.double() / there.clamp(min=1)).tolist(), strict=True))


def _among(items: Tensor, known: Tensor) -> Tensor:
    if not len(known):
        return torch.zeros_like(items, dtype=torch.bool)
    at = torch.searchsorted(known, items).clamp(max=len(known) - 1)
    return torch.eq(known[at], items)
