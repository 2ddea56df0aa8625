"""Sampled softmax, for catalogues over which the full one is too expensive."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.reference.heads import Columns
from concf.reference.objectives import LossSettings
from concf.runtime.arguments import derive_seed

POWER = 0.5  # popular items and users are drawn by (1 + degree) to this power
ITEMS, USERS = 0, 1  # the sides that a softmax can run over
NOTHING = -1e9  # log of a count of 0, but finite: a tile of logits that are all -inf has no greatest


class SampledSoftmax:
    """n items and n users a batch, drawn with replacement, the same for all its rows.

    train: [users, items]; power: q_j, the chance of j in a draw, is in proportion to (1 + degree_j)^power
    A side that has no more than n is summed in full, at no more cost.
    """

    def __init__(self, train: csr_array, n: int, power: float, device: torch.device, kind: torch.dtype) -> None:
        self.n = n
        degrees = (np.bincount(train.indices, minlength=train.shape[1]), np.diff(train.indptr))
        chances = [proposal(degree, power) for degree in degrees]
        self.ends = [np.cumsum(chance)[:-1] for chance in chances]
        self.log_counts = [torch.from_numpy(np.log(n * chance)).to(device, kind) for chance in chances]

    @classmethod
    def of(
        cls, train: csr_array, chosen: LossSettings, device: torch.device, kind: torch.dtype
    ) -> SampledSoftmax | None:
        """As the settings say; None where they say nothing, or where both sides are summed in full."""
        n = chosen.softmax_samples
        return None if n is None or n >= max(train.shape) else cls(train, n, POWER, device, kind)

    def in_full(self, side: int) -> bool:
        """Whether that side is no larger than a sample of it."""
        return self.n >= len(self.log_counts[side])

    def draw(self, seed: int, epoch: int, batch: int) -> Tensor:
        """[2, n] items, then users, of the batch of that number: no state to keep."""
        random = np.random.Generator(np.random.Philox(derive_seed(seed, epoch, 2, batch)))
        drawn = [np.searchsorted(ends, random.random(self.n), side="right") for ends in self.ends]
        return torch.from_numpy(np.stack(drawn))

    def columns(self, side: int, sure: Tensor, weight: Tensor, drawn: Tensor) -> Columns:
        """What the softmax of a batch runs over, and what is added to each logit there.

            sum_j exp s_j  ~  sum_{j in S} exp s_j  +  sum_{k <= n, j_k not in S} exp(s_jk - log n q_jk)

        S are those that the batch itself holds; the mean of the right side over all draws is the left one, whatever S.
        A drawn one that is in S is counted there already, and falls out. No logit of a row's own target is drawn twice.
        sure: [m] the places of S, one may come more than once; weight: [m] that counts each once; drawn: [n]
        """
        log_count = self.log_counts[side]
        counted = torch.zeros_like(log_count, dtype=torch.bool).index_fill_(0, sure, True)
        others = (-log_count[drawn]).masked_fill(counted[drawn], NOTHING)
        return torch.cat([sure, drawn]), torch.cat([weight.log().clamp(min=NOTHING), others])


def proposal(degree: NDArray[np.integer], power: float) -> NDArray[np.float64]:
    """[n] q in proportion to (1 + degree)^power: no place without a chance, or its part of the sum would be missing."""
    mass = (1.0 + degree) ** power
    return np.asarray(mass / mass.sum(), np.float64)
