"""A fair evaluation of any recommender on any split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.metrics import ACCURACY, BEYOND, CATALOGUE_WIDE, hits, popularity_groups
from concf.evaluation.ranking import NOTHING, rank
from concf.evaluation.scorers import among
from concf.evaluation.significance import bootstrap_interval
from concf.runtime.arguments import check_cutoffs

ALL_METRICS = (*ACCURACY, *CATALOGUE_WIDE, *BEYOND)
METRICS = ("recall", "ndcg")
Part = Literal["valid", "test"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a recommender got, user by user.

    users:    [e] the evaluated users, as positions
    lists:    [e, N] what each was recommended
    per_user: "recall@20" -> [e]
    overall:  "coverage@20" -> one figure for all lists together
    activity: [e] training interactions of each evaluated user; of a new one, those of its history
    """

    users: NDArray[np.int64]
    lists: NDArray[np.int32]
    per_user: dict[str, NDArray[np.float64]]
    overall: dict[str, float]
    activity: NDArray[np.float64]

    def means(self) -> dict[str, float]:
        """Every figure, averaged over the evaluated users."""
        return {name: float(values.mean()) for name, values in self.per_user.items()} | self.overall

    def interval(self, metric: str, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Bootstrap confidence interval of a metric's mean over users."""
        if metric not in self.per_user:
            raise ConfigError(f"no figure of each user is called {metric!r}; there are {', '.join(self.per_user)}")
        return bootstrap_interval(self.per_user[metric], level=level, draws=draws, seed=seed)

    def by_activity(self, groups: int = 4) -> list[dict[str, float]]:
        """Means by user group, the most active first (four groups: the paper's G-1 .. G-4).

        Users sorted by training interactions, descending, ties by position, cut into groups of equal size.
        """
        order = np.lexsort((self.users, -self.activity))
        return [
            {"users": len(group), "activity": float(self.activity[group].mean())}
            | {name: float(values[group].mean()) for name, values in self.per_user.items()}
            for group in np.array_split(order, groups)
            if len(group)
        ]


def evaluate(
    model: Any,
    split: Split,
    *,
    on: Part = "test",
    at: Iterable[int] | int = (20, 50),
    metrics: Iterable[str] = METRICS,
    device: str | torch.device = "cpu",
    memory: int | None = None,
) -> Evaluation:
    """Rank the whole catalogue for every evaluated user and score the lists.

    For `test`, a user's training and validation items are left out of the lists; for `valid`, its training items
    alone: the test part is not looked at. With the protocol `new-users`, the users are those of `split.history`, and
    what is in their history is left out; of a split by `new-items`, the new items alone are ranked for `test`. Ties go
    to the lower item position. See `rank` for what a model may be.
    """
    cuts, metrics = sorted(check_cutoffs("at", at)), known_metrics(metrics)
    if on not in ("valid", "test"):
        raise ConfigError(f"cannot evaluate on {on!r}; choose from valid, test")
    users, candidates = split.users(on), split.candidates(on)
    model = model if candidates is None else among(model, candidates)
    lists = rank(model, users, cuts[-1], seen=split.seen(on), device=device, memory=memory)
    scored = score_lists(lists, users, split.part(on), split.train, at=cuts, metrics=metrics)
    if split.has_new_users:
        return replace(scored, activity=np.diff(split.history.indptr)[users].astype(np.float64))
    return scored


def score_lists(
    lists: NDArray[np.int32],
    users: NDArray[np.int64],
    held_out: csr_array,
    train: csr_array,
    *,
    at: Iterable[int] | int = (20, 50),
    metrics: Iterable[str] = METRICS,
) -> Evaluation:
    """Score ranked lists [e, N] of the given users [e]. held_out, train: [users, items]."""
    cuts, wanted = sorted(check_cutoffs("at", at)), known_metrics(metrics)
    if cuts[-1] > lists.shape[1]:
        raise ConfigError(f"cannot score the first {cuts[-1]} places of lists of {lists.shape[1]}")
    _refuse_strange_items(lists, train.shape[1])
    relevant = held_out[users]
    total = np.diff(relevant.indptr).astype(np.float64)
    popularity = np.bincount(train.indices, minlength=train.shape[1]).astype(np.float64)
    hit = hits(lists, relevant)
    per_user: dict[str, NDArray[np.float64]] = {}
    overall: dict[str, float] = {}
    for n in cuts:
        cut = lists[:, :n]
        for name in wanted:
            if name in ACCURACY:
                per_user[f"{name}@{n}"] = ACCURACY[name](hit[:, :n], total)
            elif name in BEYOND:
                per_user[f"{name}@{n}"] = BEYOND[name](cut, popularity, train.shape[0])
            else:
                overall[f"{name}@{n}"] = CATALOGUE_WIDE[name](cut, popularity)
    activity = np.diff(train.indptr)[users].astype(np.float64)
    return Evaluation(users, lists, per_user, overall, activity)


def by_popularity(
    evaluation: Evaluation, split: Split, *, on: Part = "test", at: int = 50, groups: int = 3
) -> list[dict[str, float]]:
    """Recall by popularity of the held-out items, the most popular first: what a recommender does to the tail.

    Groups of items are those of `popularity_groups`. The recall of a group is the mean over the users who hold out
    items of it.
    """
    group = popularity_groups(split.train, groups)
    relevant = split.part(on)[evaluation.users]
    hit, found = hits(evaluation.lists[:, :at], relevant), group[evaluation.lists[:, :at]]
    user = np.repeat(np.arange(len(evaluation.users)), np.diff(relevant.indptr))
    rows = []
    for number in range(groups):
        total = np.bincount(user[group[relevant.indices] == number], minlength=len(hit))
        recall = (hit & (found == number)).sum(1)[total > 0] / total[total > 0]
        mean = float(recall.mean()) if len(recall) else 0.0
        rows.append({"items": int((group == number).sum()), "users": len(recall), f"recall@{at}": mean})
    return rows


def _refuse_strange_items(lists: NDArray[np.int32], n_items: int) -> None:
    strange = np.argwhere((lists < NOTHING) | (lists >= n_items))
    if len(strange):
        row, place = strange[0].tolist()
        raise DataError(
            f"list {row} holds item {lists[row, place]} at place {place}; the {n_items} items are numbered from 0"
        )


def known_metrics(metrics: Iterable[str]) -> list[str]:
    """The metrics' names; an unknown one is refused, and so is none."""
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not names:
        raise ConfigError(f"no metric was named; choose from {', '.join(ALL_METRICS)}")
    for name in names:
        if name not in ALL_METRICS:
            raise ConfigError(f"unknown metric {name!r}; choose from {', '.join(ALL_METRICS)}")
    return names
