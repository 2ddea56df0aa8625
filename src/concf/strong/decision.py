"""Decide whether a log's times help, on a window that did not fit the parts that use them.

Voters that know times, and features of time, are two groups. A small ensemble (`als-a` and voters without vectors) is
fitted before the last window of the training part, and its re-ranker on that window, with and without each group.
Then the ensemble is fitted to the training part, re-ranked with these weights, and measured on the validation part. The
best of the four is taken if its mean gain per user, over the one without times, exceeds its standard error. So weights
that are fitted in one window and do harm in the next are not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS
from concf.consensus.voters import Voter, by_factors, by_scores, voter_weights
from concf.data.parts import TEST, TRAIN, VALID, origin
from concf.data.split import Split
from concf.evaluation.scorers import Factors, Offset
from concf.evaluation.validation import Validation, sample
from concf.runtime.process_group import ProcessGroup
from concf.strong.features import Clock
from concf.strong.reranker import TOP, Context, Reranker, Weights
from concf.strong.run import StrongRun
from concf.strong.search import Plan
from concf.strong.settings import StrongSettings

FEWEST = 100  # users of the earlier window; with fewer, times are not used
SWEEPS = 2  # of ALS before the earlier window, from the vectors of the training part
VOTER_TEMPERATURE = 0.04  # a voter whose validation is this share below the best has weight 1/e
GROUPS = {"none": (False, False), "voters": (True, False), "features": (False, True), "both": (True, True)}
Gains = dict[str, list[float]]  # of the groups but "none": mean gain of a user, and its standard error


class Ensemble(Protocol):
    """What a decision needs of a `Recipe`."""

    data: Split
    run: StrongRun
    settings: StrongSettings
    plan: Plan
    searched: Validation
    seed: int
    device: torch.device
    group: ProcessGroup
    own: slice
    top_k: int
    chosen: dict[str, dict[str, float]]
    vectors: dict[str, tuple[Tensor, Tensor]]

    @property
    def fixed(self) -> list[str]:
        """Voters without vectors."""

    @property
    def least_std(self) -> float:
        """Lower bound of the standard deviation of an item's scores."""

    def solver(self, log: csr_array, factors: int | None = None) -> ALS:
        """The ALS of a log [users, items]."""

    def seen(self, log: csr_array) -> csr_array:
        """[local users, items] pairs that are never recommended."""

    def local(self, log: csr_array) -> csr_array:
        """[local users, items] rows of a log."""

    def fit_fixed(
        self, name: str, log: csr_array, settings: Mapping[str, float], times: csr_array | None, item: Tensor | None
    ) -> Any:
        """A voter without vectors, fitted to a log."""


def decide(recipe: Ensemble, timed: list[str]) -> Gains:
    """Measure what the groups are worth beside the others; nothing if too few users can be evaluated."""
    earlier = earlier_window(recipe.data)
    if earlier is None:
        return {}
    users = sample(earlier.validated, recipe.plan.users, recipe.seed)
    validation = Validation(earlier, recipe.run.metric, recipe.device, recipe.group, validated=users)
    als = recipe.solver(earlier.train)
    vectors = als.fit(recipe.vectors["als-a"][1], **recipe.chosen["als-a"], sweeps=SWEEPS)
    before = Window(recipe, earlier, validation, vectors, timed)
    after = Window(recipe, recipe.data, recipe.searched, recipe.vectors["als-a"], timed)
    metrics = {}
    for name, (voters, features) in GROUPS.items():
        weights = before.fit(voters, features)
        metrics[name] = after.metric(weights, voters, features, before.voter_weights(voters))
    plain = metrics.pop("none")
    return {name: _gain(metric, plain) for name, metric in metrics.items()}


def taken(gains: Gains) -> tuple[bool, bool]:
    """Whether voters that know times, and features of time, are used: those of the best gain above its error."""
    helpful = {name: gain for name, (gain, error) in gains.items() if gain > error}
    return GROUPS[max(helpful, key=helpful.__getitem__)] if helpful else GROUPS["none"]


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


def _gain(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> list[float]:
    """Mean of the difference of two metrics [n] of the same users, and its standard error."""
    difference = ours - theirs
    return [float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))]


class Window:
    """The small ensemble, fitted to the training part of a split, with its lists for the users of a validation."""

    def __init__(self, recipe: Ensemble, data: Split, validation: Validation, vectors: Any, timed: list[str]) -> None:
        self.recipe, self.validation, log, times = recipe, validation, data.train, data.times(["train"])
        k, seen, factors = max(recipe.top_k, validation.depth), recipe.seen(log), Factors(*vectors)
        self.plain, self.timed = [by_factors("als-a", factors, seen, validation.users, k)], list[Voter]()
        for name in recipe.fixed:
            fitted = recipe.fit_fixed(name, log, recipe.chosen[name], times, factors.item)
            voter = by_scores(
                name, Offset(fitted, recipe.own.start), seen, validation.users, k, group=recipe.group,
                least_std=recipe.least_std,
            )  # fmt: skip
            (self.timed if name in timed else self.plain).append(voter)
        self.log, clock = recipe.local(log), Clock.of(log, times, recipe.device).local(recipe.own)
        self.context = Context.of(self.log, [factors], recipe.device, recipe.group, clock, recipe.least_std)

    def voter_weights(self, voters: bool) -> list[float]:
        """Weight of each voter by its validation."""
        metrics = [self.validation.of_its_users(each.lists) for each in self._voters(voters)]
        return voter_weights(metrics, VOTER_TEMPERATURE)

    def fit(self, voters: bool, features: bool) -> Weights:
        """Fit the weights of the re-ranker, with voters that know times, or features of time."""
        reranker = self._reranker(voters, features, self.voter_weights(voters))
        return reranker.fit(self.validation.held_out(reranker.lists[:, :TOP]))

    def metric(self, weights: Weights, voters: bool, features: bool, votes: list[float]) -> NDArray[np.float64]:
        """[validated] metric of each user, re-ranked with given weights."""
        return self.validation.per_user(self._reranker(voters, features, votes).rerank(weights)[0])

    def _voters(self, voters: bool) -> list[Voter]:
        return self.plain + self.timed * voters

    def _reranker(self, voters: bool, features: bool, votes: list[float]) -> Reranker:
        context, chosen = (
            self.context if features else self.context._replace(clock=None),
            self.recipe.settings.consensus,
        )
        length = max(TOP, self.validation.depth)
        return Reranker(
            self.log, self.validation.users, self._voters(voters), votes, length=min(length, self.log.shape[1]),
            top_k=self.recipe.top_k, temperature=chosen.temperature, context=context, group=self.recipe.group,
        )  # fmt: skip
