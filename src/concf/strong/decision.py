"""Decide how a log's times are used, on a window that did not fit the parts that use them.

Voters that know times, and features of time, are two groups. The ensemble is fitted twice: to the training part, with
the validation part as its window, and before the last window of the training part. The re-ranker is fitted in each of
the two windows, with and without each group, and measured in the other: weights that are fitted in one window and do
harm in another are not taken. What is taken must gain more per user than its standard error. Both groups are taken,
unless the better alone is ahead by more than two standard errors: a fit sees one window here, and the final weights are
fitted to both and, in `thorough`, to the window before them. The penalty of the weights is chosen in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.table import timed_voters
from concf.consensus.fitting import TrainingSet, Weights, fit_weights
from concf.consensus.voters import Voter
from concf.data.parts import TEST, TRAIN, VALID, origin
from concf.data.split import Split
from concf.evaluation.validation import Validation, sample
from concf.runs.settings import VotingSettings
from concf.strong.ensemble import Ensemble, plain_weights
from concf.strong.features import Clock
from concf.strong.reranker import TOP, Context, Reranker
from concf.strong.search import FIRST, FIRST_SWEEPS, als_settings, search_fixed
from concf.strong.settings import TIME

FEWEST = 100  # users of the earlier window; with fewer, times are not used
EARLIER_SWEEPS = 2  # of ALS before an earlier window, after the first sweeps of a search
EARLIER_USERS = 2  # most users of an earlier window, relative to those of a search
PENALTIES = (30.0, 10.0, 100.0)  # of the re-ranker; groups are compared with the first
NONE, BOTH = (False, False), (True, True)
TOLERATED = 2.0  # standard errors that both groups may be below the better one
ENDLESS = 1e12  # penalty that keeps a weight at 0
GROUPS = {"features": (False, True), "voters": (True, False), "both": BOTH}  # (voters, features); by sets of voters
Prepared = tuple[Reranker, TrainingSet]


class Window(NamedTuple):
    """Ensemble that was fitted to the training part of a split, and its voters' lists for validated users.

    log: [local users, items] the training part; context: with the times of the log
    """

    log: csr_array
    validation: Validation
    voters: list[Voter]
    context: Context
    settings: VotingSettings

    def prepared(self, left_out: Collection[str], features: bool = True) -> Prepared:
        """Make the re-ranker of the voters that are not left out, with or without features of time."""
        voters, n_items = [each for each in self.voters if each.name not in left_out], self.log.shape[1]
        weights = plain_weights({each.name: self.validation.of_its_users(each.lists) for each in voters})
        reranker = Reranker(
            self.log, self.validation.users, voters, weights, length=min(max(TOP, self.validation.depth), n_items),
            top_k=min(self.settings.top_k or n_items, n_items), temperature=self.settings.temperature,
            context=self.context if features else self.context._replace(clock=None), group=self.validation.group,
        )  # fmt: skip
        return reranker, reranker.training(self.validation.held_out(reranker.lists[:, :TOP]))


class Decision(NamedTuple):
    """voters, features: whether each group is used; penalty: of the re-ranker; gains, prepared: see `decide`."""

    voters: bool
    features: bool
    penalty: float
    gains: dict[str, list[float]]
    prepared: list[Prepared] | None = None


def decide(before: Window, after: Window, timed: Collection[str]) -> Decision:
    """Decide by two windows, each measured with weights of the other. timed: voters that know times

    gains: group -> mean gain of a user over no group, and its standard error
    prepared: for each window the re-ranker of the chosen voters, with features of time, and its training data
    All features of a set of voters are computed together; those of time are left out by an endless penalty.
    """
    windows = before, after
    kept: dict[bool, list[Prepared]] = {}  # of one set of voters at a time: its features are large
    fitted: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}  # last weights and Hessian, where the next fit begins

    def ensembles(voters: bool) -> list[Prepared]:
        """For each window, its re-ranker and training data."""
        if voters not in kept:
            kept.clear()
            kept[voters] = [window.prepared(() if voters else timed) for window in windows]
        return kept[voters]

    def metric(voters: bool, features: bool, penalty: float = PENALTIES[0]) -> NDArray[np.float64]:
        """[users of both windows] metric of each user."""
        both, fits = ensembles(voters), list[Weights]()
        for n, (reranker, training) in enumerate(both):
            drawn = training.penalised(training.prior, penalty)
            if not features:
                drawn.penalty[reranker.of_time] = ENDLESS
            begin = fitted.get((voters, n), (training.prior, None))
            fitted[voters, n] = fit_weights(drawn, None, *begin)
            weights = fitted[voters, n][0]
            fits.append(Weights(training.centre, weights, weights[None]))
        lists = [reranker.rerank(fit)[0] for (reranker, _), fit in zip(both, reversed(fits), strict=True)]
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
    return Decision(*parts, penalty, gains, ensembles(parts[0]))


def chosen(metrics: Mapping[str, NDArray[np.float64]], none: NDArray[np.float64]) -> str:
    """Name the groups to take: a key of GROUPS, or none. metrics: group -> [n] metric with it; none: [n] without any"""
    better = max(("voters", "features"), key=lambda name: float(metrics[name].mean()))
    more, error = gain(metrics["both"], metrics[better])
    for name in ("both", better) if more >= -TOLERATED * error else (better,):
        mean, its_error = gain(metrics[name], none)
        if mean > its_error:
            return name
    return "none"


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
        windows, decision = self._windows(), Decision(False, False, PENALTIES[0], {})
        if windows:
            decision = decide(windows[-2], windows[-1], timed)
            if decision.features and not self.settings.foreign:  # otherwise the features of time are left out
                self._cache["prepared"] = decision.prepared
        self.chosen[TIME] = {name: float(getattr(decision, name)) for name in ("voters", "features", "penalty")}
        if not decision.voters:
            self.run.fixed_voters = tuple(name for name in self.run.fixed_voters if name not in timed)
            self.chosen = {name: each for name, each in self.chosen.items() if name not in timed}
        kept = [TIME, *(name for name in timed if name in self.chosen)]
        return {"chosen": {name: self.chosen[name] for name in kept}, "gains": decision.gains}

    def _windows(self) -> list[Window]:
        """Earlier windows and that of the validation part, the oldest first; none: too few users are evaluated."""
        if "windows" not in self._cache:
            windows, past = list[Window](), self.data
            for _ in range(self.plan.earlier):
                if (before := earlier_window(past)) is None:
                    break
                windows.insert(0, self._earlier(before))
                past = before
            if windows:
                train, vectors = self.data.train, {head: self.vectors[head] for head in self.als}
                voters = self._own_voters(train, self.validation.users, vectors)
                windows.append(self._window(train, self.validation, voters, self._clock(train)))
            self._cache["windows"] = windows
        cached: list[Window] = self._cache["windows"]
        return cached

    def _prepared(self) -> Prepared | None:
        """The re-ranker, and the training data of all windows; None where there are none, or a voter is from outside.

        Voters from outside have no lists of earlier windows.
        """
        windows = self._windows() if "time" in self.stages and not self.settings.foreign else []
        newest: list[Prepared] = self._cache.pop("prepared", [])
        self._cache.pop("windows", None)
        if not windows:
            return None
        left_out = {each.name for each in windows[0].voters} - {*self.run.heads, *self.run.fixed_voters}
        others = windows[: len(windows) - len(newest)]
        earlier = [window.prepared(left_out, bool(self.chosen[TIME]["features"])) for window in others] + newest
        reranker, own = earlier.pop()
        return reranker, own.and_earlier([past for _, past in earlier])

    def _earlier(self, past: Split) -> Window:
        """Fit the ensemble to the training part of an earlier split, with its validation part as the window."""
        users = sample(past.validated, min(EARLIER_USERS * self.plan.users, self.run.n_validated), self.seed)
        validation = Validation(past, self.run.metric, self.device, self.group, validated=users)
        log, times, als = past.train, past.times(["train"]), self.solver(past.train)
        vectors: dict[str, tuple[Tensor, Tensor]] = {}
        first = als.fit(als.start(self._seed(7)), **als_settings(als, FIRST), sweeps=FIRST_SWEEPS)
        for head in self.als:
            vectors[head] = als.fit(first, **self.chosen[head], sweeps=EARLIER_SWEEPS)
        clock = Clock.of(log, times, self.device).local(self.own)
        return self._window(log, validation, self._own_voters(log, validation.users, vectors, times), clock)

    def _window(self, log: csr_array, validation: Validation, voters: list[Voter], clock: Clock | None) -> Window:
        factors, local = [voter.factors for voter in voters if voter.factors is not None], self.local(log)
        context = Context.of(local, factors, self.device, self.group, clock, self.least_std)
        return Window(local, validation, voters, context, self.settings.consensus)
