"""What a run should recommend, by sorting and adding in Python loops over the rankings that training made."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from math import exp
from statistics import pstdev
from typing import Any

import polars as pl
import torch
from small_run import SMALL

from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.evaluation.scorers import Factors
from concf.models import choose_settings
from concf.reference.train import train_reference
from concf.reference.trainer import Parts, Trainer
from concf.runs.run import Run

LOG = Simulation(users=40, items=30, events=900, tastes=4).draw(1)
NON_VOTING = "cml"
LIVELY = (
    *SMALL,
    "training.metric=ndcg@10",
    "model.initial_std=0.5",
    f'consensus.non_voting=["{NON_VOTING}"]',
)  # whole rankings
CONSENSUSES = ("consensus", "R-consensus")
STEPS = 2**40
Listed = list[tuple[Any, float]]  # items and scores, best first


@dataclass
class Trained:
    """A run, and what its consensuses were made of, taken down while it ran, by epoch.

    voted, window: of heads, of users, of item ids in order; vectors: head -> (user, item, bias)
    """

    run: Run
    viewed: dict[Any, set[Any]]
    voted: dict[int, list[list[list[Any]]]]
    window: dict[int, list[list[list[list[Any]]]]]
    vectors: dict[int, dict[str, Factors]]

    def __post_init__(self) -> None:
        ids = self.run.data.interactions
        self.users, self.items = ids.user_ids.values.tolist(), ids.item_ids.values.tolist()
        self.heads = self.run.heads
        self.voters = [name for name in self.heads if name not in self.run.settings.consensus.non_voting]

    def votes(self, user: Any, item: Any, by: str = "consensus") -> dict[str, tuple[int, float, float]]:
        """Voter -> the rank of the item from 0, R and C (Eq. 10, 11); for those that name it in their first K."""
        chosen, epoch, place = self.run.settings.consensus, self.run.best[by].epoch, self.users.index(user)
        found = {}
        for name in self.voters:
            head = self.heads.index(name)
            mine = self.voted[epoch][head][place][: chosen.top_k]
            if item in mine:
                past = [ranking[head][place] for ranking in self.window[epoch]]
                ranks = [listed.index(item) if item in listed else chosen.kept for listed in past]
                consistent = exp(-pstdev(ranks) / chosen.consistency_temperature) if by == "consensus" else 0.0
                found[name] = mine.index(item), exp(-mine.index(item) / chosen.temperature), consistent
        return found

    def importance(self, user: Any, item: Any, by: str = "consensus") -> float:
        """Eq. 12."""
        return sum(each[1] + each[2] for each in self.votes(user, item, by).values()) / len(self.voters)

    def kept(self, user: Any, by: str = "consensus") -> list[Any]:
        """The list that the run kept."""
        lists = self.run.best[by].lists
        assert lists is not None
        return [self.items[place] for place in lists[self.users.index(user)].tolist() if place >= 0]

    def learned(self, user: Any, item: Any) -> bool:
        return bool(self.run.data.train[self.users.index(user), self.items.index(item)])

    def score(self, factors: Factors, user: Any, item: Any) -> float:
        u, i = self.users.index(user), self.items.index(item)
        product = sum(x * y for x, y in zip(factors.user[u].tolist(), factors.item[i].tolist(), strict=True))
        return product + (0.0 if factors.bias is None else float(factors.bias[i]))

    def expected(
        self, user: Any, k: int, by: str, allow: Any = None, deny: Any = (), filter_viewed: bool = True
    ) -> Listed:
        """What `recommend` should give, slowly."""
        hidden = set(deny) | (self.viewed[user] if filter_viewed else set())
        may = [item for item in self.items if item not in hidden and (allow is None or item in allow)]
        if by not in CONSENSUSES:
            factors = self.run.recommender(by)
            assert isinstance(factors, Factors)
            scores = {item: self.score(factors, user, item) for item in may}
            return [(item, scores[item]) for item in sorted(may, key=lambda item: (-scores[item], item))][:k]
        if allow is None and filter_viewed:
            return [(item, self.importance(user, item, by)) for item in self.kept(user, by) if item in may][:k]
        orders, first = [], len(may) if allow is not None else max(self.run.settings.consensus.top_k or len(may), k)
        for name in self.voters:
            factors = self.vectors[self.run.best["consensus"].epoch][name]
            scores = {item: self.score(factors, user, item) for item in may}
            orders.append(sorted(may, key=lambda item, scores=scores: (-scores[item], item))[:first])
        return agreed(orders, self.run.settings.consensus.temperature)[:k]


def agreed(orders: list[list[Any]], temperature: float) -> Listed:
    """R-consensus of the orders: by the mean of exp(-rank / T), then the best rank, then the item."""
    total: dict[Any, int] = {}
    best: dict[Any, int] = {}
    for order in orders:
        for rank, item in enumerate(order):
            total[item] = total.get(item, 0) + round(exp(-rank / temperature) * STEPS)
            best[item] = min(rank, best.get(item, rank))
    order = sorted(total, key=lambda item: (-total[item], best[item], item))
    return [(item, total[item] / STEPS / len(orders)) for item in order]


def trained(log: pl.DataFrame, *words: str) -> Trained:
    data = prepare(log, protocol="random")
    names = data.interactions.item_ids.values
    viewed: dict[Any, set[Any]] = {}
    for user, item in log.iter_rows():
        viewed.setdefault(user, set()).add(item)
    voted: dict[int, Any] = {}
    window: dict[int, Any] = {}
    vectors: dict[int, Any] = {}

    def lists(tensor: torch.Tensor) -> list[list[list[Any]]]:
        return [[names[row[row >= 0]].tolist() for row in head] for head in tensor.numpy()]

    def take_down(epoch: int, trainer: Trainer, _lists: dict[str, torch.Tensor]) -> None:
        vectors[epoch] = copy.deepcopy(trainer.model.factors())
        if trainer.consensus.queue:
            voted[epoch], window[epoch] = (
                lists(trainer.consensus.queue[-1]),
                [lists(each) for each in trainer.consensus.window],
            )

    run = train_reference(
        data, choose_settings("reference", words=(*LIVELY, *words)), parts=Parts(watch_rankings=take_down)
    )
    return Trained(run, viewed, voted, window, vectors)


@cache
def numbered() -> Trained:
    """A run on integer ids that are no positions: from below 0, the items' in the opposite order."""
    torch.set_num_threads(1)
    return trained(LOG.select(user=pl.col("user_id") * 7 - 100, item=500 - pl.col("item_id") * 3))
