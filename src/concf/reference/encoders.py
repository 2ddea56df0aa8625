"""Encoders (the paper's target models): map embeddings to the encodings that the heads score with.

Every parameter of an encoder has a leading dimension of groups: 1 where the heads share it, else one for each head. So
all heads are encoded by one batched matrix product, and one branch is a slice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import sqrt
from typing import Literal, Self

import numpy as np
import torch
from scipy.sparse import block_array, csr_array, diags_array
from torch import Tensor, nn

from concf.reference.kernels import Sparse, two_layers

EVERY_HEAD = slice(None)
LAYERS = 3  # layers of LightGCN, as its authors recommend
Sharing = Literal["full", "layer", "embedding", "none"]


class GroupedLinear(nn.Module):
    """Parameters of several linear maps, initialised as `nn.Linear`: uniform within 1 / sqrt(inputs)."""

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(groups, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, 1, outputs).uniform_(-bound, bound))

    def of(self, heads: slice) -> tuple[Tensor, Tensor]:
        """Select weight and bias of a slice of heads; shared ones are for all."""
        if len(self.weight) == 1 or heads == EVERY_HEAD:
            return self.weight, self.bias
        return self.weight[heads], self.bias[heads]


class Encoder(nn.Module):
    """Plain matrix factorisation: an encoding is the embedding itself. Base class of the other encoders.

    size:    dimensions of an encoding
    divides: whether a slice of heads can be encoded alone, by `forward(rows, noise, heads)`
    """

    divides = False

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.size = dimensions
        self.divides = self.divides or type(self) is Encoder  # subclasses must declare it

    def propagate(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Propagate the embeddings [g, users, d], [g, items, d] over the graph; unchanged by default."""
        return user, item

    def forward(self, rows: Tensor, noise: torch.Generator | None = None, heads: slice = EVERY_HEAD) -> Tensor:  # noqa: ARG002
        """[g, n, d] embeddings of users or of items -> [g, n, size] encodings. noise: for dropout; None: no dropout."""
        return rows

    def branch(self, x: int) -> Self:
        """Copy the encoder for head x alone: the shared parameters, and its slice of the others."""
        alone = copy.deepcopy(self)
        for module in alone.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if len(parameter) > 1:
                    setattr(module, name, nn.Parameter(parameter.detach()[x : x + 1].clone()))
        return alone


class MLP(Encoder):
    """The paper's MLP, d -> d/2 -> d/4: linear, dropout, relu, linear; the same for users and items."""

    divides = True

    def __init__(self, dimensions: int, first: int, second: int, dropout: float = 0.0) -> None:
        super().__init__(dimensions // 4)
        self.first = GroupedLinear(first, dimensions, dimensions // 2)
        self.second = GroupedLinear(second, dimensions // 2, self.size)
        self.dropout = dropout

    def forward(self, rows: Tensor, noise: torch.Generator | None = None, heads: slice = EVERY_HEAD) -> Tensor:
        """[g, n, d] -> [heads, n, d/4] of a slice of heads."""
        return two_layers(rows, self.first.of(heads), self.second.of(heads), self.dropout, noise)


class LightGCN(Encoder):
    """LightGCN: mean of the embeddings after 0 .. LAYERS steps over the symmetrically normalised training graph.

    E^(l+1) = D^-1/2 A D^-1/2 E^(l),  E = mean_l E^(l)
    """

    def __init__(self, dimensions: int, train: csr_array) -> None:
        super().__init__(dimensions)
        self.n_users = train.shape[0]
        observed = csr_array(train > 0, dtype=np.float64)
        of_user, of_item = (np.maximum(observed.sum(side), 1) ** -0.5 for side in (1, 0))
        weighted = diags_array(of_user) @ observed @ diags_array(of_item)  # 1 / sqrt(|I_u| |U_i|) at observed pairs
        graph = csr_array(block_array([[None, weighted], [weighted.T, None]]))  # [users + items, users + items]
        self.graph = Sparse(graph, torch.get_default_dtype())

    def propagate(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """([g, users, d], [g, items, d]) -> the same shapes."""
        groups, _, size = user.shape
        nodes = torch.cat([user, item], 1).transpose(0, 1).reshape(-1, groups * size)  # [users + items, g d]
        total = nodes
        for _ in range(LAYERS):
            nodes = self.graph @ nodes
            total = total + nodes
        mean = (total / (LAYERS + 1)).view(-1, groups, size).transpose(0, 1)
        return mean[:, : self.n_users], mean[:, self.n_users :]


EncoderMaker = Callable[[int, int, Sharing, csr_array], Encoder]  # dimensions, heads, sharing, train


def mlp(dimensions: int, heads: int, sharing: Sharing, train: csr_array, dropout: float = 0.0) -> MLP:  # noqa: ARG001
    """Make the paper's target model."""
    return MLP(dimensions, 1 if sharing in ("full", "layer") else heads, 1 if sharing == "full" else heads, dropout)


ENCODERS: dict[str, EncoderMaker] = {
    "mlp": mlp,
    "mf": lambda dimensions, *_: Encoder(dimensions),
    "lightgcn": lambda dimensions, _heads, _sharing, train: LightGCN(dimensions, train),
}
