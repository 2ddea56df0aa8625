"""Stages of the model strong: search, voters, re-ranker, student, then a refit on the whole log.

    search    choose the settings of the voters by validation
    als       fit two factor models by ALS
    time      by time: search voters that know times, and decide what of the log's times is used
    softmax   unless by time: fit a head with a softmax loss, from the vectors of the first
    rerank    fit the re-ranker, cross-fitted; by time to two windows
    student   distil the consensus into one head
    refit     refit the voters on the training and validation parts (or on everything)
    final     compute the consensus of these voters for all users, and distil it

Finished stages are in the checkpoint: a killed run resumes with the stage that it was in, and has the same result.
Up to `student` metrics are of users with held-out items; the settings and the re-ranker's weights chosen there are
carried over to `refit` and `final`, and the metrics measured there stay the run's validation.

Where users x items exceed the budget, `final` computes the consensus for a sample of the users. They teach the student;
the others get vectors without lists (`students.without_lists`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS, Pairs, UserSolver
from concf.baselines.table import timed_voters
from concf.baselines.table import voter as fixed_voter
from concf.consensus.consensus import CONSENSUS, NOTHING, R_CONSENSUS
from concf.consensus.voters import LEAST_STD, TIMED_LEAST_STD, Voter, by_factors, by_scores, kept_votes, voter_weights
from concf.errors import note
from concf.evaluation.metrics import popularity_groups
from concf.evaluation.scorers import Factors, Offset
from concf.evaluation.validation import Validation, sample
from concf.runs.run import Best
from concf.runtime.arguments import derive_seed
from concf.runtime.executors import one_thread_each
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong import search
from concf.strong.decision import PENALTIES, VOTER_TEMPERATURE, Decision, Window, decide, earlier_window
from concf.strong.features import Clock
from concf.strong.reranker import TOP, Context, Reranker, Weights
from concf.strong.run import StrongRun
from concf.strong.search import PLANS, list_length, n_consensus_users
from concf.strong.settings import STUDENT, TIME
from concf.strong.softmax import fit_softmax
from concf.strong.students import (
    LISTED_WEIGHT,
    SOLVED_BY,
    USUAL,
    by_groups,
    solve_student,
    teach_student,
    without_lists,
)

EARLIER_SWEEPS = 6, 3  # of ALS before the last window of the training part: from the start, and from there
DECIDING = 2  # users of a window in a decision, relative to those of a search
SMALL = 32  # dimensions in the first search
KEPT = 0.985  # share of the consensus that a student keeps; below it, other settings are tried
BEHIND = 0.8  # a softmax with less than this share of ALS' validation after an epoch is not trained further
VOTES_OF_USERS = {  # votes with a dimension of users: that dimension, and the padding
    "items": (1, NOTHING), "consistency": (1, 0.0), "reranked": (0, -torch.inf),
}  # fmt: skip


class Recipe:
    """The stages of a run, and their results so far.

    stages:  name -> function, in order
    chosen:  voter -> its settings
    vectors: head -> ([local users, d], [items, d])
    metrics: head, voter or consensus -> its validation metric
    weights: weights of the re-ranker
    group:   the users are divided among processes: each holds the log, vectors, lists and votes of its local users,
             whose positions are offset by the first of them; every process has all items
    shape:   (local users, items)
    consensus_users: local users for whom the consensus is computed, ascending: all with a learned pair, or a sample
    """

    def __init__(self, run: StrongRun, group: ProcessGroup = ALONE) -> None:
        data, settings, seed, device = run.data, run.settings, run.seed, run.device
        self.run, self.data, self.settings, self.seed, self.device = run, data, settings, seed, device
        self.group, self.plan = group, PLANS[settings.budget]
        everyone = sample(data.validated, run.n_validated, seed)
        self.validation = Validation(data, run.metric, device, group, validated=everyone)
        few = sample(everyone, self.plan.users, seed)
        self.searched = Validation(data, run.metric, device, group, validated=few)
        self.own = group.share(data.train.shape[0])
        self.shape: tuple[int, int] = (self.own.stop - self.own.start, data.train.shape[1])
        sampled = sample(np.arange(data.train.shape[0]), n_consensus_users(data.train.shape, settings), seed)
        local = sampled[(sampled >= self.own.start) & (sampled < self.own.stop) & ~run.unlearned[sampled]]
        self.consensus_users = torch.from_numpy(local - self.own.start).to(device)
        self.factors = settings.dimensions
        self.top_k = min(settings.consensus.top_k or self.shape[1], self.shape[1])
        self.chosen: dict[str, dict[str, float]] = {}
        self.vectors: dict[str, tuple[Tensor, Tensor]] = {}
        self.metrics: dict[str, float] = {}
        self.weights: Weights | None = None
        self.near: Tensor | None = None  # earlier weights of the re-ranker, which the penalty draws to
        self._cache: dict[str, Any] = {}
        self.softmaxes = [head for head in settings.own_heads if head.startswith("softmax") and head in run.heads]
        self.stages: dict[str, Callable[[], dict[str, Any]]] = {}
        if settings.own:
            self.stages = {"search": self._search, "als": self._als}
            self.stages |= {"time": self._time} if run.by_time else {}
        for head in self.softmaxes:
            self.stages[head] = partial(self._softmax, head)
        self.stages |= {"rerank": self._rerank, "student": self._student}
        self.stages |= {} if settings.refit == "none" else {"refit": self._refit}
        self.stages["final"] = self._final

    @property
    def fixed(self) -> list[str]:
        """Own voters without vectors that the size of the log permits."""
        own = (name for name in self.run.fixed_voters if name not in self.settings.given)
        return [name for name in own if search.has_a_vote(name, self.data.train.shape, self.device)]

    def stage(self, number: int) -> dict[str, Any]:
        """Run one stage; returns its record for the history."""
        name, work = list(self.stages.items())[number]
        begin = time.perf_counter()
        with one_thread_each():
            record = {"epoch": number, "stage": name} | work()
            if number == len(self.stages) - 1:
                self._finish()
        return record | {"seconds": time.perf_counter() - begin}

    @torch.no_grad()
    def _finish(self) -> None:
        """Store all results in the run."""
        last = len(self.stages) - 1
        for head in self.run.heads:
            user, item = self.vectors[head]
            vectors = {"user": self._gather(user), "item": item}
            self.run.best[head] = Best(self.metrics[head], last, last, vectors)
        lists, plain, votes = self.agreed()
        lists, plain = self._gather(self._spread(lists)), self._gather(self._spread(plain))
        votes |= {
            name: self._gather(self._spread(votes[name], dim, nothing), dim)
            for name, (dim, nothing) in VOTES_OF_USERS.items()
            if name in votes
        }
        self.run.best[R_CONSENSUS] = Best(self.metrics[R_CONSENSUS], last, last, lists=plain)
        self.run.best[CONSENSUS] = Best(self.metrics[CONSENSUS], last, last, lists=lists, votes=votes)

    def _gather(self, part: Tensor, dim: int = 0) -> Tensor:
        """Gather the rows of all users from all processes."""
        return self.group.gather(part, dim)

    def _spread(self, part: Tensor, dim: int = 0, nothing: float = NOTHING) -> Tensor:
        """Scatter the rows of the consensus users into a tensor of all local users, filled with `nothing`."""
        if len(self.consensus_users) == self.shape[0]:
            return part
        shape = list(part.shape)
        shape[dim] = self.shape[0]
        whole = torch.empty(*shape, dtype=part.dtype, device=part.device)
        return whole.fill_(nothing).index_copy_(dim, self.consensus_users, part)

    def _seed(self, purpose: int) -> int:
        return derive_seed(self.seed, 18, purpose)

    def local(self, log: csr_array) -> csr_array:
        """[local users, items] rows of a log [users, items]."""
        return log[self.own] if self.group.several else log

    def _pairs(self, log: csr_array) -> Pairs:
        """Pairs that ALS fits: the weighted pairs of local users, with target 1, and their dislikes, with target 0."""
        dtype, disliked = torch.get_default_dtype(), self.data.disliked
        observed = Pairs.observed(self.local(log), self.device, dtype)
        if disliked is None:
            return observed
        weighted = self.local(disliked) * self.settings.weights.dislike
        return observed.and_more(Pairs.observed(weighted, self.device, dtype, target=0.0))

    def seen(self, log: csr_array) -> csr_array:
        """[local users, items] pairs that are never recommended: those of a log [users, items], and dislikes."""
        local, disliked = self.local(log), self.data.disliked
        return local if disliked is None else (local + self.local(disliked)).tocsr()

    def solver(self, log: csr_array, factors: int | None = None) -> ALS:
        """Make the ALS of a log [users, items]. factors: None for all dimensions"""
        return ALS(self._pairs(log), self.shape, factors or self.factors, self.group)

    def _search(self) -> dict[str, Any]:
        """Choose the settings of ALS, with few dimensions, and of the fixed voters."""
        train, few = self.data.train, self.searched
        small, seen = self.solver(train, min(SMALL, self.factors)), self.seen(train)
        start, rounds = small.start(self._seed(0)), self.plan.rounds[0]
        points = search.search_als(small, seen, few, start, search.MIDDLE, rounds)
        self.chosen["als"] = search.als_settings(points[0])
        for name in self.fixed:
            if name == "rp3beta":
                self.chosen[name] = search.search_walks(train, seen, few, self.device)
            elif name not in timed_voters():
                self.chosen[name] = search.search_fixed(name, partial(self.fit_fixed, name, train), seen, few, rounds)
        return {"chosen": dict(self.chosen)}

    def fit_fixed(
        self, name: str, log: csr_array, settings: Mapping[str, float], times: csr_array | None = None,
        item: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Fit a voter without vectors to a log [users, items].

        times, item: of the log's pairs, and [items, d] vectors of ALS, for voters that need them; None: this run's
        """
        if name not in timed_voters():
            return fixed_voter(name, settings).fit(log, device=self.device, group=self.group)
        more = {"item": self.vectors["als-a"][1] if item is None else item} if name == "als-sequence" else {}
        times = self._times(log) if times is None else times
        return fixed_voter(name, settings).fit(log, device=self.device, times=times, **more)

    def _times(self, log: csr_array) -> csr_array:
        """[users, items] times of the pairs of a log: the training part, or what the run learns from."""
        return self.data.times(["train"] if log is self.data.train else self.run.learned)

    def _clock(self, log: csr_array) -> Clock | None:
        """Times of the local users' pairs in a log, if they are features of the re-ranker."""
        if not self.chosen.get(TIME, {}).get("features"):
            return None
        return Clock.of(log, self._times(log), self.device).local(self.own)

    @property
    def least_std(self) -> float:
        """Lower bound of the standard deviation of an item's scores."""
        return TIMED_LEAST_STD if TIME in self.chosen else LEAST_STD

    @property
    def _timed(self) -> list[str]:
        """Voters that know times."""
        return [name for name in self.fixed if name in timed_voters()]

    def _time(self) -> dict[str, Any]:
        """Search the voters that know times, and keep these voters, and features of time, if they help (`decision`)."""
        train, few, timed = self.data.train, self.searched, self._timed
        self.chosen[TIME] = {"voters": 1.0, "features": 1.0, "penalty": PENALTIES[0]}
        for name in timed:
            fixed = self.chosen["als-a"] if name == "als-decayed" else {}
            fit = lambda settings, name=name, fixed=fixed: self.fit_fixed(name, train, fixed | settings)  # noqa: E731
            self.chosen[name] = fixed | search.search_fixed(name, fit, self.seen(train), few, self.plan.rounds[0])
        before, decision = self._earlier(), Decision(False, False, PENALTIES[0], {})
        if before is not None:
            voters = self._own_voters(train, self.validation.users)
            self._cache |= {} if self.settings.foreign else {"voters": voters}
            after = self._window(train, self.validation, voters, self._clock(train))
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
        """The ensemble before the last window of the training part; None if too few users can be evaluated there."""
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
        vectors, start = {}, als.start(self._seed(7))
        for head, sweeps in zip(("als-a", "als-b"), EARLIER_SWEEPS, strict=True):
            vectors[head] = als.fit(start, **self.chosen[head], sweeps=sweeps)
            start = vectors[head][1]
        clock = Clock.of(log, times, self.device).local(self.own)
        return self._window(log, validation, self._own_voters(log, validation.users, vectors, times), clock)

    def _window(self, log: csr_array, validation: Validation, voters: list[Voter], clock: Clock | None) -> Window:
        factors, local = [voter.factors for voter in voters if voter.factors is not None], self.local(log)
        context = Context.of(local, factors, self.device, self.group, clock, self.least_std)
        return Window(local, validation, voters, context, self.settings.consensus)

    def _als(self) -> dict[str, Any]:
        """Search around the chosen settings with all dimensions, and keep the two best that are stable over sweeps."""
        train = self.data.train
        als, seen = self.solver(train), self.seen(train)
        chosen, start = self.chosen["als"], als.start(self._seed(1))
        first = search.UNOBSERVED.index(chosen["unobserved"]), search.PENALTY.index(chosen["penalty"])
        points = search.search_als(als, seen, self.searched, start, first, self.plan.rounds[1])
        stable = search.stable_points(als, points, seen, self.searched, self.plan.sweeps[0])
        for name, (point, vectors) in zip(("als-a", "als-b"), stable, strict=True):
            self.chosen[name] = search.als_settings(point)
            self.vectors[name] = vectors
        return {"chosen": {name: self.chosen[name] for name in ("als-a", "als-b")}} | self._validate("als-a", "als-b")

    def _softmax(self, head: str) -> dict[str, Any]:
        """Fit a softmax head from the vectors of the better ALS; a second head has the next best temperature.

        A head that is far behind ALS after an epoch would hardly vote, and is not trained further.
        """
        train = self.data.train
        if head == self.softmaxes[0]:
            vectors, local, seen = self.vectors["als-a"], self.local(train), self.seen(train)
            seed, wanted = self._seed(2), len(self.softmaxes)
            tried = search.search_temperature(local, seen, self.searched, *vectors, seed, wanted)
            least = BEHIND * search.measured(Factors(*vectors), seen, self.searched)
            for name, (metric, temperature, vectors) in zip(self.softmaxes, tried, strict=True):
                more = 0 if metric < least else self.plan.softmax[0]
                self.chosen[name] = {"temperature": temperature, "epochs": 1 + more}
                self.vectors[name] = vectors
        self._fit_softmax(train, head, int(self.chosen[head]["epochs"]) - 1, self._seed(3))
        return {"chosen": {head: self.chosen[head]}} | self._validate(head)

    def _fit_softmax(self, log: csr_array, head: str, epochs: int, seed: int) -> None:
        """Train a softmax head for more epochs."""
        temperature, start = self.chosen[head]["temperature"], self.vectors[head]
        self.vectors[head] = fit_softmax(self.local(log), *start, temperature, epochs, seed, group=self.group)

    def _validate(self, *heads: str) -> dict[str, Any]:
        """Measure the validation metric of heads."""
        for head in heads:
            factors = Factors(*self.vectors[head])
            self.metrics[head] = search.measured(factors, self.seen(self.data.train), self.validation)
        return {"validation": {head: self.metrics[head] for head in heads}}

    def _voters(self, log: csr_array, users: Tensor) -> list[Voter]:
        """Voters fitted to a log [users, items], with their lists for local users [n]."""
        return self._own_voters(log, users)

    def _own_voters(
        self, log: csr_array, users: Tensor, vectors: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        times: csr_array | None = None,
    ) -> list[Voter]:  # fmt: skip
        """Those that are not given.

        vectors, times: of the heads, and of the log's pairs; None: this run's
        """
        k = max(self.top_k, self.validation.depth)  # the metric may be deeper than the votes
        seen, vectors = self.seen(log), self.vectors if vectors is None else vectors
        heads = [head for head in self.run.heads if head in vectors and head != STUDENT]
        voters = [by_factors(head, Factors(*vectors[head]), seen, users, k) for head in heads]
        for name in self.fixed:
            item = vectors["als-a"][1] if name == "als-sequence" else None
            fitted = Offset(self.fit_fixed(name, log, self.chosen[name], times, item), self.own.start)
            voters.append(by_scores(name, fitted, seen, users, k, group=self.group, least_std=self.least_std))
        return voters

    def _reranker(self, log: csr_array, users: Tensor, voters: list[Voter]) -> Reranker:
        weights = voter_weights([self.metrics[voter.name] for voter in voters], VOTER_TEMPERATURE)
        length, local = max(list_length(self.data, self.settings), self.validation.depth), self.local(log)
        factors = [voter.factors for voter in voters if voter.factors is not None]
        context = Context.of(local, factors, users.device, self.group, self._clock(log), self.least_std)
        return Reranker(
            local, users, voters, weights, length=length, top_k=self.top_k,
            temperature=self.settings.consensus.temperature, context=context, group=self.group,
        )  # fmt: skip

    def _measure(self, voters: list[Voter]) -> None:
        """Measure the validation metric of the voters."""
        for voter in voters:
            self.metrics[voter.name] = self.validation.of_its_users(voter.lists)

    def _rerank(self) -> dict[str, Any]:
        """Fit the re-ranker to the held-out items of the validated users; its metrics are cross-fitted."""
        names = {*self.run.heads, *self.run.fixed_voters}
        voters = self._cache.pop("voters", None) or self._voters(self.data.train, self.validation.users)
        voters = [voter for voter in voters if voter.name in names]
        self._measure(voters)
        reranker, chosen = self._reranker(self.data.train, self.validation.users, voters), self.chosen.get(TIME, {})
        held_out = self.validation.held_out(reranker.lists[:, :TOP])
        penalty = chosen.get("penalty")
        self.weights = reranker.fit(held_out, self.near, penalty, self._earlier_reranker(voters))
        self._cache.pop("earlier", None)
        lists, _ = reranker.rerank(self.weights, cross_fitted=True)
        self.metrics[R_CONSENSUS] = self.validation.of_its_users(reranker.lists)
        self.metrics[CONSENSUS] = self.validation.of_its_users(lists)
        self._cache["lists"] = lists
        named = [*self.run.fixed_voters, R_CONSENSUS, CONSENSUS]
        return {"validation": {name: self.metrics[name] for name in named if name in self.metrics}}

    def _earlier_reranker(self, voters: list[Voter]) -> tuple[Reranker, Tensor] | None:
        """The re-ranker of these voters in the earlier window, and what is held out there; None: there is none.

        Voters from outside have no lists of earlier windows.
        """
        earlier = None if "time" not in self.stages or self.settings.foreign else self._earlier()
        if earlier is None:
            return None
        left_out = {each.name for each in earlier.voters} - {each.name for each in voters}
        reranker = earlier.reranker(earlier.votes(left_out), left_out, bool(self.chosen[TIME]["features"]))
        return reranker, earlier.held_out(reranker)

    def _cross_fitted(self) -> Tensor:
        """[local validated users, L] consensus lists, each re-ranked with weights fitted on the other folds."""
        if "lists" not in self._cache:
            assert self.weights is not None
            train, users = self.data.train, self.validation.users
            reranker = self._reranker(train, users, self._voters(train, users))
            self._cache["lists"] = reranker.rerank(self.weights, cross_fitted=True)[0]
        lists: Tensor = self._cache["lists"]
        return lists

    def _distil(self, log: csr_array, users: Tensor, lists: Tensor, start: Tensor) -> None:
        (sweeps, epochs), (regressed, taught) = self.plan.student, self.plan.depth
        groups, target_lists = self.settings.popularity_groups, [lists[:, :taught]]
        if groups > 1:
            of_items = torch.from_numpy(popularity_groups(log, groups)).to(self.device)
            target_lists = by_groups(lists[:, :taught], of_items, groups)
        pairs, group = self._pairs(log), self.group
        settings = self.chosen.get(STUDENT, USUAL)
        vectors = solve_student(pairs, users, lists[:, :regressed], self.shape, start, sweeps, settings, group)
        self.vectors[STUDENT] = teach_student(*vectors, users, target_lists, epochs, self._seed(4), group)

    def _start(self) -> Tensor:
        """[items, d] initial vectors of the student."""
        return self.vectors["als-a"][1]

    def _student(self) -> dict[str, Any]:
        """Distil the cross-fitted lists, so that the metric of the student is unbiased too.

        Where the usual settings of its regression lose more than a little of the consensus, as on a dense log, others
        are tried: those that ALS has chosen for the log, and lists that weigh less or more.
        """
        tried = [self._taught(USUAL)]
        if tried[0][0] < KEPT * self.metrics[CONSENSUS] and "als-a" in self.chosen:
            own = self.chosen["als-a"]
            tried += [self._taught(own | {"listed": weight}) for weight in (1.0, LISTED_WEIGHT)]
            tried += [self._taught(SOLVED_BY | {"listed": weight}) for weight in (1.0, 10.0)]
        self.metrics[STUDENT], self.chosen[STUDENT], self.vectors[STUDENT] = max(tried, key=lambda each: each[0])
        return {"chosen": {STUDENT: self.chosen[STUDENT]}, "validation": {STUDENT: self.metrics[STUDENT]}}

    def _taught(self, settings: Mapping[str, float]) -> tuple[float, dict[str, float], tuple[Tensor, Tensor]]:
        """Distil with these settings; returns the student's validation, the settings and its vectors."""
        self.chosen[STUDENT] = dict(settings)
        self._distil(self.data.train, self.validation.users, self._cross_fitted(), self._start())
        self._validate(STUDENT)
        return self.metrics[STUDENT], self.chosen[STUDENT], self.vectors[STUDENT]

    def _refit(self) -> dict[str, Any]:
        """Refit the voters on the whole log, from their present vectors."""
        log = self.run.log
        als = self.solver(log)
        for head in ("als-a", "als-b"):
            if head in self.vectors:
                self.vectors[head] = als.fit(self.vectors[head][1], **self.chosen[head], sweeps=self.plan.sweeps[1])
        for head in self.softmaxes:
            epochs = 1 if self.chosen[head]["epochs"] == 1 else self.plan.softmax[1]
            self._fit_softmax(log, head, epochs, self._seed(5))
        return {}

    def _final(self) -> dict[str, Any]:
        """Compute the consensus of the refitted voters with the weights of `rerank`, and distil it."""
        lists = self.agreed()[0]
        self._distil(self.run.log, self.consensus_users, lists, self.vectors[STUDENT][1])
        n, everyone = n_consensus_users(self.data.train.shape, self.settings), self.data.train.shape[0]
        if n == everyone:
            return {}
        if self.group.is_main:
            note(
                f"the consensus was computed for {n:,} of {everyone:,} users, drawn at random: they taught the "
                "student, which ranks for the others (consensus_users)"
            )
        user, item = self.vectors[STUDENT]
        solve = UserSolver(item, **self.chosen.get("als-a", SOLVED_BY))
        alone = solve(self._pairs(self.run.log), len(user))
        voters = [self.vectors[head][0] for head in self.vectors if head != STUDENT]
        self.vectors[STUDENT] = without_lists(alone, user, voters, self.consensus_users, self.group), item
        return {"consensus_users": n}

    def agreed(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Consensus of the consensus users [n]: re-ranked lists [n, L], plain lists [n, L], and the votes."""
        if "consensus" not in self._cache:
            assert self.weights is not None
            log, users = self.run.log, self.consensus_users
            voters = self._voters(log, users)
            reranker = self._reranker(log, users, voters)
            lists, scores = reranker.rerank(self.weights)
            names = [*self.run.heads, *self.run.fixed_voters]
            votes = kept_votes(voters, reranker.voter_weights, names, self.top_k)
            votes |= {"reranked": scores, "weights": self.weights.everyone, "centre": self.weights.centre}
            of_items = [voter.of_items for voter in voters if voter.of_items is not None]
            votes |= {"of_items": torch.stack(of_items)} if of_items else {}
            self._cache["consensus"] = lists, reranker.lists, votes
        result: tuple[Tensor, Tensor, dict[str, Tensor]] = self._cache["consensus"]
        return result

    def tables(self) -> list[Tensor]:
        """Tensors that must match on all ranks."""
        return [item for _, item in self.vectors.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return what the next stages depend on, for all users."""
        weights = None if self.weights is None else self.weights._asdict()
        vectors = {head: (self._gather(user), item) for head, (user, item) in self.vectors.items()}
        return {"chosen": self.chosen, "vectors": vectors, "metrics": self.metrics, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.chosen, self.metrics = state["chosen"], state["metrics"]
        self.vectors = {head: (user[self.own].clone(), item) for head, (user, item) in state["vectors"].items()}
        self.weights = None if state["weights"] is None else Weights(**state["weights"])
