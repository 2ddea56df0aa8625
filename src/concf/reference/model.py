"""Multi-branch model: shared embeddings, an encoder, and a head for each objective."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Self

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from concf.errors import ConfigError
from concf.evaluation.scorers import Factors
from concf.reference.encoders import EVERY_HEAD, Encoder, EncoderMaker, Sharing, mlp
from concf.reference.heads import Head
from concf.reference.objectives import Objective


class Model(nn.Module):
    """One branch for each objective, over shared parameters (the paper's figure of the framework).

    objectives: name -> objective, in the order of the branches; a single one is SingleCF
    sharing:    "full" all but the heads, "layer" embeddings and the first layer, "embedding", or "none"
    initial_std: standard deviation of the initial embeddings; None: PyTorch's default, 1
    """

    def __init__(
        self, train: csr_array, objectives: Mapping[str, Objective], *, dimensions: int = 64,
        encoder: EncoderMaker | None = None, sharing: Sharing = "embedding", initial_std: float | None = 0.01,
    ) -> None:  # fmt: skip
        super().__init__()
        self.n_users: int = train.shape[0]
        self.n_items: int = train.shape[1]
        self.names = list(objectives)
        groups = len(self.names) if sharing == "none" else 1
        deviation = 1.0 if initial_std is None else initial_std
        self.user = nn.Parameter(torch.randn(groups, self.n_users, dimensions) * deviation)
        self.item = nn.Parameter(torch.randn(groups, self.n_items, dimensions) * deviation)
        self.encoder = (encoder or mlp)(dimensions, len(self.names), sharing, train)
        if not isinstance(self.encoder, Encoder):
            raise ConfigError(f"the target model is a {type(self.encoder).__name__}, not an Encoder")
        sizes = self.encoder.size, self.n_users, self.n_items
        self.heads = nn.ModuleList(objective.head(*sizes) for objective in objectives.values())

    def head(self, name: str) -> Head:
        """Return a head by name."""
        head = self.heads[self.names.index(name)]
        assert isinstance(head, Head)
        return head

    def encode(self, rows: Tensor, noise: torch.Generator | None = None, heads: slice = EVERY_HEAD) -> Tensor:
        """[1 or heads, n, d] embeddings -> [heads, n, size] encodings of a slice of heads. noise: for dropout"""
        encoded: Tensor = self.encoder(rows, noise, heads) if self.encoder.divides else self.encoder(rows, noise)
        return encoded.expand(len(self.names[heads]), -1, -1)

    @torch.no_grad()
    def factors(self) -> dict[str, Factors]:
        """Export each head as user vectors, item vectors and item bias, which rank as the head does."""
        user, item = (self.encode(table) for table in self.encoder.propagate(self.user, self.item))
        exported = {}
        for x, name in enumerate(self.names):
            vectors, _ = self.head(name).user(user[x])
            item_vectors, bias = self.head(name).item(item[x])
            exported[name] = Factors(*(part.detach().contiguous() for part in (vectors, item_vectors, bias)))
        return exported

    def keep(self, name: str) -> Self:
        """Return the single-branch model of one head: a SingleCF in size and cost, with the scores of the head."""
        if name not in self.names:
            raise ConfigError(f"unknown head {name!r}; available: {', '.join(self.names)}")
        x = self.names.index(name)
        alone = copy.copy(self)
        alone._parameters, alone._modules = {}, {}
        alone.names = [name]
        group = x if len(self.user) > 1 else 0
        alone.user = nn.Parameter(self.user.detach()[group : group + 1].clone())
        alone.item = nn.Parameter(self.item.detach()[group : group + 1].clone())
        alone.encoder = self.encoder.branch(x)
        alone.heads = nn.ModuleList([copy.deepcopy(self.heads[x])])
        return alone
