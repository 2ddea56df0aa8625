"""EASE^R: the item-to-item regression with a closed form (Steck, WWW 2019)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from concf.model.scorers import ScoreFunction
from concf.runtime.settings import Settings

BLOCK = 1024


class EASE(Settings):
    """B = argmin |X - X B|^2 + regularisation |B|^2 with diag B = 0;  score(u, i) = (X B)_ui.

    With P = (X'X + lambda)^-1 the solution is B_ij = -P_ij / P_jj off the diagonal. Where there are fewer users
    than items, P is not formed: X P = G X with G = (XX' + lambda)^-1, a users x users matrix.
    """

    regularisation: float = Field(150.0, gt=0)

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> ScoreFunction:  # noqa: ARG002
        """Solve by the smaller of the two Gram matrices. train: [users, items]."""
        n_users, n_items = train.shape
        solve = self._by_users if n_users < n_items else self._by_items
        return solve(train)

    def _by_items(self, train: csr_array) -> ScoreFunction:
        """One inverse of items x items."""
        inverse = _inverse(train.T @ train, self.regularisation)
        weights = (-inverse / inverse.diagonal()).astype(np.float32)
        np.fill_diagonal(weights, 0.0)

        def scores(users: NDArray[np.int64]) -> NDArray[np.float32]:
            block: NDArray[np.float32] = train[users] @ weights
            return block

        return ScoreFunction(scores)

    def _by_users(self, train: csr_array) -> ScoreFunction:
        """One inverse G of users x users. P_jj = (1 - x_j' G x_j) / lambda with x_j the users of item j.

        (X B)_uj = -(G X)_uj / P_jj + X_uj: the last term undoes the diagonal of -P / diag P, which is -1.
        """
        inverse = _inverse(train @ train.T, self.regularisation)
        columns = train.tocsc()
        quadratic = np.empty(train.shape[1])
        for begin in range(0, train.shape[1], BLOCK):
            some = columns[:, begin : begin + BLOCK]
            quadratic[begin : begin + BLOCK] = some.multiply(inverse @ some).sum(axis=0)
        scale = self.regularisation / (1 - quadratic)
        left, right = (-inverse).astype(np.float32), train.astype(np.float32).tocsc()
        scaled = right.multiply(scale.astype(np.float32)[None, :]).tocsc()

        def scores(users: NDArray[np.int64]) -> NDArray[np.float32]:
            block: NDArray[np.float32] = left[users] @ scaled + train[users].toarray()
            return block

        return ScoreFunction(scores)


def _inverse(gram: csr_array, regularisation: float) -> NDArray[np.float64]:
    """(gram + regularisation)^-1, dense."""
    dense = gram.toarray().astype(np.float64)
    dense[np.diag_indices_from(dense)] += regularisation
    factor = cho_factor(dense, overwrite_a=True)
    inverse: NDArray[np.float64] = cho_solve(factor, np.eye(len(dense)), overwrite_b=True)
    return inverse
