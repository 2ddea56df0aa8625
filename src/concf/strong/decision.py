"""Decide how a log's times are used, on a window that did not fit the parts that use them.

Voters that know times, and features of time, are two groups. The ensemble is fitted twice: to the training part, with
the validation part as its window, and before the last window of the training part. The re-ranker is fitted in each of
the two windows, with and without each group, and measured in the other. A group is taken if its mean gain per user
exceeds its standard error; of two such groups the better alone, if both together are worse by more than two standard
errors. So weights that are fitted in one window and do harm in another are not taken. The penalty of the weights is
chosen in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.table import timed_voters
from concf.consensus.voters import Voter, voter_weights
from concf.data.parts import TEST, TRAIN, VALID, origin
from concf.data.split import Split
from concf.evaluation.validation import Validation, sample
from concf.runs.settings import VotingSettings
from concf.strong.ensemble import VOTER_TEMPERATURE, Ensemble
from concf.strong.features import Clock
from concf.strong.reranker import TOP, Context, Reranker, TrainingSet, Weights, fit_weights
from concf.strong.search import search_fixed
from concf.strong.settings import TIME

FEWEST = 100  # users of the earlier window; with fewer, times are not used
EARLIER_SWEEPS = 5, 2  # of ALS before the last window of the training part: from the start, and from there
DECIDING = 2  # users of a window in a decision, relative to those of a search
PENALTIES = (30.0, 10.0, 100.0)  # of the re-ranker; groups are compared with the first
NONE, BOTH = (False, False), (True, True)
TOLERATED = 2.0  # standard errors that both groups may be below one: the final weights have twice the users
ENDLESS = 1e12  # penalty that keeps a weight at 0
GROUPS = {"features": (False, True), "voters": (True, False), "both": BOTH}  # (voters, features); by sets of voters


class Window(NamedTuple):
    """Ensemble that was fitted to the training part of a split, and its voters' lists for validated users.

    log: [local users, items] the training part; context: with the times of the log
    """

    log: csr_array
    validation: Validation
    voters: list[Voter]
    context: Context
    settings: VotingSettings

    def few(self, validation: Validation) -> Window:
        """Restrict the window to the users of a validation, ascending."""
        rows = torch.searchsorted(self.validation.users, validation.users)
        voters = [
            replace(each, lists=each.lists[rows], listed=None if each.listed is None else each.listed[rows])
            for each in self.voters
        ]
        return self._replace(validation=validation, voters=voters)

    def votes(self, left_out: Collection[str] = ()) -> list[float]:
        """Compute the weights of the voters by validation."""
        voters = [each for each in self.voters if each.name not in left_out]
        return voter_weights([self.validation.of_its_users(each.lists) for each in voters], VOTER_TEMPERATURE)

    def reranker(self, weights: list[float], left_out: Collection[str], features: bool = True) -> Reranker:
        """Make the re-ranker of the voters that are not left out, with or without features of time."""
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
    """Decide by two windows, each measured with weights of the other. timed: voters that know times

    gains: group -> mean gain of a user over no group, and its standard error
    All features are computed once for each set of voters; those of time are left out by an endless penalty.
    """
    windows = before, after
    fitted: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}  # last weights and Hessian, where the next fit begins

    @lru_cache(1)  # of the two sets the features are large
    def ensembles(voters: bool) -> list[tuple[TrainingSet, Tensor, Reranker]]:
        """For each window, the training data of its re-ranker, their centre, and the re-ranker itself."""
        left_out = () if voters else timed
        weights = before.votes(left_out)
        rerankers = [window.reranker(weights, left_out) for window in windows]
        pairs = zip(rerankers, windows, strict=True)
        return [(*reranker.training(window.held_out(reranker)), reranker) for reranker, window in pairs]

    def metric(voters: bool, features: bool, penalty: float = PENALTIES[0]) -> NDArray[np.float64]:
        """[users of both windows] metric of each user."""
        both, fits = ensembles(voters), list[Weights]()
        for n, (training, centre, reranker) in enumerate(both):
            strength = penalty * training.penalty
            if not features:
                strength[reranker.of_time] = ENDLESS
            begin = fitted.get((voters, n), (training.prior, None))
            fitted[voters, n] = fit_weights(training._replace(penalty=strength), None, *begin)
            weights = fitted[voters, n][0]
            fits.append(Weights(centre, weights, weights[None]))
        lists = [reranker.rerank(fit)[0] for (_, _, reranker), fit in zip(both, reversed(fits), strict=True)]
        return np.concatenate([each.validation.per_user(its) for each, its in zip(windows, lists, strict=True)])

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
    """Name the groups to take: a key of GROUPS, or none. metrics: group -> [n] metric with it; none: [n] without any"""
    gains = {name: gain(each, none) for name, each in metrics.items()}
    helpful = [name for name in ("voters", "features") if gains[name][0] > gains[name][1]]
    helpful.sort(key=lambda name: gains[name][0])
    if not helpful:
        return "none"
    more, error = gain(metrics["both"], metrics[helpful[-1]])
    return "both" if len(helpful) == 2 and more >= -TOLERATED * error else helpful[-1]


def gain(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> list[float]:
    """Mean of the difference of two metrics [n] of the same users, and its standard error."""
    difference = ours - theirs
    return [float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))]


def earlier_window(data: Split) -> Split | None:
    """Split the training part: its newest pairs, as many as validate, are held out. None: too few users are evaluated.

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


class TimeStage(Ensemble):
    """Stage `time` of a run."""

    def _time(self) -> dict[str, Any]:
        """Search the voters that know times, and keep these voters, and features of time, if they help (`decision`)."""
        train, few, timed = self.data.train, self.searched, [name for name in self.fixed if name in timed_voters()]
        self.chosen[TIME] = {"voters": 1.0, "features": 1.0, "penalty": PENALTIES[0]}
        for name in timed:
            fixed = self.chosen["als-a"] if name == "als-decayed" else {}
            fit = lambda settings, name=name, fixed=fixed: self.fit_fixed(name, train, fixed | settings)  # noqa: E731
            self.chosen[name] = fixed | search_fixed(name, fit, self.seen(train), few, self.plan.rounds)
        before, decision = self._earlier(), Decision(False, False, PENALTIES[0], {})
        if before is not None:
            voters = self._own_voters(train, self.validation.users)
            after = self._window(train, self.validation, voters, self._clock(train))
            self._cache |= {} if self.settings.foreign else {"ensemble": (voters, after.context)}
            users = sample(self.validation.validated, DECIDING * self.plan.users, self.seed)
            compared = Validation(self.data, self.run.metric, self.device, self.group, validated=users)
            decision = decide(before, after.few(compared), timed)
        *parts, gains = decision
        self.chosen[TIME] = dict(zip(("voters", "features", "penalty"), map(float, parts), strict=True))
        if not decision.voters:
            self.run.fixed_voters = tuple(name for name in self.run.fixed_voters if name not in timed)
            self.chosen = {name: each for name, each in self.chosen.items() if name not in timed}
        kept = [TIME, *(name for name in timed if name in self.chosen)]
        return {"chosen": {name: self.chosen[name] for name in kept}, "gains": gains}

    def _earlier(self) -> Window | None:
        """Return the ensemble before the last window of the training part; None: too few users are evaluated there."""
        if "earlier" not in self._cache:
            self._cache["earlier"] = self._fit_earlier()
        earlier: Window | None = self._cache["earlier"]
        return earlier

    def _fit_earlier(self) -> Window | None:
        past = earlier_window(self.data)
        if past is None:
            return None
        users = sample(past.validated, DECIDING * self.plan.users, self.seed)
        validation = Validation(past, self.run.metric, self.device, self.group, validated=users)
        log, times, als = past.train, past.times(["train"]), self.solver(past.train)
        vectors: dict[str, tuple[Tensor, Tensor]] = {}
        start: Tensor | tuple[Tensor, Tensor] = als.start(self._seed(7))
        for head in self.als:
            vectors[head] = als.fit(start, **self.chosen[head], sweeps=EARLIER_SWEEPS[bool(vectors)])
            start = vectors[head]
        clock = Clock.of(log, times, self.device).local(self.own)
        return self._window(log, validation, self._own_voters(log, validation.users, vectors, times), clock)

    def _window(self, log: csr_array, validation: Validation, voters: list[Voter], clock: Clock | None) -> Window:
        factors, local = [voter.factors for voter in voters if voter.factors is not None], self.local(log)
        context = Context.of(local, factors, self.device, self.group, clock, self.least_std)
        return Window(local, validation, voters, context, self.settings.consensus)

    def _earlier_reranker(self, voters: list[Voter]) -> tuple[Reranker, Tensor] | None:
        """Return the re-ranker of these voters in the earlier window, and the items held out there; None without one.

        Voters from outside have no lists of earlier windows.
        """
        earlier = None if "time" not in self.stages or self.settings.foreign else self._earlier()
        if earlier is None:
            return None
        left_out = {each.name for each in earlier.voters} - {each.name for each in voters}
        reranker = earlier.reranker(earlier.votes(left_out), left_out, bool(self.chosen[TIME]["features"]))
        return reranker, earlier.held_out(reranker)
