"""One user seen by every head: the history, each head's list, the consensus, and the votes that made it."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from concf.consensus.consensus import rank_importance
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.inference.lookup import kind_in_words
from concf.inference.ranker import Short
from concf.inference.votes import Vote, Votes
from concf.model.scorers import Factors
from concf.runtime.provenance import VERSION
from concf.service.answers import NEW_USER
from concf.service.explorer.schemas import Facts, ItemList, ListedItem, UsedItem, View
from concf.service.explorer.search import Search
from concf.service.limits import Limits
from concf.service.loading import Served
from concf.service.schemas import Id

Indices = NDArray[np.int64]
NO_VOTES = "this run has no stored votes of its consensus; train it again with this version to see them"
CACHE = "explorer"


class Explorer:
    """What the explorer page asks about one loaded run."""

    def __init__(self, served: Served) -> None:
        self.served, self.recommender = served, served.recommender
        self.ranker, self.run = self.recommender.ranker, self.recommender.run
        self.settings = self.run.settings.consensus
        self.has_consensus = CONSENSUS in self.ranker.names

    @classmethod
    def of(cls, served: Served) -> Explorer:
        """The explorer of a run, made once."""
        return cast(Explorer, served.cache.setdefault(CACHE, cls(served)))

    @cached_property
    def users(self) -> Search:
        """Users by id, with how many items each has used."""
        return Search(self.recommender.user_ids, np.diff(self.recommender.viewed.indptr))

    @cached_property
    def items(self) -> Search:
        """Items by id and title, with how many users each has."""
        titles = [self.served.titles.get(item) for item in self.recommender.item_ids.values.tolist()]
        uses = np.bincount(self.recommender.viewed.indices, minlength=self.ranker.n_items)
        return Search(self.recommender.item_ids, uses, titles)

    def facts(self, limits: Limits) -> Facts:
        """The run in a few figures."""
        run, log, settings, heads = self.run, self.run.data.interactions, self.settings, self.ranker.heads
        fixed = list(self.run.settings.fixed_voters) if self.has_consensus else []
        return {
            "name": self.served.name,
            "users": log.n_users,
            "items": log.n_items,
            "interactions": len(log),
            "user_ids": kind_in_words(log.user_ids),
            "item_ids": kind_in_words(log.item_ids),
            "titles": bool(self.served.titles),
            "heads": heads,
            "objectives": {name: run.objective(name) or name for name in heads},
            "fixed_voters": fixed,
            "voters": [name for name in (*heads, *fixed) if name not in settings.non_voting and self.has_consensus],
            "best_head": run.best_head(),
            "default": self.recommender.default,
            "has_consensus": self.has_consensus,
            "top_k": settings.top_k,
            "temperature": settings.temperature,
            "consistency_temperature": settings.consistency_temperature,
            "metric": run.metric,
            "validation": {name: run.best[name].validation for name in run.rows()},
            "limits": {"k": limits.k, "history": limits.history},
            "version": VERSION,
        }

    def of_user(self, user: int, k: int, held_out: bool = False) -> View:
        """The view of a user of the log. held_out: whether held-out items may be listed, to see which head finds them

        The lists are those of `Recommender.recommend`; the votes those of `Recommender.explain`.
        """
        trained: Indices = self.run.log[[user]].indices
        used: Indices = self.recommender.viewed[[user]].indices
        unseen = set(used.tolist()) - set(trained.tolist())
        hidden = [trained if held_out else used]

        def short(by: str, length: int) -> Short:
            return self.ranker.short(np.array([user]), [length], by, hidden)[0]

        lists = {name: short(name, k) for name in self.ranker.heads}
        agreed, votes, note = None, {}, None
        if self.has_consensus:
            agreed = short(CONSENSUS, min(k, self.settings.shown))
            stored = self.ranker.votes(CONSENSUS)
            note = NO_VOTES if stored is None else None
            votes = {} if stored is None else self._votes(stored, user, trained, _all_items(*lists.values(), agreed))
        user_id: Id = self.recommender.user_ids.values[[user]].tolist()[0]
        return self._view(user_id, note, self._newest_first(user), lists, CONSENSUS, agreed, votes, unseen)

    def of_history(self, history: NDArray[np.int64], k: int) -> View:
        """The view of someone who has used the items at these indices; the consensus is by rank alone."""
        used = np.unique(history)
        lists = {name: self.ranker.of_histories([used], k, name, [used])[0] for name in self.ranker.heads}
        agreed, votes, note = None, {}, None
        if self.has_consensus:
            agreed, note = self.ranker.of_histories([used], k, CONSENSUS, [used])[0], NEW_USER
            votes = self._folded_votes(used, _all_items(*lists.values(), agreed), k)
        return self._view(None, note, list(dict.fromkeys(history.tolist())), lists, R_CONSENSUS, agreed, votes)

    def _view(
        self, user: Id | None, note: str | None, history: list[int], lists: dict[str, Short], by: str,
        agreed: Short | None, votes: dict[int, list[Vote]], held_out: Container[int] = (),
    ) -> View:  # fmt: skip
        """From indices to ids. Each item's votes are given once: in the consensus, or among the other items."""
        consensus: ItemList | None = None
        if agreed is not None:
            consensus = {"by": by, "items": self._listed(agreed, held_out, votes)}
        return {
            "user": user,
            "note": note,
            "unknown_items": [],
            "history": [self._item(index, held_out) for index in history],
            "lists": [{"by": name, "items": self._listed(short, held_out)} for name, short in lists.items()],
            "consensus": consensus,
            "other_items": [{"item": self._id(index), "votes": cast_votes} for index, cast_votes in votes.items()],
        }

    def _listed(
        self, short: Short, held_out: Container[int], votes: dict[int, list[Vote]] | None = None
    ) -> list[ListedItem]:
        """The items of a list; votes: of some of them, which are taken out."""
        items: list[ListedItem] = []
        for rank, (index, score) in enumerate(zip(short[0].tolist(), short[1].tolist(), strict=True), 1):
            used = self._item(index, held_out)
            item, title, held = used["item"], used["title"], used["held_out"]
            items.append({"item": item, "title": title, "held_out": held, "rank": rank, "score": score})
            if votes is not None:
                items[-1]["votes"] = votes.pop(index, [])
        return items

    def _item(self, index: int, held_out: Container[int]) -> UsedItem:
        item = self._id(index)
        return {"item": item, "title": self.served.titles.get(item), "held_out": index in held_out}

    def _id(self, index: int) -> Id:
        item: Id = self.recommender.item_ids.values[[index]].tolist()[0]
        return item

    def _newest_first(self, user: int) -> list[int]:
        """The items that a user has used: newest first where the log has times, else in the order of ids."""
        log, rows = self.run.data.interactions, self.recommender.viewed
        pairs = slice(rows.indptr[user], rows.indptr[user + 1])  # sorted by user, then item
        items = log.item[pairs]
        if log.timestamp is not None:
            items = items[np.argsort(-log.timestamp[pairs], kind="stable")]
        return list(items.tolist())

    def _votes(self, stored: Votes, user: int, trained: Indices, items: list[int]) -> dict[int, list[Vote]]:
        """The votes for items, as `Recommender.explain` has them."""
        voters = self.ranker.voters.items()
        ranks = {name: _ranks(factors, factors.user[[user]], trained) for name, factors in voters}
        votes: dict[int, list[Vote]] = {}
        for item in items:
            votes[item] = stored.cast(user, item)
            for vote in votes[item]:
                if vote["rank"] is None and vote["head"] in ranks:  # outside its first K
                    vote["rank"] = int(ranks[vote["head"]][item]) + 1
        return votes

    def _folded_votes(self, used: Indices, items: list[int], k: int) -> dict[int, list[Vote]]:
        """The votes by R alone, of each voter for its first K, or k if that is more (see `Ranker.of_histories`)."""
        row = csr_array((np.ones(len(used), np.float32), used, np.array([0, len(used)])), (1, self.ranker.n_items))
        voting, votes = max(self.settings.top_k or self.ranker.n_items, k), {item: list[Vote]() for item in items}
        for weight, (name, factors) in zip(self.ranker.voter_weights, self.ranker.voters.items(), strict=True):
            vector = torch.from_numpy(self.ranker._folding((CONSENSUS, name), factors).vectors(row))
            ranks = _ranks(factors, vector, used)[items]
            importance = rank_importance(torch.from_numpy(ranks).double(), self.settings.temperature).tolist()
            for item, rank, value in zip(items, ranks.tolist(), importance, strict=True):
                r = value if rank < voting else 0.0
                votes[item].append(
                    {"head": name, "rank": rank + 1, "R": r, "C": 0.0, "vote": weight * r, "score": None}
                )
        return votes


def _ranks(factors: Factors, user: Tensor, hidden: Indices) -> NDArray[np.int64]:
    """[items] the rank of each, from 0, for a user vector [1, d]; ties by index, hidden items last."""
    scores = Factors(user, factors.item, factors.bias).scores(torch.tensor([0]))[0].numpy()
    scores[hidden] = -np.inf
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return ranks


def _all_items(*lists: Short) -> list[int]:
    """The indices of the items in any of the lists."""
    return sorted({index for items, _ in lists for index in items.tolist()})
