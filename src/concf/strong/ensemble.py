"""Ensemble: the voters of a run, their settings and vectors, and the re-ranker of their lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import ALS, Pairs
from concf.baselines.table import begins_with_als, timed_voters
from concf.baselines.table import voter as fixed_voter
from concf.consensus.fitting import Weights
from concf.consensus.voters import LEAST_STD, TIMED_LEAST_STD, Voter, by_factors, by_scores, voter_weights
from concf.evaluation.scorers import Factors, Offset
from concf.evaluation.validation import Validation, sample
from concf.runtime.arguments import derive_seed
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.strong.features import Clock
from concf.strong.reranker import Context, Reranker
from concf.strong.run import StrongRun
from concf.strong.search import PLANS, has_a_vote, list_length, n_consensus_users
from concf.strong.settings import STUDENT, TIME

VOTER_TEMPERATURE = 0.04  # a voter whose validation metric is this share below the best has weight 1/e
TIMED_TEMPERATURE = 0.15  # the same among voters that know times, or the best of them would list all candidates alone


def plain_weights(metrics: Mapping[str, float]) -> list[float]:
    """Weights of voters in the plain consensus. metrics: voter -> its validation metric"""
    timed = any(name in timed_voters() for name in metrics)
    return voter_weights(list(metrics.values()), TIMED_TEMPERATURE if timed else VOTER_TEMPERATURE)


class Ensemble:
    """The voters of a run so far.

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
        self.factors = settings.dimensions // (2 if self.plan.halved else 1)
        self.top_k = min(settings.consensus.top_k or self.shape[1], self.shape[1])
        self.chosen: dict[str, dict[str, float]] = {}
        self.vectors: dict[str, tuple[Tensor, Tensor]] = {}
        self.metrics: dict[str, float] = {}
        self.weights: Weights | None = None
        self.near: Tensor | None = None  # earlier weights of the re-ranker, which the penalty draws to
        self._cache: dict[str, Any] = {}
        self.als, self.softmaxes = (
            [head for head in settings.own_heads if head.startswith(kind) and head in run.heads]
            for kind in ("als", "softmax")
        )
        self.stages: dict[str, Callable[[], dict[str, Any]]] = {}

    @property
    def fixed(self) -> list[str]:
        """Own voters without vectors that the size of the log permits."""
        own = (name for name in self.run.fixed_voters if name not in self.settings.given)
        return [name for name in own if has_a_vote(name, self.data.train.shape, self.device)]

    def _seed(self, purpose: int) -> int:
        return derive_seed(self.seed, 18, purpose)

    def local(self, log: csr_array) -> csr_array:
        """[local users, items] rows of a log [users, items]."""
        return log[self.own] if self.group.several else log

    def _pairs(self, log: csr_array) -> Pairs:
        """Pairs that ALS fits: weighted pairs of local users with target 1, and their dislikes with target 0."""
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

    def solver(self, log: csr_array) -> ALS:
        """Make the ALS of a log [users, items]."""
        return ALS(self._pairs(log), self.shape, self.factors, self.group)

    def fit_fixed(
        self, name: str, log: csr_array, settings: Mapping[str, float], times: csr_array | None = None,
        item: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Fit a voter without vectors to a log [users, items].

        times, item: times of the log's pairs, and [items, d] vectors of ALS, for voters that use them; None: this run's
        """
        if name not in timed_voters():
            return fixed_voter(name, settings).fit(log, device=self.device, group=self.group)
        more = {"item": self.vectors["als-a"][1] if item is None else item} if begins_with_als(name) else {}
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

    def _voters(self, log: csr_array, users: Tensor) -> list[Voter]:
        """Voters fitted to a log [users, items], with their lists for local users [n]."""
        return self._own_voters(log, users)

    def _own_voters(
        self, log: csr_array, users: Tensor, vectors: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        times: csr_array | None = None,
    ) -> list[Voter]:  # fmt: skip
        """Make the voters that are not given, with their lists for local users [n].

        vectors, times: vectors of the heads, and times of the log's pairs; None: this run's
        """
        k = max(self.top_k, self.validation.depth)  # the metric may be deeper than the votes
        seen, vectors = self.seen(log), self.vectors if vectors is None else vectors
        heads = [head for head in self.run.heads if head in vectors and head != STUDENT]
        voters = [by_factors(head, Factors(*vectors[head]), seen, users, k) for head in heads]
        for name in self.fixed:
            item = vectors["als-a"][1] if begins_with_als(name) else None
            fitted = Offset(self.fit_fixed(name, log, self.chosen[name], times, item), self.own.start)
            voters.append(by_scores(name, fitted, seen, users, k, group=self.group, least_std=self.least_std))
        return voters

    def _weights_of(self, voters: list[str]) -> list[float]:
        """Weights of the voters in the plain consensus, by validation."""
        return plain_weights({name: self.metrics[name] for name in voters})

    def _reranker(self, log: csr_array, users: Tensor, voters: Sequence[Voter]) -> Reranker:
        """Make the re-ranker of voters for users [n]."""
        weights = self._weights_of([voter.name for voter in voters])
        length, local = max(list_length(self.data, self.settings), self.validation.depth), self.local(log)
        factors = [voter.factors for voter in voters if voter.factors is not None]
        context = Context.of(local, factors, users.device, self.group, self._clock(log), self.least_std)
        return Reranker(
            local, users, voters, weights, length=length, top_k=self.top_k,
            temperature=self.settings.consensus.temperature, context=context, group=self.group,
        )  # fmt: skip
