"""Voters: the first K items of each user's ranking, and further features for the re-ranker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import exp

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import cells_in, rank, top_k, top_k_of_sparse
from concf.evaluation.scorers import Factors, Scorer, SparseScorer
from concf.runtime.executors import in_blocks
from concf.runtime.process_group import ALONE, ProcessGroup

CPU_CELLS, GPU_CELLS = 1 << 22, 1 << 26  # scores in memory at a time
CELLS_SUMMED = 1 << 17  # scores that are summed at a time on a CPU, in its cache
DENSE = 0.4  # share of stored scores from which a dense table is faster than a sparse one
CELLS_HELD = 16  # numbers in memory per listed item while its features are computed, about
LISTED_FEATURES = 3  # item z-score, relative score, score
LEAST_UNIT = 1e-12  # standard deviation of all scores below which they carry no information
LEAST_GAP = 0.05  # lower bound of o_i - m_i, whose estimate from few users is noisy
LEAST_STD = 1e-3  # lower bound of d_i
TIMED_LEAST_STD = 0.1  # the same for a split by time, where new items have few pairs and statistics are also shrunk:
SHRINK = 5.0  # an item's d_i^2 and o_i - m_i are averaged with this many users of an average item
Z_SCORE, RELATIVE_SCORE = (-20.0, 20.0), (-2.0, 3.0)  # clipped to these


@dataclass(frozen=True)
class Voter:
    """Lists and features of a voter, for n users.

    lists:   [n, K] int32 best items that each user has not used, -1 where there are fewer
    factors: its vectors, if it has any
    listed:  [n, K, 3] for a voter without vectors: item z-score, relative score and score of each listed item (see
             `strong/features.py`), from scores divided by the standard deviation of all its scores
    of_items: [4, items] for a voter without vectors: mean m_i and standard deviation d_i of each item's scores, and
             o_i - m_i, each divided by the standard deviation of all scores; and that deviation
    """

    name: str
    lists: Tensor
    factors: Factors | None = None
    listed: Tensor | None = None
    of_items: Tensor | None = None


def by_factors(name: str, factors: Factors, train: csr_array, users: Tensor, k: int) -> Voter:
    """Make a voter that ranks by inner products, for users [n]. train: [users, items] pairs that it does not list"""
    lists = rank(factors, users.cpu().numpy(), k, seen=train, device=users.device)
    return Voter(name, torch.from_numpy(lists).to(users.device), factors)


def by_scores(
    name: str, scorer: Scorer, train: csr_array, users: Tensor, k: int, of_items: Tensor | None = None,
    group: ProcessGroup = ALONE, least_std: float = LEAST_STD,
) -> Voter:  # fmt: skip
    """Make a voter without vectors: score all items in blocks of users, and keep the first k of each user.

    of_items: see `Voter`; None: computed over these users, on all ranks; least_std: lower bound of d_i
    """
    sums = None if of_items is not None else torch.zeros(4, train.shape[1], dtype=torch.float64, device=users.device)
    listed, values = first_items(scorer, train, users, k, sums)
    if sums is not None:
        n_users = torch.tensor(len(users), dtype=torch.float64, device=users.device)
        group.all_reduce([sums, n_users])
        of_items = _of_items(sums, int(n_users), least_std).to(values)
    assert of_items is not None
    return by_lists(name, listed, values, of_items)


def by_lists(name: str, listed: Tensor, values: Tensor, of_items: Tensor) -> Voter:
    """Make a voter without vectors from its lists [n, K], their scores [n, K] and its item statistics (`Voter`)."""
    dtype = torch.promote_types(values.dtype, of_items.dtype)
    features = torch.empty(*listed.shape, LISTED_FEATURES, dtype=dtype, device=listed.device)

    def fill(rows: slice) -> None:
        items = listed[rows]
        mean, std, gap, unit = of_items[:, items.long().clamp(min=0)]
        score = (values[rows] / unit).masked_fill(items < 0, 0.0)
        columns = [((score - mean) / std).clamp(*Z_SCORE), ((score - mean) / gap).clamp(*RELATIVE_SCORE), score]
        features[rows] = torch.stack(columns, -1).masked_fill_((items < 0)[..., None], 0.0)

    size = max(1, _cells(listed.device) // (CELLS_HELD * max(1, listed.shape[1])))
    blocks = [slice(begin, begin + size) for begin in range(0, len(listed), size)]
    for _ in in_blocks(fill, blocks, listed.device):
        pass
    return Voter(name, listed, None, features, of_items)


def _cells(device: torch.device) -> int:
    return CPU_CELLS if device.type == "cpu" else GPU_CELLS


def moments_of_lists(listed: Tensor, values: Tensor, n_items: int) -> Tensor:
    """[4, items] `Voter.of_items` of a voter known only by its lists [n, K] and their scores [n, K], 0 or more.

    A pair that is not listed has score 0, and an item's own users are those for whom it is listed.
    """
    valid = listed >= 0
    item, score = listed[valid].long(), values[valid].double()
    total = torch.bincount(item, score, minlength=n_items)
    sums = [total, torch.bincount(item, score.square(), n_items), total, torch.bincount(item, minlength=n_items)]
    return _of_items(torch.stack([each.double() for each in sums]), len(listed)).to(values)


def first_items(
    scorer: Scorer, train: csr_array, users: Tensor, k: int, sums: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """([n, k], [n, k]) best items that users [n] have not used, -1 where there are fewer, and their scores.

    sums: [4, items] float64, to which are added for each item: the users' scores, their squares, the scores of those
    with a pair, and the number of these
    """
    device, n_items = users.device, train.shape[1]
    k = min(k, n_items)

    @torch.no_grad()
    def rank_block(block_users: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        used = train[block_users.cpu().numpy()]
        few = scorer.sparse(block_users) if device.type == "cpu" and isinstance(scorer, SparseScorer) else None
        if few is not None and few.nnz < DENSE * few.shape[0] * n_items:
            own = cells_in(few, used)
            more = None if sums is None else _sums_of_sparse(few, own, used)
            values, items = top_k_of_sparse(few, k, own, used)
        else:
            block = scorer.scores(block_users).to(device) if few is None else torch.from_numpy(few.toarray())
            cells = torch.from_numpy(flat_cells(used)).to(device)
            more = None if sums is None else _sums(block, cells)
            block.view(-1).index_fill_(0, cells, -torch.inf)
            values, items = top_k(block, k)
        return items.masked_fill_(values == -torch.inf, -1).to(torch.int32), values, more

    blocks, whole, begin = torch.split(users, max(1, _cells(device) // n_items)), list[Tensor](), 0
    for *parts, more in in_blocks(rank_block, blocks, device):  # in order, so that sums are bitwise reproducible
        if not whole:
            whole = [torch.empty(len(users), *part.shape[1:], dtype=part.dtype, device=device) for part in parts]
        for each, part in zip(whole, parts, strict=True):
            each[begin : begin + len(part)] = part
        begin += len(parts[0])
        if sums is not None and more is not None:
            sums += more
    return whole[0], whole[1]


def _sums(block: Tensor, cells: Tensor) -> Tensor:
    """[4, items] sums of a block of scores [b, items]. cells: flat indices of its users' pairs"""
    n_items = block.shape[1]
    sums = torch.zeros(4, n_items, dtype=torch.float64, device=block.device)
    rows = max(1, CELLS_SUMMED // n_items) if block.device.type == "cpu" else len(block)
    for exact in map(Tensor.double, torch.split(block, rows)):
        sums[0] += exact.sum(0)
        sums[1] += exact.square().sum(0)
    sums[2].index_add_(0, cells % n_items, block.view(-1)[cells].double())
    sums[3] = torch.bincount(cells % n_items, minlength=n_items)
    return sums


def _sums_of_sparse(block: csr_array, own: NDArray[np.bool_], used: csr_array) -> Tensor:
    """`_sums` of a sparse block. used: [b, items] its users' pairs; own: [nnz] whether a stored score is of one"""
    item, score, count = block.indices, block.data.astype(np.float64), partial(np.bincount, minlength=block.shape[1])
    sums = count(item, score), count(item, score**2), count(item[own], score[own]), count(used.indices)
    return torch.from_numpy(np.stack(sums))


def _of_items(sums: Tensor, n_users: int, least_std: float = LEAST_STD) -> Tensor:
    """[4, items] `Voter.of_items` from the sums [4, items] of `first_items`."""
    total, square, own, count = sums
    mean = total / n_users
    variance = (square / n_users - mean.square()).clamp(min=0)
    unit = usable((variance.mean() + mean.var(correction=0)).sqrt())
    gap = (((own / count.clamp(min=1)).where(count > 0, mean) - mean) / unit).clamp(min=LEAST_GAP)
    std = (variance.sqrt() / unit).clamp(min=least_std)
    if least_std == TIMED_LEAST_STD:
        std, gap = shrunk(std, gap, count)
    return torch.stack([mean / unit, std, gap, unit.expand_as(mean)])


def usable(unit: Tensor) -> Tensor:
    """Return a standard deviation to divide scores by; 1 where all scores have vanished."""
    return unit.where(unit > LEAST_UNIT, 1.0)


def shrunk(std: Tensor, gap: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """([items], [items]) d_i and o_i - m_i, shrunk to the average item, more with fewer users. count: [items] users"""
    keep = count / (count + SHRINK)
    square = std.square()
    return (keep * square + (1 - keep) * square.mean()).sqrt(), keep * gap + (1 - keep) * gap.mean()


def kept_votes(voters: Sequence[Voter], weights: Sequence[float], names: Sequence[str], k: int) -> dict[str, Tensor]:
    """Votes to store: items [names, n, K] int32, -1 for a name that does not vote, and voter_weights [names]."""
    listed = {each.name: each.lists[:, :k] for each in voters}
    weight = dict(zip(listed, weights, strict=True))
    given = torch.tensor([weight.get(name, 0.0) for name in names], dtype=torch.float64)
    first = voters[0].lists[:, :k]
    items = first.new_empty(len(names), *first.shape)
    for row, name in enumerate(names):
        items[row] = listed.get(name, -1)
    return {"items": items, "voter_weights": given}


def voter_weights(validation: Sequence[float], temperature: float) -> list[float]:
    """Weight exp(-(1 - v / max v) / temperature) of each voter, v its validation metric."""
    best = max(validation)
    return [exp((value / best - 1) / temperature) if best else 1.0 for value in validation]
