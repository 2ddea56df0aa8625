"""Fold in new users: rank for histories that a run was not trained on, without training anything.

The user vector of each head comes from a ridge regression of the training users' vectors on their histories. The votes
go through the same consensus as those of a known user. A history without any known item is the average user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from concf.consensus.consensus import consensus
from concf.consensus.voters import Voter, first_items, kept_votes
from concf.evaluation.scorers import Factors
from concf.runs.settings import RunSettings

CELLS = 1 << 24  # of a table [histories, items] that is held at a time
RIDGE = 3.0  # chosen on held-out users
STEPS, PRECISION = 200, 1e-5  # of conjugate gradients: the most steps, and the relative residual to stop at
Times: TypeAlias = csr_array | None  # [n, items] of histories, in the log's unit; None: each is one set, of now
Solve = Callable[[csr_array, Times], Tensor]  # histories [n, items], and their times -> user vectors [n, d]


class Agreed(NamedTuple):
    """Consensus of n histories: its lists [n, L], the plain ones [n, L], the votes (`RankingConsensus.votes`)."""

    lists: Tensor
    plain: Tensor
    votes: dict[str, Tensor]


class FoldedHead:
    """A head, with a function that solves user vectors of histories."""

    def __init__(self, factors: Factors, solve: Solve) -> None:
        self.factors, self.solve, self.average = factors, solve, factors.user.mean(0)

    def __call__(self, histories: csr_array, times: Times = None) -> Factors:
        """The head, with a user for each history [n, items], solved in blocks."""
        n, n_items = histories.shape
        rows, size = np.flatnonzero(np.diff(histories.indptr)), max(1, CELLS // n_items)
        if len(rows) == n <= size:
            return Factors(self.solve(histories, times), self.factors.item, self.factors.bias)
        user = self.average.repeat(n, 1)
        for begin in range(0, len(rows), size):
            block = rows[begin : begin + size]
            user[block] = self.solve(histories[block], None if times is None else times[block])
        return Factors(user, self.factors.item, self.factors.bias)


class FoldIn:
    """The heads and the consensus of a run, on the CPU, for histories [n, items].

    log:    [users, items] learned pairs of the run
    heads:  each at its best; voters: the voting heads, at the best of the consensus
    votes:  votes of the consensus, see `RankingConsensus.votes`
    weights: of the re-ranker; None: there is none
    fixed_voters: voters without vectors
    """

    weights: Any = None
    fixed_voters: tuple[str, ...] = ()

    def __init__(
        self, log: csr_array, settings: RunSettings, heads: Mapping[str, Factors], voters: Mapping[str, Factors],
        votes: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self.log, self.settings, self.heads, self.voters = log, settings, heads, voters
        self.votes = {name: tensor.cpu() for name, tensor in votes.items()}
        self._folded: dict[tuple[str, bool], FoldedHead] = {}

    def head(self, name: str, histories: csr_array, times: Times = None, *, voting: bool = False) -> Factors:
        """A head, with a user for each history. voting: in its state at the best of the consensus, not at its own."""
        if (name, voting) not in self._folded:
            factors = (self.voters if voting else self.heads)[name]
            self._folded[name, voting] = FoldedHead(factors, self._solver(name, factors))
        return self._folded[name, voting](histories, times)

    def _solver(self, name: str, factors: Factors) -> Solve:  # noqa: ARG002
        """Function that solves the user vectors of a head: by regression."""
        weights = regress(self.log, factors.user.numpy())
        return lambda histories, _times: torch.from_numpy(np.asarray(scaled(histories) @ weights, np.float32))

    def agree(self, histories: csr_array, times: Times = None) -> Agreed:  # noqa: ARG002
        """Consensus of histories, as for users of the log; consistency is unknown."""
        chosen, n_items = self.settings.consensus, histories.shape[1]
        k, users = min(chosen.top_k or n_items, n_items), torch.arange(histories.shape[0])
        heads = {name: self.head(name, histories, voting=True) for name in self.voters}
        voters = [Voter(name, first_items(each, histories, users, k)[0], each) for name, each in heads.items()]
        given = self._voter_weights()
        votes = kept_votes(voters, [given[voter.name] for voter in voters], list(given), k)
        _, plain = consensus(
            votes["items"], [], n_items, min(chosen.shown, n_items), voter_weights=list(given.values()), top_k=k,
            temperature=chosen.temperature, consistency_temperature=None,
        )  # fmt: skip
        return Agreed(plain, plain, votes)

    def _voter_weights(self) -> dict[str, float]:
        """Head or fixed voter -> its weight in the consensus."""
        names = [*self.heads, *self.fixed_voters]
        return dict(zip(names, self.votes.get("voter_weights", torch.ones(len(names))).tolist(), strict=True))


def regress(train: csr_array, users: NDArray[np.float32], ridge: float = RIDGE) -> NDArray[np.float32]:
    """[items, d] ridge regression of the training users' vectors [users, d] on their histories [users, items]."""
    rows = scaled(train)
    return _solve(rows, rows.T @ users.astype(np.float64), ridge).astype(np.float32)


def scaled(histories: csr_array) -> csr_array:
    """Histories [n, items] of ones, each divided by the root of its length."""
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
