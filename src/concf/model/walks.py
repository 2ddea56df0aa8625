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
        self.device, self.per_item = device, torch.from_numpy(per_item).to(device, torch.float32)
        step = csr_array((train.data**alpha, train.indices, train.indptr), train.shape)
        of_user, of_item = per_user**-alpha, per_item**-alpha
        if device.type == "cpu":
            self.from_user = csr_array(diags_array(of_user) @ step, dtype=np.float32)
            self.from_item = csr_array(diags_array(of_item) @ step.T, dtype=np.float32)
            return
        ends, item, value = (torch.from_numpy(each).to(device) for each in (step.indptr, step.indices, step.data))
        user = torch.repeat_interleave(torch.arange(train.shape[0], device=device), ends.diff())
        self.into_users = _on_device(ends, item, (value * _at(item, of_item)).float(), train.shape)  # P_jv ^ alpha
        self.ends, self.item, self.value = ends, item, (value * _at(user, of_user)).float()  # P_uj ^ alpha
        order = item.argsort(stable=True)
        first = torch.cat([ends[:1], torch.bincount(item, minlength=train.shape[1]).cumsum(0)])
        self.into_items = _on_device(first, user[order], self.value[order], train.shape[::-1])

    def __call__(self, users: Tensor) -> Tensor:
        """[b, items] the scores of users [b] with beta = 0."""
        if self.device.type == "cpu":
            rows = self.from_user[users.numpy()]
            return torch.from_numpy((rows @ self.from_item @ self.from_user).toarray())
        count = self.ends[users + 1] - self.ends[users]
        column = torch.repeat_interleave(torch.arange(len(users), device=self.device), count)
        place = torch.arange(len(column), device=self.device) - (count.cumsum(0) - count)[column]
        at = self.ends[users][column] + place
        start = self.value.new_zeros(len(self.per_item), len(users))
        start[self.item[at], column] = self.value[at]
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
    ends, columns, data = (torch.from_numpy(each).to(device) for each in (matrix.indptr, matrix.indices, matrix.data))
    return _on_device(ends, columns, data, matrix.shape)


def _on_device(ends: Tensor, columns: Tensor, data: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that sparse matrices are young
        return torch.sparse_csr_tensor(ends, columns.to(ends), data, shape, check_invariants=False)


def _at(places: Tensor, numbers: NDArray[np.float64]) -> Tensor:
    """[n] the numbers at places [n]."""
    return torch.from_numpy(numbers).to(places.device)[places]
