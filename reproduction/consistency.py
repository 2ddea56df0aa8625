"""How consistently a model ranks right and wrong predictions (Eq. 11), by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import NOTHING, consistency, ranks_over_time
from concf.errors import ConfigError
from concf.evaluation.metrics import hits

RANKED_CELLS = 1 << 22  # of the tables [users, items] and [times, users, M] that are held at a time


def consistency_by_rank(
    newest: Tensor, window: Sequence[Tensor], test: csr_array, valid: csr_array, users: NDArray[np.int64], *,
    depth: int = 100, bins: int = 10, temperature: float = 10.0,
) -> dict[str, list[float | None]]:  # fmt: skip
    """The mean consistency C (Eq. 11) in equal bins of ranks: "correct" for test interactions, "incorrect" for others.

    The mean of a bin is over all its cells (user, rank) of that kind, each counting once; None if there are none.
    It is the paper's mean over users, then over the ranks of the bin, where every rank has as many cells of the kind;
    where they differ, as the correct ones do, a rank weighs as much as it has cells.
    newest: [users, M] the ranking of one head without training items, -1 where it is shorter
    window: of [users, M], the rankings over which consistency is measured, the newest among them
    test, valid: [users, items]; validation items are in the rankings and are of neither kind
    users: [e] those who are evaluated; the others do not count
    """
    if bins < 1 or depth < bins or depth % bins:
        raise ConfigError(f"{depth} ranks cannot be cut into {bins} equal bins; choose a divisor of {depth}")
    if not window:
        raise ConfigError("consistency is a deviation over time and needs rankings; the window has none")
    n_items = test.shape[1]
    size = max(1, RANKED_CELLS // max(n_items + 1, len(window) * window[0].shape[1]))
    total, count = np.zeros((2, bins)), np.zeros((2, bins))
    for begin in range(0, len(users), size):
        block = users[begin : begin + size]
        rows = torch.as_tensor(block, device=newest.device)
        top = newest[rows, :depth].long()
        ranks = ranks_over_time(top, [ranking[rows] for ranking in window], n_items)
        values, items = consistency(ranks, temperature).cpu().numpy(), top.cpu().numpy()
        correct = hits(items, test[block])
        incorrect = (items != NOTHING) & ~correct & ~hits(items, valid[block])
        for kind, of_kind in enumerate((correct, incorrect)):
            at = np.nonzero(of_kind)[1] // (depth // bins)
            total[kind] += np.bincount(at, values[of_kind], minlength=bins)
            count[kind] += np.bincount(at, minlength=bins)
    totals, counts = total.tolist(), count.tolist()
    means = [[of / n if n else None for of, n in zip(*kind, strict=True)] for kind in zip(totals, counts, strict=True)]
    return {"correct": means[0], "incorrect": means[1]}
