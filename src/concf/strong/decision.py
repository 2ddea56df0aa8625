"""Decide how a log's times are used, on a window that did not fit the parts that use them.

Voters that know times, and features of time, are two groups. The ensemble is fitted before the last window of the
training part, and its re-ranker on that window, with and without each group. With these weights the ensemble of the
training part is re-ranked, and measured on the validation part. A group is taken if its mean gain per user exceeds its
standard error; of two such groups the better alone, if both together are worse by more than half a standard error. So
weights that are fitted in one window and do harm in the next are not taken. The penalty of the weights is chosen in the
same window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.voters import Voter, voter_weights
from concf.data.parts import TEST, TRAIN, VALID, origin
from concf.data.split import Split
from concf.evaluation.validation import Validation
from concf.runs.settings import VotingSettings
from concf.strong.reranker import TOP, Context, Reranker

FEWEST = 100  # users of the earlier window; with fewer, times are not used
VOTER_TEMPERATURE = 0.04  # a voter whose validation is this share below the best has weight 1/e
PENALTIES = (30.0, 10.0, 100.0)  # of the re-ranker; groups are compared with the first
NONE, BOTH = (False, False), (True, True)
GROUPS = {"voters": (True, False), "features": (False, True), "both": BOTH}


class Window(NamedTuple):
    """An ensemble, fitted to the training part of a split, and its voters' lists for the users of a validation.

    log: [local users, items] the training part; context: with the times of the log
    """

    log: csr_array
    validation: Validation
    voters: list[Voter]
    context: Context
    settings: VotingSettings

    def few(self, validation: Validation) -> Window:
        """The same for some of its users, ascending."""
        rows = torch.searchsorted(self.validation.users, validation.users)
        voters = [
            replace(each, lists=each.lists[rows], listed=None if each.listed is None else each.listed[rows])
            for each in self.voters
        ]
        return self._replace(validation=validation, voters=voters)

    def votes(self, left_out: Collection[str] = ()) -> list[float]:
        """Weights of the voters, by validation."""
        voters = [each for each in self.voters if each.name not in left_out]
        return voter_weights([self.validation.of_its_users(each.lists) for each in voters], VOTER_TEMPERATURE)

    def reranker(self, weights: list[float], left_out: Collection[str], features: bool) -> Reranker:
        """The re-ranker of the voters that are not left out, with or without features of time."""
        n_items = self.log.shape[1]
        context = self.context if features else self.context._replace(clock=None)
        return Reranker(
            self.log, self.validation.users, [each for each in self.voters if each.name not in left_out], weights,
            length=min(max(TOP, self.validation.depth), n_items), top_k=min(self.settings.top_k or n_items, n_items),
            temperature=self.settings.temperature, context=context, group=self.validation.group,
        )  # fmt: skip

    def held_out(self, reranker: Reranker) -> Tensor:
        """[n, TOP or fewer] whether a listed item is held out."""
        return self.validation.held_out(reranker.lists[:, :TOP])


class Decision(NamedTuple):
    """voters, features: whether each group is used; penalty: of the re-ranker; gains: see `decide`."""

    voters: bool
    features: bool
    penalty: float
    gains: dict[str, list[float]]


def decide(before: Window, after: Window, timed: Collection[str]) -> Decision:
    """Decide by the next window. before, after: ensembles of two windows, with voters that know times (`timed`).

    gains: of each group over none, and of the penalty over the first: mean gain of a user, and its standard error
    """

    def metric(voters: bool, features: bool, penalty: float = PENALTIES[0]) -> NDArray[np.float64]:
        """[validated] metric of each user of the later window, with weights of the earlier one."""
        left_out = () if voters else timed
        weights = before.votes(left_out)
        fitted = before.reranker(weights, left_out, features)
        fit = fitted.fit(before.held_out(fitted), penalty=penalty)
        return after.validation.per_user(after.reranker(weights, left_out, features).rerank(fit)[0])

    none = metric(*NONE)
    metrics = {name: metric(*parts) for name, parts in GROUPS.items()}
    gains = {name: gain(each, none) for name, each in metrics.items()}
    taken = chosen(metrics, none)
    best, penalty = metrics.get(taken, none), PENALTIES[0]
    parts = GROUPS.get(taken, NONE)
    for other in PENALTIES[1:]:
        moved = metric(*parts, other)
        if moved.mean() > best.mean():
            penalty, best = other, moved
    return Decision(*parts, penalty, gains)


def chosen(metrics: Mapping[str, NDArray[np.float64]], none: NDArray[np.float64]) -> str:
    """Name of the groups that are taken: a key of GROUPS, or none. metrics: with them, [n]; none: without"""
    gains = {name: gain(each, none) for name, each in metrics.items()}
    helpful = sorted(
        (name for name in ("voters", "features") if gains[name][0] > gains[name][1]), key=lambda name: gains[name][0]
    )
    if not helpful:
        return "none"
    more, error = gain(metrics["both"], metrics[helpful[-1]])
    return "both" if len(helpful) == 2 and more >= -error / 2 else helpful[-1]


def gain(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> list[float]:
    """Mean of the difference of two metrics [n] of the same users, and its standard error."""
    difference = ours - theirs
    return [float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))]


def earlier_window(data: Split) -> Split | None:
    """The training part with its newest pairs, as many as validate, held out; None if too few users can be evaluated.

    No cut divides pairs of equal times.
    """
    log, train = data.interactions, data.parts == TRAIN
    assert log.timestamp is not None
    times, n = log.timestamp[train], int((origin(data.parts) == VALID).sum())
    if n >= len(times):
        return None
    cut = np.partition(times, len(times) - n)[len(times) - n]
    parts = np.where(train, np.where(log.timestamp < cut, TRAIN, VALID), TEST).astype(np.uint8)
    parts = data.recipe.protocol.evaluable(log, parts)
    past = Split(log, parts, data.recipe, weights=data.weights)
    return past if len(past.validated) >= FEWEST else None
