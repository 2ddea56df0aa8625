"""Full ranking where the items come block by block, so that nobody holds all their vectors at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.evaluation.ranking import CPU_MEMORY, GPU_MEMORY, NOTHING, top_k

Block = tuple[int, Tensor, Tensor]  # the first item of it, vectors [n, d], bias [n]


def rank_blocks(user: Tensor, blocks: Iterable[Block], k: int, seen: csr_array) -> Tensor:
    """[users, k] int32: as `rank`. user: [users, d]; blocks: ascending; seen: [users, items] what is left out.

    Where a score is NaN, so is what the user's list begins with, and the list means nothing.
    """
    values = user.new_full((len(user), k), -torch.inf)
    items = torch.full((len(user), k), NOTHING, device=user.device)
    memory = CPU_MEMORY if user.device.type == "cpu" else GPU_MEMORY
    for first, item, bias in blocks:
        used = seen[:, first : first + len(item)]
        size = max(1, memory // (item.element_size() * len(item)))
        for begin in range(0, len(user), size):
            rows = slice(begin, begin + size)
            scores = torch.addmm(bias, user[rows], item.T)
            scores.view(-1).index_fill_(0, _cells(used, rows).to(user.device), -torch.inf)
            best, columns = top_k(scores, min(k, len(item)))
            both, which = torch.cat([values[rows], best], 1), torch.cat([items[rows], columns + first], 1)
            values[rows], at = top_k(both, k)  # of equals the earlier block's, which is the lower item
            items[rows] = which.gather(1, at)
    return items.masked_fill(values == -torch.inf, NOTHING).to(torch.int32)


def _cells(used: csr_array, rows: slice) -> Tensor:
    """The cells of these users' items in their own [users, items] table, flattened."""
    part = used[rows]
    return torch.from_numpy(np.repeat(np.arange(part.shape[0]) * part.shape[1], np.diff(part.indptr)) + part.indices)
