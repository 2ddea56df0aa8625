"""Neighbours: an item is scored by the user's items that resemble it, or by the users who resemble the user."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from concf.evaluation.scorers import BlockScorer
from concf.runtime.executors import in_threads, n_threads
from concf.runtime.process_group import ALONE, ProcessGroup
from concf.runtime.settings import Settings

CPU_ROWS = 128  # items whose neighbours are searched together, by one thread
GPU_CELLS = 1 << 26  # values of a block of rows on a GPU, and terms of a product, in memory at a time
Similarity = Callable[[Tensor, Tensor, Tensor], Tensor]  # (co-occurrences, items i, items j), broadcast


def degrees(train: csr_array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([users], [items]) sum of each one's weights (its number of pairs, if all weights are 1); 1 without pairs."""
    sums = train.sum(axis=1, dtype=np.float64), np.bincount(train.indices, train.data, train.shape[1])
    per_user, per_item = (np.where(each > 0, each, 1.0) for each in sums)
    return per_user, per_item


class ItemKNN(Settings):
    """Cosine similarity with shrinkage, the k nearest neighbours of each item.

    s_ij = |U_i & U_j| / (sqrt(|U_i| |U_j|) + shrink);  score(u, i) = sum_{j in I_u} s_ij
    With weights |U_i & U_j| is sum_u w_ui w_uj, |U_i| is sum_u w_ui^2, and the score is sum_j w_uj s_ij.
    """

    neighbours: int = Field(200, ge=1)  # kept for each item
    shrink: float = Field(50.0, ge=0)  # pulls similarities that rest on few users towards 0

    def fit(self, train: csr_array, seed: int = 0, device: str | torch.device = "cpu") -> Neighbours:  # noqa: ARG002
        """Count co-occurrences. train: [users, items]."""
        norm = torch.from_numpy(degrees(train.power(2))[1] ** 0.5).to(device)

        def cosine(together: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return together / (norm[i] * norm[j] + self.shrink)

        by_item, by_user = (Rows.of(matrix, device) for matrix in (train.T.tocsr(), train))
        return Neighbours(by_user.float(), nearest(by_item, by_user, self.neighbours, cosine).T)

    def fold_in(self, fitted: Neighbours, histories: csr_array) -> Neighbours:
        """Score new users with histories [n, items] by the fitted neighbours."""
        return Neighbours(Rows.of(histories, fitted.into.ends.device).float(), fitted.into)


class RP3beta(Settings):
    """A random walk of three steps, user -> item -> user -> item, with a popularity penalty (Paudel et al., 2017).

    score(u, i) = sum_{j != i, v} (P_uj P_jv P_vi)^alpha / |U_i|^beta;  P_uj = 1 / |I_u|, P_jv = 1 / |U_j|.
    With weights P_uj = w_uj / sum_i w_ui and P_jv = w_vj / sum_u w_uj, and sum_u w_ui takes the place of |U_i|.
    """

    alpha: float = Field(0.7, ge=0)  # below 1: rare paths count for more
    beta: float = 0.2  # above 0: popular items score lower
    neighbours: int = Field(1000, ge=1)  # kept for each item

    def fit(
        self, train: csr_array, seed: int = 0,  # noqa: ARG002
        device: str | torch.device = "cpu", group: ProcessGroup = ALONE,
    ) -> Neighbours:  # fmt: skip
        """Multiply the transition matrices. train: [users, items]; group: see `nearest`."""
        walks = Walks(train, self.alpha, device)
        by_item, by_user = walks.log.T, walks.from_user.times(walks.of_item[walks.log.columns])  # (P_jv P_vi) ^ alpha
        penalty = torch.from_numpy(walks.per_item**-self.beta).to(device)

        def penalised(together: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
            return together * penalty[i]

        return Neighbours(walks.from_user.float(), nearest(by_item, by_user, self.neighbours, penalised, group).T)

    def fold_in(self, fitted: Neighbours, histories: csr_array) -> Neighbours:
        """Score new users with histories [n, items] by the fitted neighbours."""
        rows = Rows.of(histories, fitted.into.ends.device)
        user = torch.repeat_interleave(rows.ends.diff())
        share = rows.values / torch.bincount(user, rows.values)[user]
        return Neighbours(replace(rows, values=share**self.alpha).float(), fitted.into)


class Walks:
    """Transition matrices of RP3beta, and its exact scores for a block of users, not truncated to neighbours.

    Walks that return to their first item are not excluded: the user has used it, and lists leave used items out. On
    a CPU the block is sparse, so that the cost is the number of paths; on a GPU it is dense.
    """

    def __init__(self, train: csr_array, alpha: float, device: str | torch.device) -> None:
        per_user, self.per_item = degrees(train)
        of_user, self.of_item = (torch.from_numpy(each**-alpha).to(device) for each in (per_user, self.per_item))
        self.log = Rows.of(train.power(alpha), device)
        self.from_user = self.log.times(torch.repeat_interleave(of_user, self.log.ends.diff()))  # P_uj ^ alpha

    @cached_property
    def _steps(self) -> tuple[Rows, Rows]:
        """([users, items], [items, users]) P_uj ^ alpha and P_jv ^ alpha, in single precision."""
        return self.from_user.float(), self.log.times(self.of_item[self.log.columns]).float().T

    def __call__(self, users: Tensor) -> Tensor:
        """[b, items] the scores of users [b] with beta = 0."""
        from_user, from_item = self._steps
        if users.device.type == "cpu":
            return torch.from_numpy((from_user.matrix[users.numpy()] @ from_item.matrix @ from_user.matrix).toarray())
        count = from_user.ends[users + 1] - from_user.ends[users]
        column = torch.repeat_interleave(torch.arange(len(users), device=users.device), count)
        at = runs(from_user.ends[users], count)
        start = from_user.values.new_zeros(from_user.width, len(users))
        start[from_user.columns[at].long(), column] = from_user.values[at]
        reached: Tensor = from_user.T.tensor @ (from_item.T.tensor @ start)
        return reached.T.contiguous()

    def penalised(self, scores: Tensor, beta: float) -> Tensor:
        """[b, items] apply the popularity penalty |U_i|^-beta to scores with beta = 0."""
        return scores * torch.from_numpy(self.per_item).to(scores) ** -beta


class UserKNN(Settings):
    """The k nearest users, by a cosine that gives rare items more weight.

    s_uv = sum_{i in I_u & I_v} |U_i|^-1/2 / sqrt(|I_u| |I_v|);  score(u, i) = sum_{v in U_i} s_uv^power / |U_i|^beta
    With weights the terms are w_ui w_vi |U_i|^-1/2 and w_vi s_uv^power, |U_i| is sum_u w_ui, |I_u| is sum_i w_ui^2.
    """

    neighbours: int = Field(500, ge=1)  # kept for each user
    power: float = Field(1.5, gt=0)  # above 1: the nearest of them count for more
    beta: float = 0.2  # above 0: popular items score lower

    def fit(
        self, train: csr_array, seed: int = 0,  # noqa: ARG002
        device: str | torch.device = "cpu", group: ProcessGroup = ALONE,
    ) -> NearestUsers:  # fmt: skip
        """Compare the histories. train: [users, items]; group: see `nearest`."""
        norm, per_item = torch.from_numpy(degrees(train.power(2))[0] ** 0.5).to(device), degrees(train)[1]

        def cosine(together: Tensor, u: Tensor, v: Tensor) -> Tensor:
            return (together / (norm[u] * norm[v])) ** self.power

        weighted, penalised = ((train @ diags_array(per_item**-by)).tocsr() for by in (0.5, self.beta))
        by_item = train.T.tocsr()
        users = nearest(Rows.of(weighted, device), Rows.of(by_item, device), self.neighbours, cosine, group)
        return NearestUsers(users, Rows.of(penalised, device).float(), by_item)

    def fold_in(self, fitted: NearestUsers, histories: csr_array) -> Neighbours:
        """Score histories [n, items] by their nearest training users, of whom one may have the same history."""
        by_item = fitted.by_item
        together = (histories @ diags_array(degrees(by_item)[0] ** -0.5) @ by_item).tocsr()
        row = np.repeat(np.arange(together.shape[0]), np.diff(together.indptr))
        of_history, of_user = degrees(histories.power(2))[0] ** 0.5, degrees(by_item.power(2))[1] ** 0.5
        cosine = together.data / (of_history[row] * of_user[together.indices])
        similar = csr_array((cosine**self.power, together.indices, together.indptr), together.shape)
        for first, last in pairwise(similar.indptr):
            values = similar.data[first:last].astype(np.float32)
            order = np.lexsort((similar.indices[first:last], -values))
            similar.data[first:last][order[self.neighbours :]] = 0.0
        similar.eliminate_zeros()
        return Neighbours(Rows.of(similar, fitted.into.ends.device).float(), fitted.into)


@dataclass(frozen=True)
class Rows:
    """Sparse matrix (CSR). ends: [n + 1] int64 row offsets; columns: [nnz] int32; values: [nnz]; width: columns."""

    ends: Tensor
    columns: Tensor
    values: Tensor
    width: int

    @classmethod
    def of(cls, matrix: csr_array, device: str | torch.device = "cpu") -> Rows:
        """Convert a SciPy matrix; values become float64."""
        matrix = matrix.sorted_indices()  # fixes the order of summation
        ends, columns = torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).int()
        return cls(ends, columns, torch.from_numpy(matrix.data).double(), matrix.shape[1]).to(device)

    def to(self, device: str | torch.device) -> Rows:
        """Move to a device."""
        return Rows(self.ends.to(device), self.columns.to(device), self.values.to(device), self.width)

    def times(self, factors: Tensor) -> Rows:
        """Multiply each value by its factor [nnz]."""
        return Rows(self.ends, self.columns, self.values * factors, self.width)

    def float(self) -> Rows:
        """Convert the values to float32."""
        return Rows(self.ends, self.columns, self.values.float(), self.width)

    @cached_property
    def matrix(self) -> csr_array:
        """SciPy matrix that shares the values; CPU only."""
        parts = self.values.numpy(), self.columns.numpy(), self._small_ends.numpy()  # same index dtype: no copy
        return csr_array(parts, shape=(len(self.ends) - 1, self.width))

    @cached_property
    def tensor(self) -> Tensor:
        """PyTorch sparse CSR tensor."""
        ends, shape = self._small_ends, (len(self.ends) - 1, self.width)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that sparse tensors are in beta state
            return torch.sparse_csr_tensor(ends, self.columns.to(ends), self.values, shape, check_invariants=False)

    @property
    def _small_ends(self) -> Tensor:
        return self.ends.int() if len(self.values) <= torch.iinfo(torch.int32).max else self.ends

    @cached_property
    def T(self) -> Rows:
        """The transpose."""
        return self._turned_by_scipy() if self.values.device.type == "cpu" else self._turned_by_a_sort()

    def _turned_by_scipy(self) -> Rows:
        turned = self.matrix.T.tocsr()
        ends, columns = torch.from_numpy(turned.indptr).long(), torch.from_numpy(turned.indices).int()
        return Rows(ends, columns, torch.from_numpy(turned.data), len(self.ends) - 1)

    def _turned_by_a_sort(self) -> Rows:
        row = torch.repeat_interleave(torch.arange(len(self.ends) - 1, device=self.ends.device), self.ends.diff())
        order = self.columns.argsort(stable=True)
        ends = _ends(torch.bincount(self.columns, minlength=self.width))
        return Rows(ends, row[order].int(), self.values[order], len(self.ends) - 1)


@dataclass(frozen=True)
class Neighbours(BlockScorer):
    """score(u, i) = sum_j profile_uj into_ji.

    profile: [users, n] the weights of a user's items, or of its neighbours; into: [n, items] row j, the items that j is
    nearest to, or has used
    """

    profile: Rows
    into: Rows

    def to(self, device: str | torch.device) -> Neighbours:
        """Move to a device."""
        return replace(self, profile=self.profile.to(device), into=self.into.to(device))

    def scores(self, users: Tensor, out: Tensor | None = None) -> Tensor:
        """[b] -> [b, items], into `out` if given."""
        return product(self.profile, users.to(self.profile.ends.device), self.into, out)

    def sparse(self, users: Tensor) -> csr_array | None:
        """[b] -> [b, items]; None on a GPU."""
        return _sparse_product(self.profile, users, self.into) if self.profile.ends.device.type == "cpu" else None


@dataclass(frozen=True)
class NearestUsers(Neighbours):
    """Nearest users. by_item: [items, users] the training log, to compare new histories with."""

    by_item: csr_array


def product(left: Rows, rows: Tensor, right: Rows, out: Tensor | None = None) -> Tensor:
    """[b, columns of right] those rows [b] of left @ right, dense, into `out` if given.

    Bitwise reproducible on a CPU; on a GPU the order of summation varies.
    """
    if out is None:
        out = right.values.new_empty(len(rows), right.width)
    if out.device.type != "cpu":
        return _product_by_terms(left, rows, right, out)
    _sparse_product(left, rows, right).toarray(out=out.numpy())
    return out


def _sparse_product(left: Rows, rows: Tensor, right: Rows) -> csr_array:
    """[b, columns of right] those rows [b] of left @ right, on a CPU."""
    several = left.matrix if len(left.ends) == len(rows) + 1 == 2 else left.matrix[rows.numpy()]  # which takes longer
    return several @ right.matrix


def _product_by_terms(left: Rows, rows: Tensor, right: Rows, out: Tensor) -> Tensor:
    """Scatter-add all terms of the product into `out`, in chunks."""
    out.zero_()
    count = left.ends[rows + 1] - left.ends[rows]
    cell = runs(left.ends[rows], count)  # of left, row by row
    begin = torch.repeat_interleave(torch.arange(len(rows), device=rows.device) * right.width, count)
    column = left.columns[cell].long()
    terms = right.ends[column + 1] - right.ends[column]
    total = terms.cumsum(0)
    steps = torch.arange(GPU_CELLS, int(total[-1]) + GPU_CELLS if len(total) else 0, GPU_CELLS, device=rows.device)
    pieces = torch.searchsorted(total, steps, right=True).tolist()
    for first, end in zip([0, *pieces], pieces, strict=False):
        piece = slice(first, end)
        at = runs(right.ends[column[piece]], terms[piece])
        place = torch.repeat_interleave(begin[piece], terms[piece], output_size=len(at)).add_(right.columns[at])
        weight = torch.repeat_interleave(left.values[cell[piece]], terms[piece], output_size=len(at))
        out.view(-1).index_add_(0, place, weight.mul_(right.values[at]))
    return out


def nearest(left: Rows, right: Rows, k: int, similarity: Similarity, group: ProcessGroup = ALONE) -> Rows:
    """[n, n] row i: the k items (or users) j != i with the highest similarity above 0, float32; ties to the lower j.

    left: [n, m] and right: [m, n]; `similarity` is a function of their product
    group: every rank has both matrices, and searches its share of the rows
    """
    device, n_items = left.ends.device, right.width
    keys_of, size, threads = _dense_keys, max(1, GPU_CELLS // n_items), 1
    if device.type == "cpu":
        keys_of, size, threads = _sparse_keys, CPU_ROWS, n_threads()
    group = group if group.size <= n_items else ALONE
    own = group.share(n_items)

    def decoded(begin: int) -> tuple[Tensor, Tensor, Tensor]:
        items = torch.arange(begin, min(begin + size, own.stop), device=device)
        count, keys = keys_of(left, items, right, k, similarity)
        columns = torch.iinfo(torch.int32).max - (keys & 0xFFFFFFFF)
        return count, columns.int(), (keys >> 32).int().view(torch.float32)

    blocks = list(in_threads(decoded, range(own.start, own.stop, size), threads))
    counts, columns, values = (group.join(torch.cat(parts)) for parts in zip(*blocks, strict=True))
    return Rows(_ends(counts), columns, values, n_items)


def _sparse_keys(left: Rows, items: Tensor, right: Rows, k: int, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """([b], [n]) how many neighbours each item has, and their keys. Only pairs that occur together are searched."""
    together = left.matrix[items.numpy()] @ right.matrix
    item = torch.repeat_interleave(items, torch.from_numpy(np.diff(together.indptr)))
    column = torch.from_numpy(together.indices).long()
    keys = _keys(torch.from_numpy(together.data), item, column, similarity).numpy()
    rows = [keys[begin:end] for begin, end in pairwise(together.indptr)]
    rows = [row if len(row) <= k else np.partition(row, len(row) - k)[-k:] for row in rows]
    best = np.concatenate(rows)
    count = np.array([np.count_nonzero(row) for row in rows])
    return torch.from_numpy(count), torch.from_numpy(best[best > 0])


def _dense_keys(left: Rows, items: Tensor, right: Rows, k: int, similarity: Similarity) -> tuple[Tensor, Tensor]:
    """Search a dense block, which is fastest on a GPU. Returns what `_sparse_keys` does."""
    column = torch.arange(right.width, device=items.device)
    keys = _keys(product(left, items, right), items[:, None], column, similarity)
    best = keys.topk(min(k, right.width), sorted=False).values
    return (best > 0).sum(1), best[best > 0]


def _keys(together: Tensor, item: Tensor, column: Tensor, similarity: Similarity) -> Tensor:
    """int64 sort keys: by similarity (float32), then the lower column first; 0: no neighbour.

    The bits of floats above 0 sort as the floats do.
    """
    similar = similarity(together, item, column).float()
    keys = (similar.view(torch.int32).long() << 32) | (torch.iinfo(torch.int32).max - column)
    return keys.where((similar > 0) & (item != column), 0)


def _ends(counts: Tensor) -> Tensor:
    """[n + 1] row offsets (CSR) of rows with these counts."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def runs(first: Tensor, count: Tensor) -> Tensor:
    """Concatenate the ranges first_0, first_0 + 1, ... (count_0 numbers), first_1, ..."""
    before = count.cumsum(0) - count
    run = torch.repeat_interleave(first - before, count)
    return run + torch.arange(len(run), device=run.device)
