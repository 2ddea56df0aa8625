"""A small log with two voters that have vectors and one that has none, their re-ranker, and its literal twin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from literal_reranker import LiteralCost, LiteralReranker, LiteralVoter
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus import reranker
from concf.consensus.reranker import Reranker
from concf.consensus.voters import Voter, by_factors, by_scores
from concf.model.scorers import Factors

USERS, ITEMS, SIZE, TOP_K, TEMPERATURE = 31, 13, 4, 6, 4.0
VOTED = {"top_k": TOP_K, "temperature": TEMPERATURE}
EVERYONE = tuple(range(USERS))
NEW, LAST_ITEM, DONE = 4, 7, 9  # users who have used nothing, all but one item, and everything
WEIGHTS = (1.0, 0.6, 0.25)


class Table(NamedTuple):
    """A scorer without vectors. table: [users, items]."""

    table: Tensor

    def scores(self, users: Tensor) -> Tensor:
        return self.table[users]


class Case(NamedTuple):
    """A log, two voters with vectors and one without, and what users hold out: [users, items]."""

    train: csr_array
    heads: tuple[Factors, Factors]
    table: Tensor
    held_out: Tensor


@cache
def case() -> Case:
    """Voters that know something of what is held out; item 3 was used by nobody."""
    random = np.random.default_rng(2)
    draw = torch.Generator().manual_seed(2)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    user, item, bias = drawn(USERS, SIZE), drawn(ITEMS, SIZE), drawn(ITEMS)
    liked = user @ item.T + drawn(USERS, ITEMS)
    used = random.random((USERS, ITEMS)) < 0.3
    used[NEW], used[:, 3] = False, False
    used[LAST_ITEM] = used[DONE] = True
    used[LAST_ITEM, 3] = False
    held_out = (liked > liked.quantile(0.75)) & ~torch.from_numpy(used)
    heads = Factors(user, item, bias), Factors(user + drawn(USERS, SIZE), item)
    return Case(csr_array(used.astype(np.float32)), heads, liked + 2 * drawn(USERS, ITEMS), held_out)


def voters_of(users: Sequence[int], k: int = TOP_K, dtype: torch.dtype = torch.float64) -> list[Voter]:
    rows, train = torch.tensor(users), case().train
    heads = [Factors(*(None if part is None else part.to(dtype) for part in (each.user, each.item, each.bias)))
             for each in case().heads]  # fmt: skip
    listed = by_scores("table", Table(case().table.to(dtype)), train, rows, k)
    return [by_factors("one", heads[0], train, rows, k), listed, by_factors("two", heads[1], train, rows, k)]


def reranker_of(
    users: Sequence[int] = EVERYONE, length: int = ITEMS, dtype: torch.dtype = torch.float64, k: int = TOP_K
) -> Reranker:
    found = voters_of(users, k, dtype)
    return Reranker(case().train, torch.tensor(users), found, WEIGHTS, length=length, **VOTED)


@cache
def literal(users: tuple[int, ...] = EVERYONE) -> LiteralReranker:
    everyone, (one, two) = torch.arange(USERS), case().heads
    three = [
        LiteralVoter(one.scores(everyone), one.item),
        LiteralVoter(case().table),
        LiteralVoter(two.scores(everyone), two.item),
    ]
    return LiteralReranker(used(), users, three, WEIGHTS, length=ITEMS, **VOTED)


def used() -> Tensor:
    return torch.from_numpy(case().train.toarray() > 0)


def wanted(fast: Reranker, held_out: Tensor | None = None) -> Tensor:
    """[n, L] where the lists have what users hold out. held_out: [users, items]."""
    held_out = case().held_out if held_out is None else held_out
    lists = fast.lists[:, : reranker.TOP].long()
    return held_out[fast.users].gather(1, lists.clamp(min=0)) & (lists >= 0)


@cache
def literal_cost() -> LiteralCost:
    held_out = [{i for i in range(ITEMS) if case().held_out[u, i]} for u in EVERYONE]
    return LiteralCost(literal(), held_out)


def listed(lists: Tensor) -> list[list[int]]:
    """Without the empty places, which come last."""
    rows = lists.tolist()
    assert all(sorted(row, key=lambda item: item < 0) == row for row in rows)
    return [[item for item in row if item >= 0] for row in rows]
