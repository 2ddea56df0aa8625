"""Fold in new users for the model strong: rank for histories that a run was not trained on.

Each head solves its own objective for the user, with its item vectors fixed: least squares (`baselines/als.py`), a
softmax (`softmax.py`) or, the student, least squares on the history and its consensus list, as it was taught. Voters
without vectors score a history by their own formula. The votes go through the same consensus and the same re-ranker as
those of a known user, with the features standardised by the users of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.als import Pairs, UserSolver
from concf.baselines.table import begins_with_als, timed_voters, voter, voters
from concf.consensus.fitting import Weights
from concf.consensus.voters import LEAST_STD, LISTED_FEATURES, TIMED_LEAST_STD, Voter, by_lists, first_items, kept_votes
from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import top_k
from concf.evaluation.scorers import Factors, Scorer
from concf.runs.fold_in import Agreed, FoldIn, Solve, Times
from concf.strong.features import Clock
from concf.strong.reranker import Context, Reranker
from concf.strong.settings import STUDENT, StrongSettings
from concf.strong.softmax import UserSoftmax
from concf.strong.students import USUAL, listed_pairs

CPU = torch.device("cpu")
BLOCK = 1 << 22  # scores that are held at a time
LISTED = 100  # items of the consensus list of a history that its student is solved towards


class StrongFoldIn(FoldIn):
    """The heads and the consensus of a run.

    fixed_voters: voters without vectors; chosen: voter -> the settings that training chose for it
    times, clock: [users, items] of the log's pairs, and features of them, if the run uses them
    """

    settings: StrongSettings

    def __init__(
        self, log: csr_array, settings: StrongSettings, heads: Mapping[str, Factors], voters: Mapping[str, Factors],
        votes: Mapping[str, Tensor], fixed_voters: tuple[str, ...], chosen: Mapping[str, Mapping[str, float]],
        times: csr_array | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        super().__init__(log, settings, heads, voters, votes)
        self.fixed_voters, self.chosen, self.times, self.clock = fixed_voters, chosen, times, clock
        self._fitted: dict[str, Any] = {}

    def as_of(self, clock: Clock) -> StrongFoldIn:
        """The same at another time."""
        other = copy(self)
        other.clock, other._folded = clock, {}
        vars(other)["context"] = self.context._replace(clock=clock)
        return other  # with the same fitted voters

    def head(self, name: str, histories: csr_array, times: Times = None, *, voting: bool = False) -> Factors:  # noqa: ARG002
        """A head, with a user for each history. voting: has no effect, since a head has one state here."""
        return super().head(name, histories, times)

    def _solver(self, name: str, factors: Factors) -> Solve:
        if name in self.settings.given_vectors:
            return super()._solver(name, factors)
        chosen = self.chosen.get(name, USUAL)
        if "temperature" in chosen:
            softmax, length = UserSoftmax(factors.item, chosen["temperature"]), factors.user.norm(dim=1).max()
            return lambda histories, _times: softmax(histories) * length
        squares = UserSolver(factors.item, chosen["unobserved"], chosen["penalty"])
        taught = name == STUDENT and self.can_agree  # a student is solved towards its consensus list too

        def solve(histories: csr_array, times: Times) -> Tensor:
            pairs, n = Pairs.observed(histories, CPU), histories.shape[0]
            if taught:
                lists = self.agree(histories, times).lists[:, :LISTED]
                pairs = pairs.and_more(listed_pairs(torch.arange(n), lists, chosen["listed"]))
            return squares(pairs, n)

        return solve

    def agree(self, histories: csr_array, times: Times = None) -> Agreed:
        """Consensus of histories, as for users of the log."""
        chosen, (n, n_items) = self.settings.consensus, histories.shape
        k, users = min(chosen.top_k or n_items, n_items), torch.arange(n)
        heads = {name: self.head(name, histories) for name in self.voters}
        voters, given = self._votes(heads, histories, times, k), self._voter_weights()
        weights = [given[each.name] for each in voters]
        votes = kept_votes(voters, weights, list(given), k)
        if not self.can_agree:
            student = self.head(STUDENT, histories)
            lists, scores = first_items(student, histories, users, min(chosen.shown, n_items))
            return Agreed(lists, lists, votes | {"reranked": scores})
        reranker = Reranker(
            histories, users, voters, weights, length=self.votes["reranked"].shape[1], top_k=k,
            temperature=chosen.temperature,
            context=self.context.folded(histories, [each.user for each in heads.values()], times),
        )  # fmt: skip
        lists, scores = reranker.rerank(self.weights)
        votes |= {"reranked": scores, "weights": self.weights.everyone, "centre": self.weights.centre}
        return Agreed(lists, reranker.lists, votes)

    def _votes(self, heads: Mapping[str, Factors], histories: csr_array, times: Times, k: int) -> list[Voter]:
        """The voters, in order; all items of all voters are ranked in one pass. k: length of their lists"""
        n, scorers = histories.shape[0], dict[str, Scorer](heads)
        for name, (fold_in, of_items) in self.fixed.items():
            if fold_in is not None:
                more = {"times": times} if name in timed_voters() else {}
                scorers[name] = _OrAverage(fold_in(histories, **more), histories, of_items)
        blocks, size = list[list[Tensor]](), max(1, BLOCK // max(1, len(scorers) * histories.shape[1]))
        for users in torch.split(torch.arange(n), size) if scorers else ():
            scores = torch.stack([each.scores(users) for each in scorers.values()])  # [voters, b, items]
            cells = torch.from_numpy(flat_cells(histories if len(users) == n else histories[users.numpy()]))
            scores.flatten(1).index_fill_(1, cells, -torch.inf)
            values, items = top_k(scores.flatten(0, 1), k)
            items = items.masked_fill_(values == -torch.inf, -1).to(torch.int32)
            blocks.append([each.view(len(scorers), -1, k) for each in (items, values)])
        parts = [torch.cat(each, 1) for each in zip(*blocks, strict=True)]  # lists and scores [voters, n, k]
        ranked, voters = dict(zip(scorers, zip(*parts, strict=True), strict=True)), list[Voter]()
        for name in (*heads, *self.fixed):
            if name not in ranked:
                nothing = torch.full((n, k), -1, dtype=torch.int32)
                voters.append(Voter(name, nothing, None, torch.zeros(n, k, LISTED_FEATURES)))
            elif name in heads:
                voters.append(Voter(name, ranked[name][0], heads[name]))
            else:
                listed, scored = ranked[name]
                voters.append(by_lists(name, listed, scored, self.fixed[name][1]))
        return voters

    @cached_property
    def weights(self) -> Weights:
        """Weights of the re-ranker."""
        everyone = self.votes["weights"]
        return Weights(self.votes["centre"], everyone, everyone[None])

    @cached_property
    def can_agree(self) -> bool:
        """Whether anyone can vote for a history; where all voters are given lists, the student ranks alone."""
        return bool(self.voters) or any(fold_in is not None for fold_in, _ in self.fixed.values())

    @cached_property
    def context(self) -> Context:
        """Statistics of the users of the log."""
        least_std = LEAST_STD if self.times is None else TIMED_LEAST_STD
        return Context.of(self.log, list(self.voters.values()), CPU, clock=self.clock, least_std=least_std)

    @cached_property
    def fixed(self) -> dict[str, tuple[Callable[..., Scorer] | None, Tensor]]:
        """Voter without vectors -> function that scores histories, and [4, items] its statistics over the log's users.

        A given one has lists of known users, and None for histories; so has one that only a GPU can fit in time.
        """
        names = [name for name in self.fixed_voters if name in self.chosen or name in self.settings.given]
        own = {name: voter(name, self.chosen[name]).fold_in for name in names if self.affordable(name)}
        fitted = [partial(own[name], self.fitted(name)) if name in own else None for name in names]
        return dict(zip(names, zip(fitted, self.votes.get("of_items", ()), strict=True), strict=True))

    def affordable(self, name: str) -> bool:
        """Whether a voter without vectors is concf's own, and can be fitted on a CPU."""
        return name in self.chosen and not (voters()[name].items and self.log.shape[1] > voters()[name].most[0])

    def fitted(self, name: str) -> Any:
        """Fit a voter without vectors to the log, as in training; cached."""
        if name not in self._fitted:
            own = voter(name, self.chosen[name])
            more: dict[str, Any] = {"times": self.times} if name in timed_voters() else {}
            more |= {"item": self.voters["als-a"].item} if begins_with_als(name) else {}
            self._fitted[name] = own.fit(self.log, **more)
        return self._fitted[name]


class _OrAverage(NamedTuple):
    """Scorer of histories; an empty one gets the mean scores over the users of the log."""

    scorer: Scorer
    histories: csr_array
    of_items: Tensor

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]."""
        scores = self.scorer.scores(users)
        empty = torch.from_numpy(np.diff(self.histories.indptr) == 0)[users]
        scores[empty] = self.of_items[0] * self.of_items[3]
        return scores
