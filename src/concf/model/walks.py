"""RP3beta without neighbourhoods: a random walk of three steps, exact, for a block of users at a time.

    score(u, i) = sum_j,v (P_uj P_jv P_vi)^alpha / |U_i|^beta;  P_uj = 1 / |I_u|, P_jv = 1 / |U_j|

(Paudel et al., 2017). With weights P_uj = w_uj / sum_i w_ui and P_jv = w_vj / sum_u w_uj, which is |U_j| without. Walks
that come back to where they began reach items that the user has used, which no list shows. On a CPU the sparse rows of
the block are multiplied, so that a walk costs as many operations as there are paths; on a GPU the block is dense.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor


class Walks:
    """The walks of a log [users, items], whatever beta is: each costs more than many betas.

    alpha: below 1 rare paths count for more; beta: above 0 popular items are held back
    """

    def __init__(self, train: csr_array, alpha: float, device: torch.device) -> None:
        per_user, per_item = degrees(train)
        train = csr_array((train.data**alpha, train.indices, train.indptr), train.shape)
        self.device, self.per_item = device, torch.from_numpy(per_item).to(device, torch.float32)
        self.from_user = csr_array(diags_array(per_user**-alpha) @ train, dtype=np.float32)
        self.from_item = csr_array(diags_array(per_item**-alpha) @ train.T, dtype=np.float32)
        if device.type != "cpu":
            self.into_users, self.into_items = (
                on_device(each.T.tocsr(), device) for each in (self.from_item, self.from_user)
            )

    def __call__(self, users: Tensor) -> Tensor:
        """[b, items] the scores of users [b] with beta = 0."""
        rows = self.from_user[users.cpu().numpy()]
        if self.device.type == "cpu":
            return torch.from_numpy((rows @ self.from_item @ self.from_user).toarray())
        start = torch.from_numpy(rows.toarray()).to(self.device).T.contiguous()  # [items, b]
        reached: Tensor = self.into_items @ (self.into_users @ start)
        return reached.T.contiguous()

    def held_back(self, scores: Tensor, beta: float) -> Tensor:
        """[b, items] the scores with that beta, of those without."""
        return scores * self.per_item**-beta


def degrees(train: csr_array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([users], [items]) the sum of the weights of each: the number of its pairs if all weigh 1; of none at all, 1."""
    sums = train.sum(axis=1, dtype=np.float64), np.bincount(train.indices, train.data, train.shape[1])
    per_user, per_item = (np.where(each > 0, each, 1.0) for each in sums)
    return per_user, per_item


def on_device(matrix: csr_array, device: torch.device) -> Tensor:
    """A sparse matrix of PyTorch's."""
    ends, columns, data = (torch.from_numpy(each) for each in (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that sparse matrices are young
        return torch.sparse_csr_tensor(ends, columns, data, matrix.shape, check_invariants=False).to(device)
