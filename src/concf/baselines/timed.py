"""Baselines that know when a pair was made: the popularity of the newest pairs, and models with a half-life.

Times are a matrix [users, items] with the cells of the log (`Split.times`). Ages are counted in spans of the log, from
its oldest to its newest pair, or in shares of its pairs, so that no setting depends on the unit of time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor

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


def newer(train: csr_array, times: csr_array) -> NDArray[np.float64]:
    """[n] share of the log's pairs that are newer than each pair: a log may be ten times as dense at its end."""
    ages(train, times)  # refuses times of other pairs
    share: NDArray[np.float64] = 1 - np.searchsorted(np.sort(times.data), times.data, side="right") / max(train.nnz, 1)
    return share


def decayed(train: csr_array, times: csr_array, half_life: float | None) -> csr_array:
    """[users, items] weights w of a log times 2^(-newer / half_life), scaled so that their mean stays that of w."""
    if half_life is None or not train.nnz:
        return train
    weight = train.data * np.exp2(-newer(train, times) / half_life)
    weight *= train.data.sum(dtype=np.float64) / weight.sum()
    return csr_array((weight.astype(np.float32), train.indices, train.indptr), shape=train.shape)


class RecentPopularity(Popularity):
    """score(u, i) = the number of pairs of item i among the newest, or the sum of their weights.

    Ties count: so do all pairs as old as the oldest of these.
    """

    timed: ClassVar[bool] = True
    share: float = Field(0.03, gt=0, le=1)  # of all pairs

    def fit(  # type: ignore[override]
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array
    ) -> Factors:
        """Count the newest pairs of each item. train, times: [users, items]."""
        age = ages(train, times)
        oldest = np.sort(age)[: ceil(self.share * len(age))].max(initial=0.0)
        recent = csr_array((train.data * (age <= oldest), train.indices, train.indptr), shape=train.shape)
        return super().fit(recent, seed, device)

    def fold_in(self, fitted: Factors, histories: csr_array, times: csr_array | None = None) -> Factors:  # noqa: ARG002
        """Recent popularity for new users with histories [n, items]."""
        return super().fold_in(fitted, histories)


class Decayed(Settings):
    """A baseline that is fitted to a log whose weights are halved with every half-life of age."""

    timed: ClassVar[bool] = True
    half_life: float | None = Field(None, gt=0)  # in shares of the log's pairs (`newer`); None: pairs do not age

    def fit(
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array, **more: Any
    ) -> Any:
        """Weigh the pairs, and fit. train, times: [users, items]; more: further arguments of the baseline's `fit`"""
        return super().fit(decayed(train, times, self.half_life), seed, device, **more)  # type: ignore[misc]


class DecayedPopularity(Decayed, Popularity):  # type: ignore[misc]
    """score(u, i) = sum_(v in U_i) w_vi 2^(-newer_vi / half_life), up to a factor."""


@dataclass(frozen=True)
class AgedFactors(Factors):
    """Vectors of `DecayedALS`. ordered: [n] times of the log's pairs, ascending; newest: weight that a pair has now"""

    ordered: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    newest: float = 1.0


class DecayedALS(Decayed, ALS):
    """ALS with w_ui 2^(-newer_ui / half_life) as the weight of a pair; at last the users are solved once more."""

    def fit(  # type: ignore[override]
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, times: csr_array,
        item: Tensor | None = None,
    ) -> AgedFactors:  # fmt: skip
        """Weigh the pairs, and fit. train, times: [users, items]; item: as in `ALS.fit`"""
        fitted, newest = super().fit(train, seed, device, times=times, item=item), 1.0
        if self.half_life is not None and train.nnz:
            newest = float(train.data.sum() / (train.data * np.exp2(-newer(train, times) / self.half_life)).sum())
        fitted = AgedFactors(fitted.user, fitted.item, ordered=np.sort(times.data), newest=newest)
        return replace(fitted, user=self.fold_in(fitted, train, times).user)

    def fold_in(self, fitted: Factors, histories: csr_array, times: csr_array | None = None) -> Factors:
        """Solve for users with histories [n, items], the items fixed. times: [n, items]; None: all pairs are new."""
        assert isinstance(fitted, AgedFactors)
        weight = histories.data * np.float32(fitted.newest)
        if times is not None and self.half_life is not None:
            later = 1 - np.searchsorted(fitted.ordered, times.data, side="right") / max(len(fitted.ordered), 1)
            weight = weight * np.exp2(-later / self.half_life).astype(np.float32)
        return super().fold_in(fitted, csr_array((weight, histories.indices, histories.indptr), shape=histories.shape))


class DecayedEASE(Decayed, EASE):  # type: ignore[misc]
    """EASE^R with X_ui = w_ui 2^(-newer_ui / half_life): an old pair is a weaker source and a smaller target."""
