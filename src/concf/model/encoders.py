"""Target models: from embeddings to the encodings that the heads score with.

Everything that may be shared has a leading dimension of groups: 1 where the heads share it, else one for each head, so
that the heads go through side by side as one batched product.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

Sharing = Literal["full", "layer", "embedding", "none"]


class GroupedLinear(nn.Module):
    """groups linear maps side by side, each begun as PyTorch begins its own: uniform within 1 / sqrt(inputs)."""

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(groups, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, 1, outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        """[1 or groups, n, inputs] -> [groups, n, outputs]; with one group [g, n, inputs] -> [g, n, outputs]."""
        return torch.matmul(rows, self.weight) + self.bias


class Encoder(nn.Module):
    """Plain matrix factorisation: an encoding is the embedding itself. The base of the others.

    size: of an encoding
    """

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.size = dimensions

    def spread(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """([g, users, d], [g, items, d]) the embedding tables after what neighbours tell each other: here nothing."""
        return user, item

    def forward(self, rows: Tensor) -> Tensor:
        """[g, n, d] embeddings of users or of items -> [g, n, size] encodings."""
        return rows


class MLP(Encoder):
    """The paper's: d -> d/2 -> d/4, linear, dropout, relu, linear; the same for users and items."""

    def __init__(self, dimensions: int, first: int, second: int, dropout: float = 0.0) -> None:
        super().__init__(dimensions // 4)
        self.first = GroupedLinear(first, dimensions, dimensions // 2)
        self.second = GroupedLinear(second, dimensions // 2, self.size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        """[g, n, d] -> [heads, n, d/4]."""
        encoded: Tensor = self.second(torch.relu(self.dropout(self.first(rows))))
        return encoded


class LightGCN(Encoder):
    """The mean of the embeddings after 0 .. layers steps over the training graph, normalised on both sides.

    E^(l+1) = D^-1/2 A D^-1/2 E^(l),  E = mean_l E^(l)
    """

    graph: Tensor

    def __init__(self, dimensions: int, train: csr_array, layers: int = 3) -> None:
        super().__init__(dimensions)
        self.layers, self.n_users = layers, train.shape[0]
        self.register_buffer("graph", _normalised_graph(train), persistent=False)

    def spread(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """([g, users, d], [g, items, d]) -> the same shapes."""
        groups, _, size = user.shape
        nodes = torch.cat([user, item], 1).transpose(0, 1).reshape(-1, groups * size)  # [users + items, g d]
        total = nodes
        for _ in range(self.layers):
            nodes = torch.sparse.mm(self.graph, nodes)
            total = total + nodes
        mean = (total / (self.layers + 1)).view(-1, groups, size).transpose(0, 1)
        return mean[:, : self.n_users], mean[:, self.n_users :]


def _normalised_graph(train: csr_array) -> Tensor:
    """[users + items, users + items] sparse: 1 / sqrt(|I_u| |U_i|) at the observed pairs, both ways."""
    n_users, n_items = train.shape
    cells = train.tocoo()
    user, item = (np.asarray(places, np.int64) for places in cells.coords)
    weight = 1 / np.sqrt(np.bincount(user, minlength=n_users)[user] * np.bincount(item, minlength=n_items)[item])
    places = torch.from_numpy(np.stack([np.r_[user, item + n_users], np.r_[item + n_users, user]]))
    values = torch.from_numpy(np.r_[weight, weight]).to(torch.get_default_dtype())
    size = n_users + n_items
    return torch.sparse_coo_tensor(places, values, (size, size), check_invariants=True).coalesce()


EncoderMaker = Callable[[int, int, Sharing, csr_array], Encoder]  # dimensions, heads, sharing, train


def mlp(dropout: float = 0.0) -> EncoderMaker:
    """The paper's target model."""

    def make(dimensions: int, heads: int, sharing: Sharing, train: csr_array) -> Encoder:  # noqa: ARG001
        first = 1 if sharing in ("full", "layer") else heads
        return MLP(dimensions, first, 1 if sharing == "full" else heads, dropout)

    return make


def factorisation() -> EncoderMaker:
    """Plain matrix factorisation."""
    return lambda dimensions, heads, sharing, train: Encoder(dimensions)  # noqa: ARG005


def lightgcn(layers: int = 3) -> EncoderMaker:
    """LightGCN propagation over the training graph."""
    return lambda dimensions, heads, sharing, train: LightGCN(dimensions, train, layers)  # noqa: ARG005


ENCODERS: dict[str, Callable[..., EncoderMaker]] = {"mlp": mlp, "mf": factorisation, "lightgcn": lightgcn}
