"""The same list for everyone."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array

from concf.model.scorers import Factors
from concf.runtime.settings import Settings


class Popularity(Settings):
    """score(u, i) = the number of training users of item i, or the sum of their weights."""

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Factors:  # noqa: ARG002
        """Count. train: [users, items]."""
        n_users, n_items = train.shape
        counts = np.bincount(train.indices, train.data, n_items).astype(np.float32)
        return Factors(torch.zeros(n_users, 1), torch.zeros(n_items, 1), torch.from_numpy(counts))

    def fold_in(self, fitted: Factors, histories: csr_array) -> Factors:
        """The same for histories [n, items]."""
        return Factors(torch.zeros(histories.shape[0], 1), fitted.item, fitted.bias)
