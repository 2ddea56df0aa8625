"""Voters: what each of them ranks first for every user, and what else the re-ranker may know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import torch
from scipy.sparse import csr_array
from torch import Tensor

from concf.evaluation.metrics import flat_cells
from concf.evaluation.ranking import rank, top_k
from concf.model.scorers import Factors, Scorer

CPU_CELLS, GPU_CELLS = 1 << 22, 1 << 26  # scores that are held at a time
LISTED_FEATURES = 3  # item z-score, relative score, score
LEAST_GAP, LEAST_STD = 0.05, 1e-3  # see features.py, whose figures these are
Z_SCORE, RELATIVE_SCORE = (-20.0, 20.0), (-2.0, 3.0)


@dataclass(frozen=True)
class Voter:
    """One who votes, for n users.

    lists:   [n, K] int32 the best items that each user has not used, -1 where there are fewer
    factors: its vectors, if it has some
    listed:  [n, K, 3] of one without vectors: the item z-score, the relative score and the score of what it lists
             (see features.py), divided by the standard deviation of all its scores
    """

    name: str
    lists: Tensor
    factors: Factors | None = None
    listed: Tensor | None = None


def by_factors(name: str, factors: Factors, train: csr_array, users: Tensor, k: int) -> Voter:
    """A voter that ranks by inner products. train: [users, items] what is left out of the lists of users [n]."""
    lists = rank(factors, users.cpu().numpy(), k, seen=train, device=users.device)
    return Voter(name, torch.from_numpy(lists).to(users.device), factors)


def by_scores(name: str, scorer: Scorer, train: csr_array, users: Tensor, k: int) -> Voter:
    """A voter without vectors: every score is looked at once, in blocks of users, and the first k are kept."""
    device, n_users, n_items = users.device, len(users), train.shape[1]
    size = max(1, (CPU_CELLS if device.type == "cpu" else GPU_CELLS) // n_items)
    total, square, own, count = (torch.zeros(n_items, dtype=torch.float64, device=device) for _ in range(4))
    lists, scores = [], []
    for mine in torch.split(users, size):
        block = scorer.scores(mine).to(device)
        total += block.sum(0)
        square += block.square().sum(0)
        used = train[mine.cpu().numpy()]
        cells = torch.from_numpy(flat_cells(used)).to(device)
        item = cells % n_items
        own.index_add_(0, item, block.view(-1)[cells].double())
        count += torch.bincount(item, minlength=n_items)
        block.view(-1).index_fill_(0, cells, -torch.inf)
        values, items = top_k(block, min(k, n_items))
        lists.append(items.masked_fill_(values == -torch.inf, -1).to(torch.int32))
        scores.append(values)
    listed, values = torch.cat(lists), torch.cat(scores)
    mean = total / n_users
    variance = (square / n_users - mean.square()).clamp(min=0)
    unit = (variance.mean() + mean.var(correction=0)).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    gap = ((own / count.clamp(min=1)).where(count > 0, mean) - mean) / unit
    std, gap = (variance.sqrt() / unit).clamp(min=LEAST_STD), gap.clamp(min=LEAST_GAP)
    at = listed.long().clamp(min=0)
    score = (values / unit.to(values)).masked_fill(listed < 0, 0.0)
    above = score - (mean / unit).to(values)[at]
    figures = [(above / std.to(values)[at]).clamp(*Z_SCORE), (above / gap.to(values)[at]).clamp(*RELATIVE_SCORE), score]
    return Voter(name, listed, None, torch.stack(figures, -1).masked_fill_((listed < 0)[..., None], 0.0))


def voter_weights(validation: Sequence[float], temperature: float) -> list[float]:
    """exp(-(1 - v / the best v) / temperature) of each voter, v its validation figure."""
    best = max(validation)
    return [exp((value / best - 1) / temperature) if best else 1.0 for value in validation]
