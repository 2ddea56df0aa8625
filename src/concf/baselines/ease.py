"""EASE^R: the item-to-item regression with a closed form (Steck, WWW 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor

from concf.baselines.neighbours import Rows
from concf.evaluation.scorers import ScoreFunction
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.settings import Settings

BLOCK = 1024  # items of a block


@dataclass(frozen=True)
class Fitted(ScoreFunction):
    """Scores of the training users. folded: histories [n, items] -> scores"""

    folded: Callable[[csr_array], ScoreFunction]


class EASE(Settings):
    """B = argmin |X - X B|^2 + lambda |B|^2 with diag B = 0, lambda = `regularisation`;  score(u, i) = (X B)_ui.

    With P = (X'X + lambda)^-1 the solution is B_ij = -P_ij / P_jj off the diagonal. Where there are fewer users
    than items, P is not formed: X P = G X with G = (XX' + lambda)^-1, a users x users matrix.
    """

    regularisation: float = Field(150.0, gt=0)

    def fit(
        self, train: csr_array, seed: int = 0,  # noqa: ARG002
        device: str | torch.device = "cpu", group: ProcessGroup = ALONE,  # noqa: ARG002
    ) -> Fitted:  # fmt: skip
        """Solve by the smaller of the two Gram matrices. train: [users, items]; every process of a group solves it."""
        n_users, n_items = train.shape
        solve = self._by_users if n_users < n_items else self._by_items
        return solve(train, torch.device(device))

    def fold_in(self, fitted: Fitted, histories: csr_array) -> ScoreFunction:
        """Scores x B of histories x [n, items]."""
        return fitted.folded(histories)

    def _by_items(self, train: csr_array, device: torch.device) -> Fitted:
        """Solve by the inverse of the Gram matrix of items."""
        inverse = _inverse(train.T @ train, self.regularisation, device)
        folded = partial(regression, (-inverse / inverse.diagonal()).float().fill_diagonal_(0.0))
        return Fitted(folded(train).function, folded)

    def _by_users(self, train: csr_array, device: torch.device) -> Fitted:
        """Solve by the inverse G of the Gram matrix of users.

        P_jj = (1 - x_j' G x_j) / lambda with x_j the users of item j, and (X B)_uj = -(G X)_uj / P_jj + X_uj: the last
        term undoes the diagonal of -P / diag P, which is -1. For a new history, x P = (x - x X' G X) / lambda.
        """
        inverse = _inverse(train @ train.T, self.regularisation, device)
        columns = train.astype(np.float64).tocsc()
        blocks = (columns[:, begin : begin + BLOCK] for begin in range(0, train.shape[1], BLOCK))
        quadratic = [
            (_times(inverse, block.tocsr()) * torch.from_numpy(block.toarray()).to(device)).sum(0) for block in blocks
        ]
        left, scale = (-inverse).float(), (self.regularisation / (1 - torch.cat(quadratic))).float()

        def scores(users: NDArray[np.int64]) -> Tensor:
            own = torch.from_numpy(train[users].toarray()).to(device)
            return _times(left[torch.from_numpy(users)], train) * scale + own

        def folded(rows: csr_array) -> ScoreFunction:
            def of_rows(users: NDArray[np.int64]) -> Tensor:
                own = torch.from_numpy(rows[users].toarray()).to(device)
                shared = _times(left, (train @ rows[users].T).tocsr()).T  # [b, users] -x X' G, since G is symmetric
                return own - (own + _times(shared, train)) * (scale / self.regularisation)

            return ScoreFunction(of_rows)

        return Fitted(scores, folded)


def regression(weights: Tensor, histories: csr_array) -> ScoreFunction:
    """Scores x B of histories x [n, items], for item-to-item weights B [items, items]."""
    return ScoreFunction(lambda users: _times(weights.T, histories[users].T.tocsr()).T)


def _times(dense: Tensor, sparse: csr_array) -> Tensor:
    """[a, n], [n, b] -> [a, b]."""
    if dense.device.type == "cpu":
        return torch.from_numpy(np.ascontiguousarray(dense.numpy() @ sparse.astype(dense.numpy().dtype)))
    product: Tensor = Rows.of(sparse.T.tocsr(), dense.device).tensor.to(dense.dtype) @ dense.T.contiguous()
    return product.T


def _inverse(gram: csr_array, regularisation: float, device: torch.device) -> Tensor:
    """(gram + regularisation)^-1, dense, float64."""
    dense = torch.from_numpy(gram.toarray()).to(device).double()
    dense.diagonal().add_(regularisation)
    return torch.cholesky_inverse(torch.linalg.cholesky(dense))
