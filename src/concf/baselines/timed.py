"""Baselines that know when a pair was made: the popularity of the newest pairs, and models with a half-life.

Times are a matrix [users, items] with the cells of the log (`Split.times`). Ages are counted in spans of the log, from
its oldest to its newest pair, so that no setting depends on the unit of time.
"""

from __future__ import annotations

from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array

from concf.baselines.ease import EASE
from concf.baselines.factorisation import ALS, Popularity
from concf.errors import DataError
from concf.evaluation.scorers import Factors
from concf.runtime.settings import Settings


def ages(train: csr_array, times: csr_array) -> NDArray[np.float64]:
    """[n] age of each pair: 0 for the newest, 1 for the oldest; 0 for all, if their times are equal."""
    if not (np.array_equal(train.indptr, times.indptr) and np.array_equal(train.indices, times.indices)):
        raise DataError("the times are of other pairs than the log. Take both of the same parts: log() and times()")
    age: NDArray[np.float64] = times.data.max(initial=-np.inf) - times.data
    return age / (age.max(initial=0.0) or 1.0)


def decayed(train: csr_array, times: csr_array, half_life: float | None) -> csr_array:
    """[users, items] the weights w of a log times 2^(-age / half_life), scaled so that their mean stays that of w."""
    age = ages(train, times)
    if half_life is None or not len(age):
        return train
    weight = train.data * np.exp2(-age / half_life)
    weight *= train.data.sum(dtype=np.float64) / weight.sum()
    return csr_array((weight.astype(np.float32), train.indices, train.indptr), shape=train.shape)


class RecentPopularity(Popularity):
    """score(u, i) = the number of pairs of item i among the newest, or the sum of their weights.

    Pairs as old as the oldest of the newest share count as well.
    """

    timed: ClassVar[bool] = True
    share: float = Field(0.03, gt=0, le=1)  # of all pairs

    def fit(  # type: ignore[override]
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array
    ) -> Factors:
        """Count. train, times: [users, items]."""
        age = ages(train, times)
        oldest = np.sort(age)[: ceil(self.share * len(age))].max(initial=0.0)
        recent = csr_array((train.data * (age <= oldest), train.indices, train.indptr), shape=train.shape)
        return super().fit(recent, seed, device)

    def fold_in(self, fitted: Factors, histories: csr_array, times: csr_array | None = None) -> Factors:  # noqa: ARG002
        """The same for histories [n, items]."""
        return super().fold_in(fitted, histories)


class Decayed(Settings):
    """A baseline that is fitted to a log whose weights are halved with every half-life of age."""

    timed: ClassVar[bool] = True
    half_life: float | None = Field(None, gt=0)  # in spans of the log; None: pairs do not age

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array) -> Any:
        """Weigh the pairs, and fit. train, times: [users, items]."""
        return super().fit(decayed(train, times, self.half_life), seed, device)  # type: ignore[misc]


class DecayedPopularity(Decayed, Popularity):  # type: ignore[misc]
    """score(u, i) = sum_(u in U_i) 2^(-age_ui / half_life), up to a factor."""


class DecayedALS(Decayed, ALS):  # type: ignore[misc]
    """ALS with w_ui 2^(-age_ui / half_life) as the weight of a pair."""


class DecayedEASE(Decayed, EASE):  # type: ignore[misc]
    """EASE^R with X_ui = w_ui 2^(-age_ui / half_life): an old pair is a weaker source and a smaller target."""
