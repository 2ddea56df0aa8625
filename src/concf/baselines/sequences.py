"""Closed-form models of the order of a user's pairs: SLIST (Choi et al., WWW 2021), and a ridge in the space of ALS.

Pairs of a user at equal times are one set: all are sources of what comes later, and none is a source of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.ease import Fitted, regression
from concf.baselines.factorisation import ALS
from concf.baselines.timed import ages
from concf.evaluation.scorers import Factors, ScoreFunction
from concf.runtime.settings import Settings

LEAST_RIDGE = 1e-12  # so that a model of zeros, to which a strong penalty may lead ALS, has a map
TERMS = 1 << 22  # pairs of pairs that are added at a time


@dataclass(frozen=True)
class Sequences:
    """The pairs of a log by user, then time, and their sets, which are numbered in this order.

    cell: [n] position of each pair in the log; item: [n]; of_set: [n] the set of each pair
    user, age, place: [m] of each set; a user's sets have the places 0, 1, ...; later: [m] number of sets after it
    """

    cell: NDArray[np.int64]
    item: NDArray[np.int64]
    of_set: NDArray[np.int64]
    user: NDArray[np.int64]
    age: NDArray[np.float64]
    place: NDArray[np.int64]
    later: NDArray[np.int64]

    @classmethod
    def of(cls, train: csr_array, times: csr_array) -> Sequences:
        """Sort a log. train, times: [users, items] with the same cells."""
        age, user = ages(train, times), np.repeat(np.arange(train.shape[0]), np.diff(train.indptr))
        cell = np.lexsort((train.indices, times.data, user))
        user, time = user[cell], times.data[cell]
        begins = (np.diff(user, prepend=-1) != 0) | (np.diff(time, prepend=np.nan) != 0)
        of_user = user[begins]
        place = np.arange(len(of_user)) - np.searchsorted(of_user, of_user)
        later = np.bincount(of_user, minlength=train.shape[0])[of_user] - 1 - place
        item = train.indices[cell].astype(np.int64)
        return cls(cell, item, begins.cumsum() - 1, of_user, age[cell][begins], place, later)

    def steps(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (sets, their pairs) of all users' first place, then of the second, and so on; both ascend."""
        of_pair = self.place[self.of_set]
        counts = (np.bincount(each).cumsum()[:-1] for each in (self.place, of_pair))
        orders = (each.argsort(kind="stable") for each in (self.place, of_pair))
        yield from zip(*map(np.split, orders, counts), strict=True)


def faded(histories: csr_array, times: csr_array | None, memory: float | None) -> csr_array:
    """[n, items] exp(-l / memory) for each pair of histories [n, items], l the number of the user's later sets.

    times: [n, items]; None: each history is one set. memory: None: pairs do not fade
    """
    weight = np.ones(histories.nnz, np.float32)
    if times is not None and memory is not None:
        log = Sequences.of(histories, times)
        weight[log.cell] = np.exp(-log.later / memory)[log.of_set]
    return csr_array((weight, histories.indices, histories.indptr), shape=histories.shape)


class SLIST(Settings):
    """B = argmin alpha |X - X B|^2 + (1 - alpha) |W^(1/2) (Y - Z B)|^2 + regularisation |B|^2 with diag B = 0.

    X is the log, as for EASE^R. Z and Y have a row for each set of a user but the last. In the row of set t an item of
    set s has z_i = exp(-(t - s) / distance) if s <= t, else y_i = exp(-(s - t - 1) / distance). W is exp(-age / span)
    of set t. The score of a user of n sets is x B with x_i = exp(-(n - s) / memory).

    With P = (alpha X'X + (1 - alpha) Z'WZ + regularisation)^-1 and C = P (alpha X'X + (1 - alpha) Z'WY), the solution
    is B_ij = C_ij - P_ij C_jj / P_jj. Its tables are dense, items x items: five in float64 at a time. Where all times
    are equal, it is EASE^R with regularisation / alpha.
    """

    timed: ClassVar[bool] = True
    alpha: float = Field(0.5, gt=0, le=1)
    distance: float = Field(1.0, gt=0)  # in sets
    span: float | None = Field(None, gt=0)  # in spans of the log; None: rows do not age
    memory: float | None = Field(20.0, gt=0)  # in sets; None: x is 0 or 1
    regularisation: float = Field(100.0, gt=0)

    def fit(
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array,  # noqa: ARG002
    ) -> Fitted:  # fmt: skip
        """Solve for B. train, times: [users, items]."""
        log = Sequences.of(train, times)
        system, targets = self.grams(log, train.data[log.cell], train.shape[1], torch.device(device))
        system.diagonal().add_(self.regularisation)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        weights = torch.mm(inverse, targets, out=system)
        weights -= inverse.mul_(weights.diagonal() / inverse.diagonal())
        weights = weights.float().fill_diagonal_(0.0)
        return Fitted(regression(weights, faded(train, times, self.memory)).function, partial(regression, weights))

    def fold_in(self, fitted: Fitted, histories: csr_array, times: csr_array | None = None) -> ScoreFunction:
        """Scores x B of histories [n, items]. times: [n, items]; None: each history is one set."""
        return fitted.folded(faded(histories, times, self.memory))

    def grams(
        self, log: Sequences, weights: NDArray[np.float32], n_items: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """alpha X'X + (1 - alpha) Z'WZ and alpha X'X + (1 - alpha) Z'WY, [items, items] each. weights: [n] of the pairs

        The rows of Z and Y are not formed: both are summed over a user's pairs of pairs.

        With f = exp(-1 / distance) and w_t the weight of the row of set t, 0 for the last, items i of set s and j of
        set t >= s of a user add

            (Z'WZ)_ij = (Z'WZ)_ji = f^(t - s) sum_(k >= t) w_k f^(2 (k - t))
            (Z'WY)_ij = f^(t - s - 1) sum_(s <= k < t) w_k
        """
        weight = np.where(log.later > 0, np.exp(-log.age / self.span) if self.span else 1.0, 0.0)
        until, ahead, steps = weight.copy(), weight.copy(), [sets for sets, _ in log.steps()][1:]
        for sets in steps:
            until[sets] += until[sets - 1]
        for sets in steps[::-1]:
            ahead[sets - 1] += np.exp(-2 / self.distance) * ahead[sets]
        first = np.searchsorted(log.user[log.of_set], log.user[log.of_set])
        count = np.arange(len(first)) - first + 1  # pairs of the user up to this one
        item, of_set, before, after, counts, own = (
            torch.from_numpy(each).to(device)
            for each in (log.item, log.of_set, until - weight, ahead, count, weights.astype(np.float64))
        )
        sources, targets = torch.zeros(2, n_items * n_items, dtype=torch.float64, device=device)
        ends = count.cumsum()
        cuts = np.searchsorted(ends, np.arange(TERMS, ends[-1] if len(ends) else 0, TERMS))
        for begin, end in pairwise(np.unique([0, *cuts, len(ends)]).tolist()):
            j = torch.repeat_interleave(torch.arange(begin, end, device=device), counts[begin:end])
            i = j - (torch.arange(len(j), device=device) - (counts[begin:end].cumsum(0) - counts[begin:end])[j - begin])
            s, t, cell = of_set[i], of_set[j], item[i] * n_items + item[j]
            gap, between = (t - s).double(), before[t] - before[s]  # both 0 within a set
            half = torch.where(i == j, 0.5, 1.0)  # the diagonal is added twice
            both = half * self.alpha * own[i] * own[j]
            sources.index_add_(0, cell, both + (1 - self.alpha) * half * after[t] * torch.exp(-gap / self.distance))
            later = (1 - self.alpha) * between * torch.exp((1 - gap).clamp(max=0) / self.distance)
            targets.index_add_(0, cell, both + later)
            targets.index_add_(0, item[j] * n_items + item[i], both)
        sources = sources.view(n_items, n_items)
        return sources + sources.T, targets.view(n_items, n_items)


@dataclass(frozen=True)
class Sequenced(Factors):
    """Vectors of `SequenceALS`. map: [d, d] M; None: those of ALS"""

    map: Tensor | None = None


class SequenceALS(ALS):
    """ALS whose user vectors predict the next set: score(u, i) = <p_u M, v_i> with v the item vectors of ALS.

    p = sum_s exp(-(t - s) / memory) v_s is the history of a user at set t, v_s the sum of the vectors of set s, and

        M = argmin sum_(u,t) |mean of set t+1 - p_ut M|^2 + ridge |M|^2  [d, d].

    The number of pairs enters linearly, and the result is vectors. Where no user has two sets, it is ALS.
    """

    timed: ClassVar[bool] = True
    memory: float = Field(20.0, gt=0)  # in sets
    ridge: float = Field(0.03, gt=0)  # times the mean square of a coordinate of p, summed over the rows

    def fit(  # type: ignore[override]
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array,
        item: Tensor | None = None,
    ) -> Sequenced:  # fmt: skip
        """Fit the items by ALS, then the map. train, times: [users, items]; item: [items, d], fitted already."""
        log = Sequences.of(train, times)
        if item is None:
            plain = super().fit(train, seed, device)
            item = plain.item
            if not log.place.any():
                return Sequenced(plain.user, item)
        d = item.shape[1]
        history, fade = item.new_zeros(train.shape[0], d), float(np.exp(-1 / self.memory))
        gram, cross = torch.zeros(2, d, d, dtype=torch.float64, device=item.device)
        for sets, pairs in log.steps():
            first = np.searchsorted(log.of_set[pairs], sets)
            parts = log.user[sets], log.item[pairs], first, np.diff(first, append=len(pairs))
            users, items, begin, count = (torch.from_numpy(part).to(item.device) for part in parts)
            added, before = F.embedding_bag(items, item, begin, mode="sum"), F.embedding(users, history)
            gram += before.T @ before  # 0 in the first step
            cross += before.T @ (added / count[:, None])
            history.index_copy_(0, users, before * fade + added)
        gram.diagonal().add_(self.ridge * gram.trace() / d + LEAST_RIDGE)
        mapped = torch.linalg.solve(gram, cross).to(item)
        return Sequenced(history @ mapped, item, map=mapped)

    def fold_in(self, fitted: Factors, histories: csr_array, times: csr_array | None = None) -> Factors:
        """User vectors p M of histories [n, items]. times: [n, items]; None: each history is one set."""
        mapped = fitted.map if isinstance(fitted, Sequenced) else None
        if mapped is None:
            return super().fold_in(fitted, histories)
        history = faded(histories, times, self.memory) @ fitted.item.cpu().numpy()
        return Factors(torch.from_numpy(history).to(mapped) @ mapped, fitted.item)
