"""Validation: the metric that chooses epochs, and its value for ranked lists."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concf.data.split import Split
from concf.errors import ConfigError
from concf.evaluation.metrics import ACCURACY, flat_cells
from concf.runtime.arguments import derive_seed
from concf.runtime.process_group import ALONE, ProcessGroup

AUTO = "auto"
USUAL = "recall@50"  # the paper's
SMALL = 500  # candidates: with fewer, 50 ranks are a large share of them
SHORTEST = 5  # least cutoff of NDCG
ORDERLESS = ("recall", "precision", "hit")  # do not depend on the order of the first ranks


class Validation:
    """Mean of a metric such as recall@50 on the validation part, equal to that of `evaluate` for the same lists.

    The test part is not read, not even to leave its items out of the lists.
    depth: length of the lists
    users: [e] local validated users, relative to the `first` local user
    group: each process scores the lists of its local users; the mean over all users is known to every process
    validated: users to validate; None: all who hold out items
    """

    def __init__(
        self, data: Split, metric: str, device: torch.device, group: ProcessGroup = ALONE,
        validated: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        name, self.n = parsed(metric)
        self.metric = ACCURACY[name]
        self.n_users, self.n_items = data.train.shape
        self.group, self.validated = group, data.validated if validated is None else validated
        local = group.share(self.n_users)
        self.first = local.start
        users = self.validated[(self.validated >= local.start) & (self.validated < local.stop)]
        self.users = torch.from_numpy(users - local.start).to(device)
        self.total: NDArray[np.float64] = np.diff(data.valid.indptr)[users].astype(np.float64)
        self.valid = torch.from_numpy(np.sort(flat_cells(data.valid[users]))).to(device)
        self.depth = min(self.n, self.n_items)

    def of_its_users(self, lists: Tensor) -> float:
        """Return the mean over all users, given the lists [e, depth or more] of the local `users`."""
        return float(self.per_user(lists).mean())

    def per_user(self, lists: Tensor) -> NDArray[np.float64]:
        """[validated] metric of each user of all processes, given the lists [e, depth or more] of the local `users`."""
        hit = self.held_out(lists[:, : self.depth])
        if hit.shape[1] < self.n:
            hit = torch.nn.functional.pad(hit, (0, self.n - hit.shape[1]))
        scores = self.metric(hit.cpu().numpy(), self.total)
        if self.group.several:  # all users in their order: the mean does not depend on the number of processes
            share, device = self.group.share(self.n_users), self.users.device
            local = torch.zeros(share.stop - share.start, dtype=torch.float64, device=device)
            local[self.users] = torch.from_numpy(scores).to(device)
            scores = self.group.gather(local).cpu().numpy()[self.validated]
        return np.asarray(scores)

    def held_out(self, lists: Tensor) -> Tensor:
        """[e, L] whether an item of the lists [e, L] of the local `users` is held out for validation."""
        items = lists.long()
        if not len(self.valid):
            return torch.zeros_like(items, dtype=torch.bool)
        keys = torch.arange(len(items), device=items.device)[:, None] * self.n_items + items
        at = torch.searchsorted(self.valid, keys).clamp(max=len(self.valid) - 1)
        return torch.eq(self.valid[at], keys) & (items >= 0)


def sample(users: NDArray[np.int64], n: int | None, seed: int) -> NDArray[np.int64]:
    """[n] sampled users, ascending, by the run's seed and the same in every epoch; None, or n >= all: all users."""
    if n is None or n >= len(users):
        return users
    random = np.random.Generator(np.random.Philox(derive_seed(seed, 0, 3)))
    return np.sort(random.choice(users, n, replace=False))


def parsed(metric: str) -> tuple[str, int]:
    """Parse a metric such as recall@50 into its name and cutoff."""
    name, _, n = metric.partition("@")
    if name not in ACCURACY or not n.isdecimal() or int(n) < 1:
        expected = f"{AUTO}, or a metric and a length such as {USUAL}; metrics: {', '.join(ACCURACY)}"
        raise ConfigError(f"training.metric = {metric!r}: expected {expected}")
    return name, int(n)


def fitting_metric(metric: str, data: Split) -> str:
    """Return the metric; for `auto` recall@50 or, where a user has few candidates, NDCG at a tenth of them.

    Candidates are the items that a user has not trained on, on average over the validated users.
    """
    if metric != AUTO:
        parsed(metric)
        return metric
    candidates = float(_candidates(data).mean())
    return USUAL if candidates >= SMALL else f"ndcg@{max(int(candidates / 10), SHORTEST)}"


def refuse_blind(metric: str, data: Split) -> None:
    """Raise if a metric is equal for every order of the items."""
    name, n = parsed(metric)
    if name in ORDERLESS and (_candidates(data) <= n).all():
        fix = f"no validated user has more than {n} items to rank. Set {AUTO} or {fitting_metric(AUTO, data)}"
        raise ConfigError(f"training.metric = {metric!r} cannot tell one epoch from another: {fix}")


def _candidates(data: Split) -> NDArray[np.float64]:
    """[v] number of items that each validated user has not trained on."""
    if not len(data.validated):
        raise ConfigError("no user has validation items, which choose the best epoch. Hold out more, or filter less")
    trained = np.diff(data.train.indptr)[data.validated]
    return np.asarray(data.train.shape[1] - trained, np.float64)
