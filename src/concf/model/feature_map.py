"""A linear map from the features of items to their vectors: ridge regression, with cross-validation over items.

    minimise  sum_i t_i |v_i - b - x_i W|^2 + penalty |W|^2        t_i: how far the vector of item i is trusted

The intercept b has no penalty: where features say nothing, W is 0 and every item gets the mean vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, diags_array

from concf.model.scorers import Factors

PENALTIES = tuple(4.0**power for power in range(-2, 7))
FOLDS = 5
CLEARLY = 3.0  # standard errors by which the held-out error has to fall for features to say anything
Array = NDArray[np.float64]


class Moments(NamedTuple):
    """Sums over items, weighted by trust t: of 1, of x [F], of v [D], of x'x [F, F] and of x'v [F, D]."""

    total: float
    x: Array
    v: Array
    xx: Array
    xv: Array

    @classmethod
    def of(cls, features: csr_array, vectors: Array, trust: Array) -> Self:
        """features: [n, F]; vectors: [n, D]; trust: [n]."""
        weighted = csr_array((diags_array(trust) @ features).T)
        xx = np.asarray((weighted @ features).todense())
        return cls(float(trust.sum()), np.asarray(features.T @ trust), trust @ vectors, xx, weighted @ vectors)

    @classmethod
    def sum(cls, parts: Sequence[Moments]) -> Self:
        """Of all items of the parts."""
        return cls(*(sum(each[1:], each[0]) for each in zip(*parts, strict=True)))

    def solve(self, penalty: float) -> tuple[Array, Array]:
        """([F, D], [D]) W and b."""
        x, v = self.x / self.total, self.v / self.total
        gram = self.xx - self.total * np.outer(x, x)
        gram[np.diag_indices_from(gram)] += penalty
        weights: Array = cho_solve(cho_factor(gram, overwrite_a=True), self.xv - self.total * np.outer(x, v))
        return weights, v - x @ weights


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map for items of which some are trained.

    features:  [items, F]
    own:       [items] from 0 to 1, the share of an item's own vector in the one that it gets: 0 for new items
    trust:     [items] how far its own vector counts in the regression: 0 for new items
    penalty:   of the regression
    explained: share of the variance of held-out items' vectors that the map explains
    """

    features: csr_array
    own: Array
    trust: Array
    penalty: float
    explained: float

    @classmethod
    def learn(cls, features: csr_array, own: Array, trust: Array, heads: Sequence[Array]) -> Self | None:
        """With the penalty that predicts held-out items best; None if none does clearly better than their mean.

        heads: [trained items, d] the vectors of each; every head counts the same. Features, own, trust: see the class;
        the trained items come first
        """
        rows = np.flatnonzero(trust)
        if features.shape[1] == 0 or len(rows) < 2 * FOLDS:
            return None
        vectors = np.concatenate([_scaled(each[rows], trust[rows]) for each in heads], axis=1)
        gains, error = _held_out(features[rows], vectors, trust[rows])
        best = int(gains.mean(1).argmax())
        mean, deviation = gains[best].mean(), gains[best].std() / np.sqrt(len(rows))
        if mean <= CLEARLY * deviation:
            return None
        return cls(features, own, trust, PENALTIES[best], float(mean / error.mean()))

    def vectors(self, trained: Array) -> Array:
        """[items, D] what the features say, from the vectors [trained items, D] of the items that come first."""
        rows = np.flatnonzero(self.trust)
        weights, intercept = Moments.of(self.features[rows], trained[rows], self.trust[rows]).solve(self.penalty)
        predicted: Array = self.features @ weights + intercept
        return predicted

    def filled(self, factors: Factors) -> Factors:
        """The vectors of a head for all items: own v_i + (1 - own) (b + x_i W)."""
        trained = factors.item if factors.bias is None else torch.cat([factors.item, factors.bias[:, None]], 1)
        vectors = trained.double().numpy()
        predicted, own = self.vectors(vectors), self.own[:, None]
        predicted *= 1 - own
        predicted[: len(vectors)] += own[: len(vectors)] * vectors
        item = torch.from_numpy(predicted).to(factors.item.dtype)
        if factors.bias is None:
            return Factors(factors.user, item)
        return Factors(factors.user, item[:, :-1].contiguous(), item[:, -1].contiguous())


def _scaled(vectors: Array, trust: Array) -> Array:
    """Vectors [n, d] of variance 1, all dimensions together."""
    mean = trust @ vectors / trust.sum()
    variance = (trust @ ((vectors - mean) ** 2)).sum() / trust.sum()
    return np.asarray(vectors / np.sqrt(max(variance, np.finfo(np.float64).tiny)))


def _held_out(features: csr_array, vectors: Array, trust: Array) -> tuple[Array, Array]:
    """([penalties, n], [n]) by how much a map learned without an item beats the mean on it; the error of the mean."""
    fold = np.random.default_rng(0).permutation(len(trust)) % FOLDS
    parts = [Moments.of(features[fold == f], vectors[fold == f], trust[fold == f]) for f in range(FOLDS)]
    gains, error = np.empty((len(PENALTIES), len(trust))), np.empty(len(trust))
    for f in range(FOLDS):
        others, rows = Moments.sum([part for g, part in enumerate(parts) if g != f]), fold == f
        error[rows] = trust[rows] * ((vectors[rows] - others.v / others.total) ** 2).sum(1)
        for row, penalty in enumerate(PENALTIES):
            weights, intercept = others.solve(penalty)
            misses = vectors[rows] - features[rows] @ weights - intercept
            gains[row, rows] = error[rows] - trust[rows] * (misses**2).sum(1)
    return gains, error
