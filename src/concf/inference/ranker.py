"""Lists for a block of users, by one head or by the consensus of all, with whatever may not be shown left out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import consensus, rank_importance
from concf.consensus.settings import CONSENSUS
from concf.errors import ConfigError, DataError
from concf.evaluation.ranking import NOTHING, top_k
from concf.inference.fold_in import RIDGE, Folding
from concf.inference.votes import Votes
from concf.model.scorers import Factors
from concf.training.run import Run

Places = NDArray[np.int64]
Short = tuple[NDArray[Any], NDArray[np.float32]]  # one user's items, best first, and their scores
CELLS = 1 << 24  # of a table [users, items] that is held at a time


@dataclass(frozen=True)
class Allowed:
    """What may be shown to a block of b users.

    blocked:    [b, items] True where an item may not be shown
    candidates: [m] the only items that are asked for, or None
    viewed:     whether training items may be shown, which the lists that a consensus keeps do not have
    """

    blocked: NDArray[np.bool_]
    candidates: Places | None = None
    viewed: bool = False


class Ranker:
    """The heads of a run, each at its best, and their consensus with the votes that made it. ridge: see `folding`."""

    def __init__(self, run: Run, ridge: float = RIDGE) -> None:
        self.run, self.n_items, self.ridge = run, run.data.train.shape[1], ridge
        self.names = run.rows()
        self.heads = list(run.model.names)

    def known(self, by: str) -> str:
        """The name, if it is one of the run's."""
        if by not in self.names:
            raise ConfigError(f"nothing is called {by!r} in this run; choose from {', '.join(self.names)}")
        return by

    def factors(self, head: str) -> Factors:
        """A head's vectors at its own best epoch."""
        if head not in self._own:
            found = self.run.recommender(head)
            assert isinstance(found, Factors)
            self._own[head] = found.to("cpu")
        return self._own[head]

    @cached_property
    def _own(self) -> dict[str, Factors]:
        return {}

    @cached_property
    def voters(self) -> dict[str, Factors]:
        """The heads that vote, at the epoch of the consensus' best."""
        non_voting, best = self.run.settings.consensus.non_voting, self.run.best[CONSENSUS]
        if not best.state:
            raise DataError("this run kept no model for its consensus; train it again with this version")
        model = self.run.model
        now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            model.load_state_dict(best.state)
            found = {name: _own(factors) for name, factors in model.factors().items() if name not in non_voting}
        finally:
            model.load_state_dict(now)
        return found

    def lists(self, users: Places, k: int, by: str, allowed: Allowed) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """([b, k], [b, k]) items, best first, -1 where there are no more, and their scores.

        The score of a head is its own; that of the consensus the importance (Eq. 12), of R alone for candidates and
        where training items may be shown.
        """
        if self.known(by) in self.heads:
            return self._by_head(users, k, self.factors(by), allowed)
        if allowed.candidates is not None or allowed.viewed:
            return self._voted_anew(users, k, allowed)
        return self._as_agreed(users, k, by, allowed)

    def _by_head(
        self, users: Places, k: int, factors: Factors, allowed: Allowed
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self._best_of(factors.scores(torch.from_numpy(users)), k, allowed)

    def _best_of(self, scores: Tensor, k: int, allowed: Allowed) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        values, places = top_k(scores.masked_fill_(torch.from_numpy(allowed.blocked), -torch.inf), min(k, self.n_items))
        return _filled(places.masked_fill(values == -torch.inf, NOTHING), values, k)

    def _as_agreed(
        self, users: Places, k: int, by: str, allowed: Allowed
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The kept list of each user, without what may not be shown."""
        lists = self._kept(k, by)[torch.from_numpy(users)].cpu().long()
        hidden = (lists < 0) | torch.from_numpy(allowed.blocked).gather(1, lists.clamp(min=0))
        order = hidden.to(torch.uint8).sort(dim=1, stable=True).indices[:, :k]
        items = lists.masked_fill(hidden, NOTHING).gather(1, order)
        votes = self.votes(by)
        worth = torch.zeros(items.shape) if votes is None else votes.worths(users, items, self.n_items)
        return _filled(items, worth, k)

    def _kept(self, k: int, by: str) -> Tensor:
        """[users, shown] the lists of a consensus, which have k places."""
        kept, shown = self.run.best[by].lists, self.run.settings.consensus.shown
        assert kept is not None
        if k > shown:
            enough = min(k, self.n_items)
            raise ConfigError(
                f"k = {k}: the consensus keeps {shown} places. Train with consensus.shown = {enough} or more, or ask a "
                "head, which ranks every item"
            )
        return kept

    def short(self, users: Places, ks: Sequence[int], by: str, hidden: Sequence[Places]) -> list[Short]:
        """What `lists` gives, for a few users with little to hide: no table of what may be shown, no empty places.

        hidden: of each user the ascending positions of items that may not be shown
        """
        if self.known(by) in self.heads:
            scores = self.factors(by).scores(torch.from_numpy(users)).numpy()
            return [_highest(row, k, few) for row, k, few in zip(scores, ks, hidden, strict=True)]
        return [self._agreed(user, k, by, few) for user, k, few in zip(users.tolist(), ks, hidden, strict=True)]

    def _agreed(self, user: int, k: int, by: str, hidden: Places) -> Short:
        few = set(hidden.tolist())
        kept = self._kept(k, by).cpu().numpy()[user, : k + len(few)].tolist()
        items = np.array([item for item in kept if item >= 0 and item not in few][:k], np.int32)
        votes = self.votes(by)
        return items, np.zeros(len(items), np.float32) if votes is None else votes.worth(user, items)

    @cached_property
    def voter_weights(self) -> list[float]:
        """How much the vote of each of `voters` counts, 1 on average; fixed voters are not among them."""
        votes = self.votes(CONSENSUS)
        if votes is None:
            return [1.0] * len(self.voters)
        known = dict(zip(votes.names, votes.voter_weights, strict=True))
        voter_weights = np.array([known[name] for name in self.voters])
        return list((voter_weights / voter_weights.mean()).tolist())

    def votes(self, by: str) -> Votes | None:
        """The votes that made a consensus; None where the run kept none."""
        if by not in self._ballots:
            self._ballots[by] = Votes(self.run, by) if self.run.best[by].votes else None
        return self._ballots[by]

    @cached_property
    def _ballots(self) -> dict[str, Votes | None]:
        return {}

    def _voted_anew(self, users: Places, k: int, allowed: Allowed) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Every voter ranks what may be shown; they agree by rank alone, for no rankings of just these are kept."""
        places = torch.from_numpy(users)
        return self._by_rank([(each, each.user[places]) for each in self.voters.values()], k, allowed)

    def of_histories(
        self, histories: csr_array, k: int, by: str, allowed: Allowed
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The lists of users who were not there in training, from what they used [b, items].

        There are no rankings of theirs over time: the consensus is of R alone.
        """
        if self.known(by) in self.heads:
            factors, vectors = (
                self.factors(by),
                torch.from_numpy(self._folding(by, self.factors(by)).vectors(histories)),
            )
            return self._best_of(_scores(factors, vectors), k, allowed)
        folded = [
            (factors, torch.from_numpy(self._folding((CONSENSUS, name), factors).vectors(histories)))
            for name, factors in self.voters.items()
        ]
        return self._by_rank(folded, k, allowed)

    def _folding(self, key: Hashable, factors: Factors) -> Folding:
        if key not in self._foldings:
            self._foldings[key] = Folding.learn(self.run.data.train, factors.user.numpy(), self.ridge)
        return self._foldings[key]

    @cached_property
    def _foldings(self) -> dict[Hashable, Folding]:
        return {}

    def _by_rank(
        self, voters: list[tuple[Factors, Tensor]], k: int, allowed: Allowed
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """R-consensus of heads ranking for user vectors [b, d]: of all candidates, or of their first K of all items.

        Fixed voters do not take part: what they would say of these is not kept.
        """
        if not len(allowed.blocked):
            return _filled(torch.empty(0, 0, dtype=torch.int64), torch.empty(0, 0), k)
        columns = torch.arange(self.n_items) if allowed.candidates is None else torch.from_numpy(allowed.candidates)
        blocked = torch.from_numpy(allowed.blocked)[:, columns]
        chosen, rankings = self.run.settings.consensus, []
        kept = len(columns) if allowed.candidates is not None else max(chosen.top_k or len(columns), k)
        for factors, vectors in voters:
            values, order = _scores(factors, vectors, columns).masked_fill_(blocked, -torch.inf).sort(
                dim=1, descending=True, stable=True
            )  # fmt: skip
            rankings.append(columns[order].masked_fill(values == -torch.inf, NOTHING)[:, :kept])
        newest = torch.stack(rankings).to(torch.int32)
        _, items = consensus(
            newest, [], self.n_items, min(k, len(columns)), voter_weights=self.voter_weights, top_k=newest.shape[2],
            temperature=chosen.temperature, consistency_temperature=None,
        )  # fmt: skip
        table = torch.zeros(newest.shape[1], self.n_items + 1, dtype=torch.float64)
        earned = rank_importance(torch.arange(newest.shape[2]).double(), chosen.temperature).expand(newest.shape[1:])
        for voter_weight, ranking in zip(self.voter_weights, newest.long(), strict=True):
            table.scatter_add_(1, ranking.where(ranking >= 0, self.n_items), voter_weight * earned)
        return _filled(items.long(), table.gather(1, items.long().clamp(min=0)) / len(newest), k)

    def block(self) -> int:
        """How many users may go through together."""
        return int(max(1, CELLS // (self.n_items + 1)))


def _own(factors: Factors) -> Factors:
    """A copy: some heads' vectors are the model's own parameters, which will change."""
    user, item, bias = factors.user, factors.item, factors.bias
    return Factors(user.clone(), item.clone(), None if bias is None else bias.clone()).to("cpu")


def _scores(factors: Factors, vectors: Tensor, columns: Tensor | None = None) -> Tensor:
    """[b, m] of user vectors [b, d] with all items, or those at `columns` [m]."""
    item, bias = factors.item, factors.bias
    if columns is not None:
        item, bias = item[columns], None if bias is None else bias[columns]
    product = vectors @ item.T
    return product if bias is None else product + bias


def _filled(items: Tensor, scores: Tensor, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """As arrays of k columns; an empty place has item -1 and score -inf."""
    wide = torch.full((len(items), k), NOTHING, dtype=torch.int32)
    figures = torch.full((len(items), k), -torch.inf)
    wide[:, : items.shape[1]] = items.to(torch.int32)
    figures[:, : items.shape[1]] = scores.float().masked_fill(items < 0, -torch.inf)
    return wide.numpy(), figures.numpy()


def _highest(scores: NDArray[np.float32], k: int, hidden: Places) -> Short:
    """The k highest of scores [items] that are not hidden, ties by the lower place. Overwrites the scores.

    Items are dealt into groups. The k-th highest of the groups' maxima is at most the k-th highest score: what is
    below it is not looked at.
    """
    scores[hidden] = -np.inf
    k = min(k, len(scores))
    size = isqrt(len(scores) // k)
    groups = len(scores) // size
    maxima = scores[: groups * size].reshape(size, groups).max(0)
    places = np.flatnonzero(scores >= np.partition(maxima, groups - k)[groups - k])
    best = places[np.argsort(-scores[places], kind="stable")[:k]]
    best = best[np.isfinite(scores[best])]
    return best, scores[best]


def rows_of(matrix: csr_array, users: Places) -> NDArray[np.bool_]:
    """[b, items] where the users' rows have something."""
    return np.asarray(matrix[users].toarray() > 0)
