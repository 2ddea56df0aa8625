"""Evaluation of any recommender on any split: full ranking, then metrics of the lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.parts import PARTS, origin
from concf.data.split import Split
from concf.errors import ConfigError, DataError
from concf.evaluation.metrics import ACCURACY, BEYOND, CATALOGUE_WIDE, METRICS, hits
from concf.evaluation.ranking import NOTHING, rank
from concf.evaluation.scorers import Factors, among
from concf.evaluation.significance import bootstrap_interval
from concf.runtime.arguments import check_cutoffs

ALL_METRICS = (*ACCURACY, *CATALOGUE_WIDE, *BEYOND)
Part = Literal["valid", "test"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Lists and metrics of the evaluated users.

    users:    [e] positions of the users
    lists:    [e, N] recommended items
    per_user: "recall@20" -> [e]
    overall:  "coverage@20" -> one value for all lists together
    activity: [e] number of training items of each user, or for a new user of items in its history
    """

    users: NDArray[np.int64]
    lists: NDArray[np.int32]
    per_user: dict[str, NDArray[np.float64]]
    overall: dict[str, float]
    activity: NDArray[np.float64]

    def means(self) -> dict[str, float]:
        """Return every metric, averaged over the evaluated users."""
        return {name: float(values.mean()) for name, values in self.per_user.items()} | self.overall

    def interval(self, metric: str, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Bootstrap confidence interval of a metric's mean over users."""
        if metric not in self.per_user:
            raise ConfigError(f"unknown per-user metric {metric!r}; available: {', '.join(self.per_user)}")
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
    model: Any, split: Split, *, on: Part = "test", at: Iterable[int] | int = (20, 50),
    metrics: Iterable[str] = METRICS, device: str | torch.device = "cpu", memory: int | None = None,
    everyone: bool = False,
) -> Evaluation:  # fmt: skip
    """Rank the whole catalogue for every evaluated user and score the lists.

    For `test`, a user's training and validation items are left out of the lists; for `valid`, its training items
    alone: the test part is not read. With the protocol `new-users`, the users are those of `split.history`, and the
    items of their history are left out; with `new-items`, the new items alone are ranked for `test`. Ties go to the
    lower item position. See `rank` for the kinds of models.

    everyone: evaluate all users with held-out items, not only those who are warm: users without an earlier pair get the
    most popular items, and held-out items without an earlier pair count as misses
    """
    cuts, metrics = sorted(check_cutoffs("at", at)), known_metrics(metrics)
    if on not in ("valid", "test"):
        raise ConfigError(f"cannot evaluate on {on!r}; choose from valid, test")
    users, held_out, protocol, log = split.users(on), split.part(on), split.recipe.protocol, split.interactions
    candidates = split.candidates(on)
    rankers = [(np.ones(len(users), bool), model if candidates is None else among(model, candidates))]
    if everyone:
        if protocol.new_users or protocol.new_items:
            raise ConfigError(f"everyone: protocol {protocol.name!r} tests new users or items alone. Leave it out")
        held_out, earlier = log.matrix(origin(split.parts) == PARTS[on]), split.known_before(on)
        users = np.flatnonzero(np.diff(held_out.indptr))
        popularity = torch.from_numpy(log.per_item(rows=earlier).astype(np.float32))
        popularity[popularity == 0] = -torch.inf
        cold = log.per_user(rows=earlier)[users] == 0
        fallback = Factors(torch.zeros(log.n_users, 1), torch.zeros(log.n_items, 1), popularity)
        rankers = [(~cold, model), (cold, fallback)]
    lists = np.empty((len(users), cuts[-1]), np.int32)
    for rows, ranker in rankers:
        lists[rows] = rank(ranker, users[rows], cuts[-1], seen=split.seen(on), device=device, memory=memory)
    scored = score_lists(lists, users, held_out, split.train, at=cuts, metrics=metrics)
    if split.has_new_users:
        return replace(scored, activity=np.diff(split.history.indptr)[users].astype(np.float64))
    return scored


def score_lists(
    lists: NDArray[np.int32], users: NDArray[np.int64], held_out: csr_array, train: csr_array, *,
    at: Iterable[int] | int = (20, 50), metrics: Iterable[str] = METRICS,
) -> Evaluation:  # fmt: skip
    """Score ranked lists [e, N] of the given users [e]. held_out, train: [users, items]."""
    cuts, wanted = sorted(check_cutoffs("at", at)), known_metrics(metrics)
    if cuts[-1] > lists.shape[1]:
        raise ConfigError(f"cannot score the first {cuts[-1]} ranks of lists of length {lists.shape[1]}")
    unknown = np.argwhere((lists < NOTHING) | (lists >= train.shape[1]))
    if len(unknown):
        row, column = unknown[0].tolist()
        raise DataError(f"list {row}: item {lists[row, column]} at rank {column}; expected 0 to {train.shape[1] - 1}")
    relevant = held_out[users]
    total = np.diff(relevant.indptr).astype(np.float64)
    popularity = np.bincount(train.indices, minlength=train.shape[1]).astype(np.float64)
    hit = hits(lists, relevant)
    per_user, overall = dict[str, NDArray[np.float64]](), dict[str, float]()
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


def at_lengths(metrics: Iterable[str]) -> list[str]:
    """Check the names of metrics with their lengths, such as recall@50."""
    return known_metrics(metrics, ".*@0*[1-9][0-9]*", "with a length such as recall@50, ")


def known_metrics(metrics: Iterable[str], form: str = "[^@]*", wanted: str = "") -> list[str]:
    """Check the names of metrics, at least one. form: regular expression of a name; wanted: its words, for messages"""
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in names or [""]:
        if name.partition("@")[0] not in ALL_METRICS or not re.fullmatch(form, name):
            problem = f"unknown metric {name!r}" if name else "no metric was named"
            raise ConfigError(f"{problem}; choose {wanted}from {', '.join(ALL_METRICS)}")
    return names
