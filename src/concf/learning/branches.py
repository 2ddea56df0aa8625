"""What a batch costs each branch: its own loss, and how far it is from the consensus."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.learning.batches import Batch
from concf.model import losses
from concf.model.heads import ItemTableHead, UserTableHead
from concf.model.model import Model
from concf.model.objectives import Objective


class Branches:
    """The losses of all branches on embedding tables with a copy for each head.

    The copies are what the gradient of each head is read from: a head's loss depends on its own copy alone.
    """

    def __init__(self, model: Model, objectives: dict[str, Objective], train: csr_array) -> None:
        self.model, self.objectives = model, objectives
        device, kind = model.user.device, model.user.dtype
        self.items_of = _sparse(train, kind).to(device)  # [users, items]
        self.users_of = _sparse(csr_array(train.T), kind).to(device)  # [items, users]
        self.user_degree = torch.from_numpy(np.diff(train.indptr)).to(device, kind)
        item_degree = np.bincount(train.indices, minlength=train.shape[1])
        self.item_degree = torch.from_numpy(item_degree).to(device, kind)

    def own(self, user: Tensor, item: Tensor, batch: Batch) -> Tensor:
        """[heads] L_CF of each branch (Eq. 1-5). user: [heads, users, d]; item: [heads, items, d]."""
        user, item = self.model.encoder.spread(user, item)
        both = torch.cat([batch.positive, batch.negative])
        h_user, h_item = self.model.encode(user[:, batch.user]), self.model.encode(item[:, both])
        costs = []
        for place, (name, objective) in enumerate(self.objectives.items()):
            if objective.needs == "pairs":
                vectors, offset = self.model.head(name).user(h_user[place], batch.user)
                item_vectors, bias = self.model.head(name).item(h_item[place], both)
                scores = (vectors.repeat(2, 1) * item_vectors).sum(1) + offset.repeat(2) + bias
                costs.append(objective.loss(*scores.chunk(2)))
            elif objective.needs == "items":
                costs.append(self._rows(name, h_user[place], batch.user, self.items_of, self.user_degree))
            else:
                costs.append(self._rows(name, h_item[place], both, self.users_of, self.item_degree))
        return torch.stack(costs)

    def _rows(self, name: str, encoding: Tensor, places: Tensor, used: Tensor, degree: Tensor) -> Tensor:
        """The multinomial loss of the distinct rows among `places`.

        sum_{i in I_u} <h_u, V_i> + b_i = <h_u, sum V_i> + sum b_i: a sparse sum, no dense matrix of what was used.
        """
        head = self.model.head(name)
        assert isinstance(head, ItemTableHead | UserTableHead)
        summed = torch.sparse.mm(used, torch.cat([head.table.weight, head.table.bias[:, None]], 1))[places]
        observed = (encoding * summed[:, :-1]).sum(1) + summed[:, -1]
        weight = losses.multiplicity_weight(places, len(degree)).to(encoding.dtype)
        loss: Tensor = self.objectives[name].loss(head.logits(encoding), observed, degree[places], weight)
        return loss

    def taught(
        self, user: Tensor, item: Tensor, users: Tensor, lesson: Tensor, length: int, names: list[str]
    ) -> Tensor:
        """[heads] L_CL of each branch (Eq. 14), 0 for one that is not among `names`.

        users: [B]; lesson: [users, L] the consensus of every user, the first `length` places taught
        """
        user, item = self.model.encoder.spread(user, item)
        h_user, h_item = self.model.encode(user[:, users]), self.model.encode(item)
        everything = torch.arange(item.shape[1], device=item.device)
        weight = losses.multiplicity_weight(users, self.model.n_users).to(user.dtype)
        lists = lesson[users]  # [B, L]
        costs = []
        for place, (name, objective) in enumerate(self.objectives.items()):
            if name not in names:
                costs.append(user.new_zeros(()))
                continue
            vectors, offset = self.model.head(name).user(h_user[place], users)
            item_vectors, bias = self.model.head(name).item(h_item[place], everything)
            scores = torch.einsum("bk,blk->bl", vectors, item_vectors[lists]) + bias[lists] + offset[:, None]
            costs.append(losses.listwise(objective.lesson(scores), length, weight))
        return torch.stack(costs)


def _sparse(matrix: csr_array, kind: torch.dtype) -> Tensor:
    cells = matrix.tocoo()
    places = torch.from_numpy(np.stack([np.asarray(side, np.int64) for side in cells.coords]))
    values = torch.ones(len(cells.data), dtype=kind)
    return torch.sparse_coo_tensor(places, values, matrix.shape, check_invariants=True).coalesce()
