"""EASE^R: the item-to-item regression with a closed form (Steck, WWW 2019)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor

from concf.model.scorers import ScoreFunction
from concf.model.walks import on_device
from concf.runtime.settings import Settings

BLOCK = 1024  # items that go through together


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
        return solve(train, torch.device(device))

    def _by_items(self, train: csr_array, device: torch.device) -> ScoreFunction:
        """One inverse of items x items."""
        inverse = _inverse(train.T @ train, self.regularisation, device)
        weights = (-inverse / inverse.diagonal()).float().fill_diagonal_(0.0)

        def scores(users: NDArray[np.int64]) -> Tensor:
            return _times(weights.T, train[users].T.tocsr()).T

        return ScoreFunction(scores)

    def _by_users(self, train: csr_array, device: torch.device) -> ScoreFunction:
        """One inverse G of users x users. P_jj = (1 - x_j' G x_j) / lambda with x_j the users of item j.

        (X B)_uj = -(G X)_uj / P_jj + X_uj: the last term undoes the diagonal of -P / diag P, which is -1.
        """
        inverse = _inverse(train @ train.T, self.regularisation, device)
        columns = train.astype(np.float64).tocsc()
        quadratic = torch.cat(
            [
                (_times(inverse, some.tocsr()) * torch.from_numpy(some.toarray()).to(device)).sum(0)
                for some in (columns[:, begin : begin + BLOCK] for begin in range(0, train.shape[1], BLOCK))
            ]
        )
        left, scale = (-inverse).float(), (self.regularisation / (1 - quadratic)).float()

        def scores(users: NDArray[np.int64]) -> Tensor:
            own = torch.from_numpy(train[users].toarray()).to(device)
            return _times(left[torch.from_numpy(users)], train) * scale + own

        return ScoreFunction(scores)


def _times(dense: Tensor, sparse: csr_array) -> Tensor:
    """[a, n], [n, b] -> [a, b]."""
    if dense.device.type == "cpu":
        return torch.from_numpy(np.ascontiguousarray(dense.numpy() @ sparse.astype(dense.numpy().dtype)))
    product: Tensor = on_device(sparse.T.tocsr(), dense.device).to(dense.dtype) @ dense.T.contiguous()
    return product.T


def _inverse(gram: csr_array, regularisation: float, device: torch.device) -> Tensor:
    """(gram + regularisation)^-1, dense, float64."""
    dense = torch.from_numpy(gram.toarray()).to(device).double()
    dense.diagonal().add_(regularisation)
    return torch.cholesky_inverse(torch.linalg.cholesky(dense))
