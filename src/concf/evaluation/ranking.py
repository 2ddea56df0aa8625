"""Full ranking in blocks of users: the best k unseen items of each, without a users x items matrix."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import isqrt
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.errors import ConfigError, DataError
from concf.evaluation.metrics import flat_cells
from concf.evaluation.scorers import BlockScorer, Factors, ListFunction, as_scorer, floats
from concf.runtime.arguments import check_count
from concf.runtime.executors import in_threads, n_threads
from concf.runtime.progress import working

NOTHING = -1  # padding at the end of a list
CPU_MEMORY = 16 << 20  # bytes of scores at a time; a block that stays in the cache is ranked fastest
GPU_MEMORY = 1 << 28
SMALLEST_BLOCK = 16  # users, however many threads share the memory
LISTED_USERS = 4096  # users per call of a list function
NUMPY = (torch.float32, torch.float64)  # that numpy selects from
SMALLEST_GROUP = 5  # columns of a group on a CPU: smaller groups cost more than they save
FEW = 8  # rows that are searched as a whole: for fewer, groups cost more than they save


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """([b, k], [b, k]) the k highest scores of each row and their columns, best first, ties by the lower column.

    scores: [b, n], k <= n. NaN counts as the highest score; columns of -inf are in no order.
    """
    n = scores.shape[1]
    values, columns = _highest(scores, min(k + 1, n))  # one more shows whether a tie crosses the end of the list
    if n > k:
        crossing = (values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)
        rows = crossing.nonzero().squeeze(1)
        if len(rows):  # the lowest of the tied columns fill the list
            border = values[rows, k - 1, None]
            row, column = (scores[rows] == border).nonzero(as_tuple=True)
            count = torch.bincount(row, minlength=len(rows))
            before = count.cumsum(0) - count - (values[rows, :k] != border).sum(1)
            place = torch.arange(len(row), device=row.device) - before[row]
            columns[rows[row[place < k]], place[place < k]] = column[place < k]
        values, columns = values[:, :k], columns[:, :k]
    rows = (values[:, 1:] == values[:, :-1]).any(1).nonzero().squeeze(1)
    if len(rows):
        tied, order = columns[rows].sort(dim=1)
        values[rows], again = values[rows].gather(1, order).sort(dim=1, descending=True, stable=True)
        columns[rows] = tied.gather(1, again)
    return values, columns


def top_k_of_sparse(scores: csr_array, k: int, own: NDArray[np.bool_], seen: csr_array) -> tuple[Tensor, Tensor]:
    """`top_k` of a sparse table [b, n] of float32 scores, none below 0; the cells of `seen` [b, n] count as -inf.

    own: [nnz] whether a stored score is of such a cell. Scores become integers that sort by score, then by the lower
    column. Where a row stores fewer than k, zeros follow.
    """
    first, ends = np.iinfo(np.int32).max, scores.indptr
    keys = (scores.data.view(np.int32).astype(np.int64) << 32) | (first - scores.indices)
    keys[own] = 0
    best = np.zeros((len(ends) - 1, k), np.int64)
    for row, (begin, end) in zip(best, pairwise(ends), strict=True):
        stored = keys[begin:end]
        row[: len(stored)] = stored if len(stored) <= k else np.partition(stored, len(stored) - k)[-k:]
    best = -np.sort(-best, axis=1)
    columns, values = first - (best & 0xFFFFFFFF), (best >> 32).astype(np.int32).view(np.float32)
    for at in np.flatnonzero(values[:, -1] == 0):
        n = np.count_nonzero(values[at])
        taken = np.union1d(columns[at, :n], seen.indices[seen.indptr[at] : seen.indptr[at + 1]])
        zeros = np.setdiff1d(np.arange(min(k + len(taken), scores.shape[1])), taken, assume_unique=True)[: k - n]
        columns[at, n:], values[at, n + len(zeros) :] = 0, -np.inf
        columns[at, n : n + len(zeros)] = zeros
    return torch.from_numpy(values), torch.from_numpy(columns)


def cells_in(rows: csr_array, others: csr_array) -> NDArray[np.bool_]:
    """[nnz] whether each stored cell of a matrix [r, items] is stored in another one [r, items]."""
    among = np.zeros(rows.shape[0] * rows.shape[1], bool)
    among[flat_cells(others)] = True
    return np.asarray(among[flat_cells(rows)])


def _highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row and their columns, best first, ties in any order.

    The columns are dealt into groups; the k highest lie in the k groups with the highest maxima, so only those
    are searched. With groups of sqrt(n / k) columns both stages are equally small.
    """
    n, size = scores.shape[1], isqrt(scores.shape[1] // k)
    if size < (SMALLEST_GROUP if scores.device.type == "cpu" else 2) or len(scores) < FEW:
        columns = _selected(scores, k)
    else:
        groups = n // size
        dealt = scores[:, : groups * size].view(len(scores), size, groups)
        best = _selected(dealt.amax(1), k)  # [b, k]
        members = torch.arange(size, device=scores.device)[None, :, None] * groups + best[:, None, :]
        rest = torch.arange(groups * size, n, device=scores.device).expand(len(scores), -1)
        candidates = torch.cat([members.flatten(1), rest], 1)
        columns = candidates.gather(1, _selected(scores.gather(1, candidates), k))
    values, order = scores.gather(1, columns).sort(dim=1, descending=True)
    return values, columns.gather(1, order)


def _selected(scores: Tensor, k: int) -> Tensor:
    """[b, k] columns of the k highest scores of each row, in any order. On a CPU numpy is several times as fast."""
    if scores.device.type != "cpu" or scores.dtype not in NUMPY:
        return scores.topk(k, sorted=False).indices
    n = scores.shape[1]
    return torch.from_numpy(np.argpartition(scores.numpy(), n - k, axis=1)[:, n - k :])


def rank(
    model: Any, users: NDArray[np.int64], k: int, *, seen: csr_array | None = None,
    device: str | torch.device = "cpu", memory: int | None = None,
) -> NDArray[np.int32]:  # fmt: skip
    """[len(users), k] the best items of each user, best first; -1 where fewer than k can be recommended.

    model:  anything `as_scorer` takes
    seen:   [users, items] items to leave out
    memory: bytes of scores held at a time; it sets the number of users in a block
    Ties go to the lower item position. An item scored -inf is not recommended.
    """
    k, scorer = check_count("k", k), as_scorer(model)
    if isinstance(scorer, BlockScorer):
        scorer = scorer.to(device)
    lists = np.full((len(users), k), NOTHING, np.int32)
    if not len(users):
        return lists
    if isinstance(scorer, ListFunction):
        return _rank_lists(scorer, users, k, seen, lists)
    threads = n_threads() if isinstance(scorer, BlockScorer) and torch.device(device).type == "cpu" else 1
    budget = (memory or (CPU_MEMORY if torch.device(device).type == "cpu" else GPU_MEMORY)) // threads
    last = int(users.max())
    n_users = len(scorer.user) if isinstance(scorer, Factors) else seen.shape[0] if seen is not None else last + 1
    if last >= n_users or users.min() < 0:
        raise ConfigError(f"user position {last if last >= n_users else users.min()}: expected 0 to {n_users - 1}")
    probe = floats(scorer.scores(torch.as_tensor(users[:1])))
    if probe.ndim != 2 or len(probe) != 1:
        raise ConfigError(f"for one user the model gives scores of shape {list(probe.shape)}; expected [1, items]")
    n_items = probe.shape[1]
    if seen is not None and n_items != seen.shape[1]:
        raise ConfigError(f"the model scores {n_items} items and the data has {seen.shape[1]}")
    size = min(len(users), max(1 if memory else SMALLEST_BLOCK, budget // (probe.element_size() * n_items)))
    buffers: SimpleQueue[Tensor] = SimpleQueue()  # reused: fresh memory costs more than the product
    for _ in range(threads):
        buffers.put(probe.new_empty((size, n_items)) if isinstance(scorer, BlockScorer) else probe)

    def rank_from(begin: int) -> int:
        block = users[begin : begin + size]
        buffer = buffers.get()
        try:
            with torch.inference_mode():
                if isinstance(scorer, BlockScorer):
                    scores = scorer.scores(torch.as_tensor(block), out=buffer[: len(block)])
                else:
                    scores = floats(scorer.scores(torch.as_tensor(block))).contiguous()
                if seen is not None:
                    cells = torch.as_tensor(flat_cells(seen[block]), device=scores.device)
                    scores.view(-1).index_fill_(0, cells, -torch.inf)
                values, items = top_k(scores, min(k, n_items))
        finally:
            buffers.put(buffer)  # also after an error, or the next block would wait for it forever
        bad = values.isnan().any(1)
        if bad.any():
            raise DataError(f"the model scores an item NaN for user position {block[int(bad.nonzero()[0])]}")
        listed = items.masked_fill(values == -torch.inf, NOTHING).to(torch.int32).cpu().numpy()
        lists[begin : begin + len(block), : listed.shape[1]] = listed
        return len(block)

    with working("ranking", len(users)) as advance:
        for n_done in in_threads(rank_from, range(0, len(users), size), threads):
            advance(n_done)
    return lists


def rank_everyone(factors: Factors, k: int, seen: Seen, users: slice = slice(None)) -> Tensor:
    """[users, k] int32 lists of all users, or a slice of them, as by `rank`, on the device of the vectors."""
    device, n_items = factors.user.device, len(factors.item)
    chosen = range(len(factors.user))[users]
    if device.type == "cpu":
        return torch.from_numpy(rank(factors, np.asarray(chosen), k, seen=seen.matrix))
    lists = torch.full((len(chosen), k), NOTHING, dtype=torch.int32, device=device)
    size = max(1, GPU_MEMORY // (factors.item.element_size() * n_items))
    for begin in range(chosen.start, chosen.stop, size):
        end = min(begin + size, chosen.stop)
        scores = factors.scores(torch.arange(begin, end, device=device))
        scores.view(-1).index_fill_(0, seen.flat(begin, end), -torch.inf)
        values, items = top_k(scores, min(k, n_items))
        listed = items.masked_fill_(values == -torch.inf, NOTHING)
        lists[begin - chosen.start : end - chosen.start, : listed.shape[1]] = listed
    return lists


class Seen:
    """Seen items of each user: `matrix` [users, items], and the flat positions of its cells on a device."""

    def __init__(self, matrix: csr_array, device: str | torch.device) -> None:
        self.matrix, self.device = matrix, torch.device(device)

    @cached_property
    def cells(self) -> Tensor:
        """[n] positions of the cells in the flattened matrix."""
        return torch.from_numpy(flat_cells(self.matrix)).to(self.device)

    def flat(self, begin: int, end: int) -> Tensor:
        """The cells of the users begin .. end-1 in their own [end - begin, items] table, flattened."""
        cells = self.cells[int(self.matrix.indptr[begin]) : int(self.matrix.indptr[end])]
        return cells - begin * int(self.matrix.shape[1])


def _rank_lists(
    scorer: ListFunction, users: NDArray[np.int64], k: int, seen: csr_array | None, lists: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Lists of a `ListFunction`, without seen items and padding, cut at k."""
    longest = int(np.diff(seen.indptr)[users].max()) if seen is not None else 0
    for begin in range(0, len(users), LISTED_USERS):
        block = users[begin : begin + LISTED_USERS]
        given = scorer.lists(torch.as_tensor(block), k + longest).numpy()
        for row, (user, items) in enumerate(zip(block, given, strict=True), start=begin):
            known = seen.indices[seen.indptr[user] : seen.indptr[user + 1]] if seen is not None else ()
            left = items[items != NOTHING]
            if len(np.unique(left)) < len(left):
                raise DataError(f"the list of user position {user} names an item twice")
            best = np.setdiff1d(left, known, assume_unique=True)[:k]
            lists[row, : len(best)] = best
    return lists
