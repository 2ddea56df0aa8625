"""Observed pairs in random order, each with one unobserved item drawn uniformly; draws of a sampled softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.reference.heads import Columns
from concf.reference.objectives import LossSettings
from concf.runtime.arguments import derive_seed

Positions = NDArray[np.signedinteger[Any]]

DRAWS = 100  # after so many draws a user is taken to have used everything
PIECE = 1 << 22  # pairs that are looked at together
POWER = 0.5  # popular items and users are drawn by (1 + degree) to this power
ITEMS, USERS = 0, 1  # the sides that a softmax can run over
NOTHING = -1e9  # log of a count of 0, but finite: a tile of logits that are all -inf has no greatest


Among = tuple[Tensor, Tensor]  # [n] what all processes have, [b] at which of its places this one's are


@dataclass(frozen=True)
class Batch:
    """[B] users, items they used, and items they did not.

    whole: the batch of all processes that this is a part of, from its row `first` on; None: this is all of it
    drawn: [2, n] items, then users, for all rows of the batch alike, see `SampledSoftmax`; None: none are sampled
    """

    user: Tensor
    positive: Tensor
    negative: Tensor
    whole: Batch | None = None
    first: int = 0
    drawn: Tensor | None = None

    def __len__(self) -> int:
        return len(self.user)

    def to(self, device: torch.device) -> Batch:
        """The same on another device; on a GPU of 64 bits, lest each batch be converted by itself."""
        kind = None if device.type == "cpu" else torch.int64
        return self._each(lambda part: part.to(device).to(kind or part.dtype))

    def clone(self) -> Batch:
        """The same in memory of its own."""
        return self._each(torch.clone)

    def copy_(self, other: Batch) -> None:
        """Take over the other's pairs and draws."""
        for mine, theirs in ((self.user, other.user), (self.positive, other.positive), (self.negative, other.negative)):
            mine.copy_(theirs)
        if self.drawn is not None and other.drawn is not None:
            self.drawn.copy_(other.drawn)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        drawn = None if self.drawn is None else change(self.drawn)
        user, positive, negative = map(change, (self.user, self.positive, self.negative))
        return replace(self, user=user, positive=positive, negative=negative, drawn=drawn)

    def split(self, size: int) -> Iterator[Batch]:
        """Batches of `size` pairs of 64 bits each, as indices are, the last one shorter."""
        for begin in range(0, len(self), size):
            rows = slice(begin, begin + size)
            yield Batch(self.user[rows].long(), self.positive[rows].long(), self.negative[rows].long())

    def part(self, rows: slice) -> Batch:
        """Some of the rows, as a part of this batch; what is drawn is for all its parts."""
        return Batch(self.user[rows], self.positive[rows], self.negative[rows], self, rows.start, self.drawn)

    @property
    def items(self) -> Tensor:
        """[2 B] the used ones, then the others."""
        return torch.cat([self.positive, self.negative])

    def among_users(self) -> Among | None:
        """The users of the whole batch, and where in it this part's are."""
        return None if self.whole is None else (self.whole.user, self._at())

    def among_items(self) -> Among | None:
        """The same for the items of both kinds."""
        if self.whole is None:
            return None
        return self.whole.items, torch.cat([self._at(), self._at() + len(self.whole)])

    def _at(self) -> Tensor:
        return torch.arange(self.first, self.first + len(self), device=self.user.device)


class Sampler:
    """Draws epochs on the CPU, so that a seed gives the same pairs on every device.

    Arrays with an entry for every pair are of 32 bits where these are enough, and made in pieces: pairs may be many.
    ends: [pairs] the sums of the weights up to each pair; None: all weigh 1
    """

    def __init__(self, train: csr_array) -> None:
        self.n_users, self.n_items = train.shape
        ordered = train if train.has_sorted_indices else train.sorted_indices()
        kind = np.int32 if max(*train.shape, train.nnz) < 2**31 else np.int64
        self.user: Positions = np.repeat(np.arange(self.n_users, dtype=kind), np.diff(train.indptr))
        self.positive: Positions = ordered.indices.astype(kind, copy=False)
        self.ends = None
        if (ordered.data != 1).any():
            self.ends = np.cumsum(ordered.data, dtype=np.float64)
            self.ends *= train.nnz / self.ends[-1]
        self.observed = np.empty(train.nnz, np.int64)
        for rows in _pieces(train.nnz):
            self.observed[rows] = self._cells(self.user[rows], self.positive[rows])

    def epoch(self, seed: int, epoch: int) -> Batch:
        """Every observed pair once, in an order that seed and epoch alone decide: no state to keep.

        A pair of weight w comes floor(w) or ceil(w) times, w on average, and all of them as often as there are pairs.
        """
        random = np.random.Generator(np.random.Philox(derive_seed(seed, epoch, 0)))
        user, positive = self.user, self.positive
        if self.ends is not None:
            last = np.floor(self.ends + random.random()).astype(np.int64)
            last[-1] = len(user)
            chosen = np.repeat(np.arange(len(user)), np.diff(last, prepend=0))
            user, positive = user[chosen], positive[chosen]
        negative = np.empty_like(user)
        for rows in _pieces(len(negative)):
            negative[rows] = random.integers(self.n_items, size=len(negative[rows]))
        again: Positions = np.arange(len(negative), dtype=user.dtype)
        for _ in range(DRAWS):
            again = np.concatenate([self._used(again[rows], user, negative) for rows in _pieces(len(again))])
            if not len(again):
                break
            negative[again] = random.integers(self.n_items, size=len(again))
        order: Positions = np.arange(len(negative), dtype=user.dtype)
        random.shuffle(order)
        users, used, unused = (torch.from_numpy(_taken(column, order)) for column in (user, positive, negative))
        return Batch(users, used, unused)

    def _used(self, pairs: Positions, user: Positions, negative: Positions) -> Positions:
        """Those of the pairs whose negative is an item that the user has used."""
        cells = self._cells(user[pairs], negative[pairs])
        at = np.searchsorted(self.observed, cells).clip(max=len(self.observed) - 1)
        return np.asarray(pairs[self.observed[at] == cells])

    def _cells(self, user: Positions, item: Positions) -> NDArray[np.int64]:
        return np.asarray(user.astype(np.int64) * self.n_items + item)


def _pieces(n: int) -> Iterator[slice]:
    """0 .. n-1 in runs; one of nothing if n is 0."""
    yield from (slice(begin, min(begin + PIECE, n)) for begin in range(0, max(n, 1), PIECE))


def _taken(column: Positions, positions: NDArray[Any]) -> Positions:
    """column[positions]; numpy would make a copy of the positions in 64 bits."""
    taken = np.empty(len(positions), column.dtype)
    for rows in _pieces(len(positions)):
        taken[rows] = column[positions[rows]]
    return taken


def unique(ids: Tensor, n: int) -> Tensor:
    """The distinct ids, of 0 .. n-1, ascending."""
    return torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill_(0, ids.long(), True).nonzero()[:, 0]


def distinct(ids: Tensor, n: int, kind: torch.dtype, among: Among | None = None) -> tuple[Tensor | slice, Tensor]:
    """(rows, weights) that count each distinct one of the ids [B] (of 0 .. n-1) once.

    On a GPU, where shapes must stay the same, all rows with weight 1 / multiplicity; elsewhere as many as there are.
    among: the ids of all processes, of which each is counted by one alone: the one that has its last row
    """
    row = torch.arange(len(ids), device=ids.device)
    everyone, at = (ids, row) if among is None else among
    if ids.is_cuda:
        one = torch.ones(len(everyone), dtype=kind, device=ids.device)
        times = torch.zeros(n, dtype=kind, device=ids.device).index_add_(0, everyone, one)
        return slice(None), 1 / times[ids]
    every_row = torch.arange(len(everyone))
    last = torch.full((n,), -1).scatter_reduce_(0, everyone, every_row, "amax")
    rows = last[last >= 0]
    if among is not None:
        rows = torch.full_like(every_row, -1).index_copy_(0, at, row)[rows]
        rows = rows[rows >= 0]
        if not len(rows):
            return row[:1], torch.zeros(1, dtype=kind)  # avoids operations on no row at all
    return rows, torch.ones(len(rows), dtype=kind)


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
