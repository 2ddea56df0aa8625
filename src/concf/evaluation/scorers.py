"""Scorers: vectors, or functions that score or list items for a block of users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.errors import ConfigError


@runtime_checkable
class Scorer(Protocol):
    """Scores every item for a block of users; a higher score is a better item, -inf is never recommended."""

    def scores(self, users: Tensor) -> Tensor:
        """[b] user positions -> [b, items] scores, which the caller may overwrite."""


@runtime_checkable
class SparseScorer(Protocol):
    """Scores items for a block of users on a CPU: most scores are 0, and none is below 0."""

    def sparse(self, users: Tensor) -> csr_array | None:
        """[b] user positions -> [b, items] float32 scores; None: they are not sparse."""


class BlockScorer(ABC):
    """A scorer that can be moved to a device, writes into a given buffer and may be called by several threads."""

    @abstractmethod
    def to(self, device: str | torch.device) -> BlockScorer:
        """Move to a device."""

    @abstractmethod
    def scores(self, users: Tensor, out: Tensor | None = None) -> Tensor:
        """[b] -> [b, items], into `out` if given."""


@dataclass(frozen=True)
class Factors(BlockScorer):
    """score(u, i) = <user_u, item_i> + bias_i.

    user: [users, d]; item: [items, d]; bias: [items] or None
    """

    user: Tensor
    item: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, user: Any, item: Any, bias: Any = None) -> Factors:
        """Make vectors from arrays or tensors."""
        users, items, biases = floats(user), floats(item), None if bias is None else floats(bias)
        if users.ndim != 2 or items.ndim != 2 or users.shape[1] != items.shape[1]:
            shapes = f"{list(users.shape)} and {list(items.shape)}"
            raise ConfigError(f"expected user vectors [users, d] and item vectors [items, d], found {shapes}")
        if biases is not None and biases.shape != items.shape[:1]:
            raise ConfigError(f"expected an item bias [{len(items)}], found {list(biases.shape)}")
        kind = torch.promote_types(users.dtype, items.dtype)
        return cls(users.to(kind), items.to(kind), None if biases is None else biases.to(kind))

    def to(self, device: str | torch.device) -> Factors:
        """Move to a device."""
        return Factors(self.user.to(device), self.item.to(device), None if self.bias is None else self.bias.to(device))

    @property
    def directions(self) -> Tensor:
        """[items, d] item vectors of length 1."""
        return torch.nn.functional.normalize(self.item.float(), dim=1)

    def scores(self, users: Tensor | NDArray[np.int64], out: Tensor | None = None) -> Tensor:
        """[b] -> [b, items], into `out` if given."""
        rows = self.user[torch.as_tensor(users, device=self.user.device)]
        if self.bias is None:
            return torch.mm(rows, self.item.T, out=out)
        return torch.addmm(self.bias, rows, self.item.T, out=out)


@dataclass(frozen=True)
class WithFallback(BlockScorer):
    """Vectors, with fallback scores for every user of whom nothing was learned.

    cold: [users] whether a user has no learned pair; fallback: [items] scores for these users
    """

    factors: Factors
    cold: Tensor
    fallback: Tensor

    def to(self, device: str | torch.device) -> WithFallback:
        """Move to a device."""
        return WithFallback(self.factors.to(device), self.cold.to(device), self.fallback.to(device))

    def scores(self, users: Tensor, out: Tensor | None = None) -> Tensor:
        """[b] -> [b, items], into `out` if given."""
        scores = self.factors.scores(users, out)
        scores[self.cold[users.to(self.cold.device)]] = self.fallback.to(scores.dtype)
        return scores


@dataclass(frozen=True)
class ScoreFunction:
    """Function from user positions [b] (numpy) to scores [b, items] (array or tensor)."""

    function: Callable[[NDArray[np.int64]], Any]

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]: a copy, since the function may hand out an array of its own."""
        return floats(self.function(users.cpu().numpy())).clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Offset:
    """Scorer with user indices offset by `first`, as local users of a process are."""

    scorer: Scorer
    first: int

    def scores(self, users: Tensor) -> Tensor:
        """[b] -> [b, items]."""
        return self.scorer.scores(users + self.first)

    def sparse(self, users: Tensor) -> csr_array | None:
        """[b] -> [b, items]."""
        return self.scorer.sparse(users + self.first) if isinstance(self.scorer, SparseScorer) else None


@dataclass(frozen=True)
class ListFunction:
    """A function from user positions [b] (numpy) and a length k to ranked item positions [b, k or more], best first.

    -1 at the end of a shorter list. Seen items are taken out of the lists; the requested length leaves room for them.
    """

    function: Callable[[NDArray[np.int64], int], Any]

    def lists(self, users: Tensor, k: int) -> Tensor:
        """[b] -> [b, k or more]."""
        return torch.as_tensor(self.function(users.cpu().numpy(), k)).to("cpu", torch.int64)


def floats(array: Any) -> Tensor:
    """Convert an array or tensor to a floating-point tensor; integers to float32."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.copy()
    tensor = torch.as_tensor(array)
    return tensor if tensor.is_floating_point() else tensor.to(torch.float32)


def as_scorer(model: Any) -> Scorer | ListFunction:
    """Convert a model to a scorer: vectors as a tuple, a model with `factors()`, a scorer, a score function."""
    if isinstance(model, Factors):
        return Factors.of(model.user, model.item, model.bias)
    if isinstance(model, Scorer | ListFunction):
        return model
    if hasattr(model, "factors") and callable(model.factors):
        return as_scorer(model.factors())
    if isinstance(model, tuple) and len(model) in (2, 3):
        return Factors.of(*model)
    if callable(model):
        return ScoreFunction(model)
    expected = "(user vectors, item vectors[, item bias]), a model with factors() or scores(users), or a function"
    raise ConfigError(f"{type(model).__name__} cannot be ranked; expected {expected} of users (or ListFunction)")


def among(model: Any, candidates: NDArray[np.bool_]) -> Scorer | ListFunction:
    """Restrict a recommender to some items. candidates: [items]"""
    scorer, others = as_scorer(model), torch.from_numpy(~candidates)
    if isinstance(scorer, ListFunction):
        listed = scorer.function

        def restricted(users: NDArray[np.int64], k: int) -> NDArray[Any]:
            items = np.asarray(listed(users, k))
            return np.where((items >= 0) & candidates[items], items, -1)

        return ListFunction(restricted)
    scores = scorer.scores
    return ScoreFunction(lambda users: scores(torch.from_numpy(users)).cpu().masked_fill(others, -torch.inf))
