"""New users: what a run would have come to for someone with a history, without training anything.

Each head solves its own objective for the user, its items as they are: the heads of the recipe by least squares
(`model/als.py`), by a softmax (`recipe/softmax.py`) or, the student, by least squares on the history and its consensus
list, as it was taught; those of Algorithm 1, whose user vectors come from an encoder, by a regression on histories
(`ridge.py`). Voters without vectors score a history by their own formula. The votes go through the same consensus and
the same re-ranker as those of a known user, with the features standardised by the users of the log. Someone without any
known item is the average user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from concf.baselines.als import Pairs, UserSolver
from concf.consensus.consensus import consensus
from concf.consensus.voters import FIXED, LISTED_FEATURES, Voter, by_scores, first_items, kept_votes
from concf.evaluation.scorers import Factors, Scorer
from concf.runs.settings import ConCFSettings
from concf.strong.reranker import Context, Reranker, Weights
from concf.strong.softmax import UserSoftmax
from concf.strong.students import SOLVED_BY, listed_pairs

CPU = torch.device("cpu")
CELLS = 1 << 24  # of a table [histories, items] that is held at a time
LISTED = 100  # places of the consensus list of a history that its student is solved towards
RIDGE = 3.0  # chosen on held-out users by benchmarks/bench_folding.py
STEPS, PRECISION = 200, 1e-5  # of conjugate gradients: the most steps, and the relative residual to stop at


class Agreed(NamedTuple):
    """The consensus of n histories: its lists [n, L], the plain ones [n, L], the votes (`RankingConsensus.votes`)."""

    lists: Tensor
    plain: Tensor
    votes: dict[str, Tensor]


class FoldedHead:
    """One head, whose vectors of histories are solved.

    chosen: the settings of its objective; None: by regression. taught: the lists [n, L] of histories that it is solved
    towards, if it is a student
    """

    def __init__(
        self, factors: Factors, log: csr_array, chosen: Mapping[str, float] | None,
        taught: Callable[[csr_array], Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.factors, self.average = factors, factors.user.mean(0)
        self.solve: Callable[[csr_array], Tensor]
        if chosen is None:
            ridge = Folding.learn(log, factors.user.numpy())
            self.solve = lambda histories: torch.from_numpy(ridge.vectors(histories))
        elif "temperature" in chosen:
            softmax, length = UserSoftmax(factors.item, chosen["temperature"]), factors.user.norm(dim=1).max()
            self.solve = lambda histories: softmax(histories) * length
        else:
            squares = UserSolver(factors.item, chosen["unobserved"], chosen["penalty"])

            def solve(histories: csr_array) -> Tensor:
                pairs, n = Pairs.observed(histories, CPU), histories.shape[0]
                listed = [] if taught is None else [listed_pairs(torch.arange(n), taught(histories))]
                return squares(pairs.and_more(*listed) if listed else pairs, n)

            self.solve = solve

    def __call__(self, histories: csr_array) -> Factors:
        """The head, with a user for each history [n, items], in blocks."""
        n, n_items = histories.shape
        user, rows = self.average.repeat(n, 1), np.flatnonzero(np.diff(histories.indptr))
        size = max(1, CELLS // n_items)
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            user[some] = self.solve(histories if len(some) == n else histories[some])
        return Factors(user, self.factors.item, self.factors.bias)


class FoldIn:
    """The heads and the consensus of a run, on the CPU, for histories [n, items].

    log:    [users, items] what the run has learned from
    chosen: voter -> the settings that training chose for it
    heads:  each at its best; voters: those that vote, at the best of the consensus
    votes:  what the consensus was made of, see `RankingConsensus.votes`
    """

    def __init__(
        self, log: csr_array, settings: ConCFSettings, chosen: Mapping[str, Mapping[str, float]],
        heads: Mapping[str, Factors], voters: Mapping[str, Factors], votes: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self.log, self.settings, self.chosen = log, settings, chosen
        self.heads, self.voters = heads, voters
        self.votes = {name: tensor.cpu() for name, tensor in votes.items()}
        self._folded: dict[tuple[str, bool], FoldedHead] = {}

    def head(self, name: str, histories: csr_array, *, voting: bool = False) -> Factors:
        """A head, with a user for each history. voting: as it is at the best of the consensus, not at its own."""
        key = name, voting and self.settings.recipe is None
        if key not in self._folded:
            recipe = self.settings.recipe
            solved = recipe is not None and name not in recipe.given_vectors
            chosen = self.chosen.get(name, SOLVED_BY) if solved else None
            teaches = chosen is SOLVED_BY and self.can_agree
            taught = (lambda some: self.agree(some).lists[:, :LISTED]) if teaches else None
            self._folded[key] = FoldedHead((self.voters if key[1] else self.heads)[name], self.log, chosen, taught)
        return self._folded[key](histories)

    def agree(self, histories: csr_array) -> Agreed:
        """The consensus of histories, as for users of the log."""
        chosen, n_items = self.settings.consensus, histories.shape[1]
        k, users = min(chosen.top_k or n_items, n_items), torch.arange(histories.shape[0])
        heads = {name: self.head(name, histories, voting=True) for name in self.voters}
        voters = [Voter(name, first_items(each, histories, users, k)[0], each) for name, each in heads.items()]
        for name, (fold_in, of_items) in self.fixed.items():
            if fold_in is None:
                voters.append(_silent(name, len(users), k))
                continue
            scorer = _OrAverage(fold_in(histories), histories, of_items)
            voters.append(by_scores(name, scorer, histories, users, k, of_items))
        if self.settings.recipe is not None and self.settings.recipe.snapshots:  # of which a history has none
            never, steady = torch.zeros(len(users), k), self.settings.recipe.snapshots
            voters = [replace(each, consistency=never) if each.name in steady else each for each in voters]
        names = [*self.settings.heads, *self.settings.fixed_voters]
        given = dict(zip(names, self.votes.get("voter_weights", torch.ones(len(names))).tolist(), strict=True))
        weights = [given[voter.name] for voter in voters]
        votes = kept_votes(voters, weights, names, k)
        if not self.can_agree:
            student = self.head(self.settings.heads[-1], histories)
            lists, scores = first_items(student, histories, users, min(chosen.shown, n_items))
            return Agreed(lists, lists, votes | {"reranked": scores})
        if self.weights is None:
            _, plain = consensus(
                votes["items"], [], n_items, min(chosen.shown, n_items), voter_weights=list(given.values()), top_k=k,
                temperature=chosen.temperature, consistency_temperature=None,
            )  # fmt: skip
            return Agreed(plain, plain, votes)
        context = self.context.folded(histories, [each.user for each in heads.values()])
        reranker = Reranker(
            histories, users, voters, weights, length=self.votes["reranked"].shape[1], top_k=k,
            temperature=chosen.temperature, context=context,
        )  # fmt: skip
        lists, scores = reranker.rerank(self.weights)
        votes |= {"reranked": scores, "weights": self.weights.everyone, "centre": self.weights.centre}
        return Agreed(lists, reranker.lists, votes)

    @cached_property
    def weights(self) -> Weights | None:
        """Of the re-ranker, if there is one."""
        everyone = self.votes.get("weights")
        return None if everyone is None else Weights(self.votes["centre"], everyone, everyone[None])

    @cached_property
    def can_agree(self) -> bool:
        """Whether anyone can vote for a history; where all voters are lists from outside, their student ranks alone."""
        return bool(self.voters) or any(fold_in is not None for fold_in, _ in self.fixed.values())

    @cached_property
    def context(self) -> Context:
        """Statistics of the users of the log."""
        return Context.of(self.log, list(self.voters.values()), CPU)

    @cached_property
    def fixed(self) -> dict[str, tuple[Callable[[csr_array], Scorer] | None, Tensor]]:
        """Voter without vectors -> what scores histories, and [4, items] its statistics of the users of the log.

        One from outside has lists of known users, and None for histories.
        """
        given = () if self.settings.recipe is None else self.settings.recipe.given
        names = [name for name in self.settings.fixed_voters if name in self.chosen or name in given]
        fitted = [None if name in given else _fitted(FIXED[name].make(**self.chosen[name]), self.log) for name in names]
        return dict(zip(names, zip(fitted, self.votes.get("of_items", ()), strict=True), strict=True))


def _fitted(settings: Any, log: csr_array) -> Callable[[csr_array], Scorer]:
    """What scores histories [n, items] as a baseline that was fitted to a log."""
    model = settings.fit(log)
    return lambda histories: settings.fold_in(model, histories)


def _silent(name: str, n: int, k: int) -> Voter:
    """A voter that lists nothing for n users."""
    return Voter(name, torch.full((n, k), -1, dtype=torch.int32), None, torch.zeros(n, k, LISTED_FEATURES))


class _OrAverage(NamedTuple):
    """Scores of histories, and of an empty one the mean over the users of the log."""

    scorer: Scorer
    histories: csr_array
    of_items: Tensor

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]."""
        scores = self.scorer.scores(users)
        empty = torch.from_numpy(np.diff(self.histories.indptr) == 0)[users]
        scores[empty] = self.of_items[0] * self.of_items[3]
        return scores


@dataclass(frozen=True)
class Folding:
    """Vectors of histories for one head. weights: [items, d]; average: [d] of the training users."""

    weights: NDArray[np.float32]
    average: NDArray[np.float32]

    @classmethod
    def learn(cls, train: csr_array, users: NDArray[np.float32], ridge: float = RIDGE) -> Folding:
        """From the training users' histories [users, items] and their vectors [users, d]."""
        rows = _scaled(train)
        weights = _solve(rows, rows.T @ users.astype(np.float64), ridge)
        return cls(weights.astype(np.float32), users.mean(0, dtype=np.float64).astype(np.float32))

    def vectors(self, histories: csr_array) -> NDArray[np.float32]:
        """[b, d] of histories [b, items]; one without any item is the average user."""
        vectors = np.asarray(_scaled(histories) @ self.weights, np.float32)
        vectors[np.diff(histories.indptr) == 0] = self.average
        return vectors


def _scaled(histories: csr_array) -> csr_array:
    used = csr_array(histories > 0, dtype=np.float64)
    lengths = np.maximum(np.diff(used.indptr), 1)
    return csr_array(diags_array(lengths**-0.5) @ used)


def _solve(rows: csr_array, right: NDArray[np.float64], ridge: float) -> NDArray[np.float64]:
    """(rows' rows + ridge I)^-1 right, all columns at once."""
    solution = np.zeros_like(right)
    residual = right.copy()
    direction = residual.copy()
    size = (residual**2).sum(0)
    enough = PRECISION**2 * np.maximum(size, np.finfo(np.float64).tiny)
    for _ in range(STEPS):
        if (size <= enough).all():
            break
        product = rows.T @ (rows @ direction) + ridge * direction
        step = size / np.maximum((direction * product).sum(0), np.finfo(np.float64).tiny)
        solution += step * direction
        residual -= step * product
        smaller = (residual**2).sum(0)
        direction = residual + (smaller / np.maximum(size, np.finfo(np.float64).tiny)) * direction
        size = smaller
    return solution
