"""Popularity, and factor models: PureSVD, iALS by the library `implicit`, and ALS by concf's own solver."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_array, csr_matrix
from torch import Tensor

from concf.baselines import als
from concf.errors import MissingExtraError
from concf.evaluation.scorers import Factors
from concf.runtime.settings import Settings


class Popularity(Settings):
    """score(u, i) = the number of training users of item i, or the sum of their weights."""

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Factors:  # noqa: ARG002
        """Count the users of each item. train: [users, items]."""
        n_users, n_items = train.shape
        counts = np.bincount(train.indices, train.data, n_items).astype(np.float32)
        return Factors(torch.zeros(n_users, 1), torch.zeros(n_items, 1), torch.from_numpy(counts))

    def fold_in(self, fitted: Factors, histories: csr_array) -> Factors:
        """Popularity for new users with histories [n, items]."""
        return Factors(torch.zeros(histories.shape[0], 1), fitted.item, fitted.bias)


class PureSVD(Settings):
    """Truncated singular value decomposition of the matrix, unobserved pairs as zeros (Cremonesi et al., 2010)."""

    factors: int = Field(64, ge=1)

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Factors:  # noqa: ARG002
        """Factorise: score(u, i) = <U_u S, V_i>. train: [users, items]."""
        from scipy.sparse.linalg import svds

        rank = min(self.factors, min(train.shape) - 1)
        start = np.random.default_rng(seed).standard_normal(min(train.shape))
        left, values, right = svds(train.astype(np.float64), k=rank, v0=start)
        return Factors.of((left * values).astype(np.float32), right.T.astype(np.float32).copy())

    def fold_in(self, fitted: Factors, histories: csr_array) -> Factors:
        """User vectors x V of histories x [n, items], as X V = U S."""
        return Factors.of(histories @ fitted.item.numpy(), fitted.item)


class IALS(Settings):
    """Alternating least squares with confidence weights (Hu, Koren and Volinsky, 2008), by `implicit`."""

    factors: int = Field(128, ge=1)
    alpha: float = Field(40.0, gt=0)  # confidence of an observed pair, where an unobserved one has 1
    regularisation: float = Field(120.0, ge=0)
    iterations: int = Field(15, ge=1)

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Factors:  # noqa: ARG002
        """Fit both sides in turn. train: [users, items]."""
        try:
            from implicit.als import AlternatingLeastSquares
            from threadpoolctl import threadpool_limits
        except ImportError:
            raise MissingExtraError("implicit", "baselines", "this baseline") from None
        with threadpool_limits(1, "blas"):  # the library has threads of its own
            model = AlternatingLeastSquares(
                factors=self.factors, alpha=self.alpha, regularization=self.regularisation,
                iterations=self.iterations, use_gpu=False, random_state=seed,
            )  # fmt: skip
            model.fit(csr_matrix(train), show_progress=False)
        return Factors.of(model.user_factors, model.item_factors)

    def fold_in(self, fitted: Factors, histories: csr_array) -> Factors:
        """x_u = (Y'Y + Y_u'(C_u - 1) Y_u + regularisation)^-1 Y_u' C_u 1, C = alpha w, for histories w [n, items]."""
        item = fitted.item.double()
        gram = item.T @ item + self.regularisation * torch.eye(item.shape[1], dtype=item.dtype)
        user = torch.zeros(histories.shape[0], item.shape[1], dtype=item.dtype)
        for row, (first, last) in enumerate(pairwise(histories.indptr)):
            used = item[histories.indices[first:last]]
            confidence = self.alpha * torch.from_numpy(histories.data[first:last]).double()
            user[row] = torch.linalg.solve(gram + used.T * (confidence - 1) @ used, confidence @ used)
        return Factors(user.float(), fitted.item)


class ALS(Settings):
    """Alternating least squares with penalties that grow with a row's pairs (Rendle et al., 2022), by concf.

    Every pair of the log has its weight (1, if there are none) and target 1.
    """

    factors: int = Field(128, ge=1)
    unobserved: float = Field(0.01, gt=0)  # weight of an unobserved pair
    penalty: float = Field(0.003, gt=0)  # of a row, times the weights of all its pairs
    sweeps: int = Field(8, ge=1)  # over the users and then the items

    def fit(
        self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu", *, item: Tensor | None = None
    ) -> Factors:
        """Fit both sides in turn, on a CPU or a GPU. train: [users, items]; item: [items, d] vectors to start from."""
        model = als.ALS(als.Pairs.observed(train, torch.device(device)), train.shape, self.factors)
        start = model.start(seed)
        if item is not None:  # the last of its dimensions are the largest
            kept = min(self.factors, item.shape[1])
            start[:, start.shape[1] - kept :] = item[:, item.shape[1] - kept :]
        return Factors(*model.fit(start, self.unobserved, self.penalty, self.sweeps))

    def fold_in(self, fitted: Factors, histories: csr_array) -> Factors:
        """Solve for the users with histories [n, items], the item vectors fixed."""
        pairs = als.Pairs.observed(histories, fitted.item.device)
        user = als.UserSolver(fitted.item, self.unobserved, self.penalty)(pairs, histories.shape[0])
        return Factors(user, fitted.item)
