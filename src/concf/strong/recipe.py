"""Stages of the model strong: search, voters, re-ranker, student, then a refit on the whole log.

    search    choose the settings of the voters by validation
    als       fit two factor models by ALS
    time      by time: search voters that know times, and decide what of the log's times is used
    softmax   fit a head with a softmax loss, from the vectors of the first
    rerank    fit the re-ranker, cross-fitted
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
from concf.strong.decision import VOTER_TEMPERATURE, decide, taken
from concf.strong.features import Clock
from concf.strong.reranker import TOP, Context, Reranker, Weights
from concf.strong.run import StrongRun
from concf.strong.search import PLANS, list_length, n_consensus_users
from concf.strong.settings import STUDENT, TIME
from concf.strong.softmax import fit_softmax
from concf.strong.students import SOLVED_BY, by_groups, solve_student, teach_student, without_lists

SMALL = 32  # dimensions in the first search
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
        self.softmaxes = [head for head in settings.own_heads if head.startswith("softmax")]
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
        return self.group.gather(part, self.data.train.shape[0], dim)

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

    def _time(self) -> dict[str, Any]:
        """Search the voters that know times, and keep these voters, and features of time, if they help (`decision`)."""
        train, few, names = self.data.train, self.searched, [name for name in self.fixed if name in timed_voters()]
        self.chosen[TIME] = {"voters": 1.0, "features": 1.0}
        for name in names:
            fit = partial(self.fit_fixed, name, train)
            self.chosen[name] = search.search_fixed(name, fit, self.seen(train), few, self.plan.rounds[0])
        gains = decide(self, names)
        voters, features = taken(gains)
        self.chosen[TIME] = {"voters": float(voters), "features": float(features)}
        if not voters:
            self.run.fixed_voters = tuple(name for name in self.run.fixed_voters if name not in names)
            self.chosen = {name: each for name, each in self.chosen.items() if name not in names}
        kept = [TIME, *(name for name in names if name in self.chosen)]
        return {"chosen": {name: self.chosen[name] for name in kept}, "gains": gains}

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
        k = max(self.top_k, self.validation.depth)  # the metric may be deeper than the votes
        seen = self.seen(log)
        heads = [head for head in self.settings.heads if head in self.vectors and head != STUDENT]
        voters = [by_factors(head, Factors(*self.vectors[head]), seen, users, k) for head in heads]
        for name in self.fixed:
            fitted = Offset(self.fit_fixed(name, log, self.chosen[name]), self.own.start)
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
        voters = self._voters(self.data.train, self.validation.users)
        self._measure(voters)
        reranker = self._reranker(self.data.train, self.validation.users, voters)
        self.weights = reranker.fit(self.validation.held_out(reranker.lists[:, :TOP]), self.near)
        lists, _ = reranker.rerank(self.weights, cross_fitted=True)
        self.metrics[R_CONSENSUS] = self.validation.of_its_users(reranker.lists)
        self.metrics[CONSENSUS] = self.validation.of_its_users(lists)
        self._cache["lists"] = lists
        named = [*self.run.fixed_voters, R_CONSENSUS, CONSENSUS]
        return {"validation": {name: self.metrics[name] for name in named if name in self.metrics}}

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
        vectors = solve_student(pairs, users, lists[:, :regressed], self.shape, start, sweeps, group)
        self.vectors[STUDENT] = teach_student(*vectors, users, target_lists, epochs, self._seed(4), group)

    def _start(self) -> Tensor:
        """[items, d] initial vectors of the student."""
        return self.vectors["als-a"][1]

    def _student(self) -> dict[str, Any]:
        """Distil the cross-fitted lists, so that the metric of the student is unbiased too."""
        self._distil(self.data.train, self.validation.users, self._cross_fitted(), self._start())
        return self._validate(STUDENT)

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
            names = [*self.settings.heads, *self.run.fixed_voters]
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
