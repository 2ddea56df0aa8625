"""One user seen by every head: the history, each head's list, the consensus, and the votes that made it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.consensus.consensus import rank_importance
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.inference.votes import Votes
from concf.model.scorers import Factors
from concf.runtime.provenance import VERSION
from concf.service.answers import BY_RANK
from concf.service.engine import Served
from concf.service.explorer.search import Search

Places = NDArray[np.int64]
VotesByItem = dict[int, list[dict[str, Any]]]  # by item position, of each voting head
NO_VOTES = "this run kept no votes of its consensus; train it again with this version to see them"


class Explorer:
    """What the explorer page asks of one loaded run."""

    def __init__(self, served: Served) -> None:
        self.served, self.recommender = served, served.recommender
        self.ranker, self.learned = self.recommender.ranker, self.recommender.run
        self.settings = self.learned.settings.consensus

    @cached_property
    def users(self) -> Search:
        """Users by id."""
        return Search(self.recommender.user_ids, self.used)

    @cached_property
    def items(self) -> Search:
        """Items by id and title."""
        return Search(self.recommender.item_ids, self.popularity, self._titles())

    def _titles(self) -> list[str | None]:
        """By position."""
        return [self.served.titles.get(item) for item in self.recommender.item_ids.values.tolist()]

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """[users] how many items each has used."""
        return np.asarray(np.diff(self.recommender.viewed.indptr), np.int64)

    @cached_property
    def popularity(self) -> NDArray[np.int64]:
        """[items] how many users each has."""
        return np.bincount(self.recommender.viewed.indices, minlength=self.ranker.n_items).astype(np.int64)

    @property
    def has_consensus(self) -> bool:
        """Whether there are several heads to agree."""
        return CONSENSUS in self.ranker.names

    def facts(self) -> dict[str, Any]:
        """The run in a few figures."""
        run, data = self.learned, self.learned.data.interactions
        heads = self.ranker.heads
        return {
            "name": self.served.name,
            "users": data.n_users,
            "items": data.n_items,
            "interactions": len(data),
            "user_ids": "integers" if data.user_ids.are_integers else "text",
            "item_ids": "integers" if data.item_ids.are_integers else "text",
            "titles": bool(self.served.titles),
            "heads": heads,
            "fixed_voters": list(self.settings.fixed_names) if self.has_consensus else [],
            "voters": self._voters if self.has_consensus else [],
            "best_head": run.best_head(),
            "default": self.recommender.default,
            "has_consensus": self.has_consensus,
            "places": self.settings.top_k,
            "temperature": self.settings.temperature,
            "consistency": self.settings.consistency_temperature,
            "metric": run.metric,
            "validation": {name: run.best[name].validation for name in run.rows()},
            "version": VERSION,
        }

    @property
    def _voters(self) -> list[str]:
        everyone = (*self.ranker.heads, *self.settings.fixed_names)
        return [name for name in everyone if name not in self.settings.non_voting]

    def of_user(self, place: int, k: int, held_out: bool = False) -> dict[str, Any]:
        """Of a user of the log. held_out: whether items that were held out may be listed, to see which head finds them.

        The lists are those of `Recommender.recommend`; the votes those of `Recommender.explain`.
        """
        trained: NDArray[Any] = self.learned.data.train[[place]].indices
        used: NDArray[Any] = self.recommender.viewed[[place]].indices
        unseen = set(used.tolist()) - set(trained.tolist())

        def listed(by: str, places: int) -> dict[str, Any]:
            found = self.ranker.short(np.array([place]), [places], by, [trained if held_out else used])
            return self._list(by, *found[0], unseen)

        lists = [listed(name, k) for name in self.ranker.heads]
        user = self.recommender.user_ids.values[[place]].tolist()[0]
        view = {"user": user, "note": None, "history": self._history(self._by_time(place), unseen), "lists": lists}
        if not self.has_consensus:
            return _told(view, None, {})
        agreed = listed(CONSENSUS, min(k, self.settings.shown))
        votes = self.ranker.votes(CONSENSUS)
        if votes is None:
            return _told(view | {"note": NO_VOTES}, agreed, {})
        return _told(view, agreed, self._votes(votes, place, _listed([*lists, agreed])))

    def of_history(self, history: Places, k: int) -> dict[str, Any]:
        """Of someone who has used these items; the consensus is by rank alone."""
        names = self.recommender.item_ids.values[history].tolist()
        lists = [self._folded(name, name, names, k) for name in self.ranker.heads]
        told = self._history(list(dict.fromkeys(history.tolist())))
        view = {"user": None, "note": None, "history": told, "lists": lists}
        if not self.has_consensus:
            return _told(view, None, {})
        agreed = self._folded(R_CONSENSUS, CONSENSUS, names, k)
        votes = self._folded_votes(history, _listed([*lists, agreed]), k)
        return _told(view | {"note": BY_RANK}, agreed, votes)

    def _folded(self, shown_as: str, by: str, history: list[Any], k: int) -> dict[str, Any]:
        ids, scores = self.recommender.recommend(history=history, k=k, by=by, frame="arrays")
        there = scores > -np.inf
        return self._list(shown_as, np.searchsorted(self.recommender.item_ids.values, ids[there]), scores[there])

    def _list(
        self, by: str, places: NDArray[Any], scores: NDArray[np.float32], held_out: Container[int] = ()
    ) -> dict[str, Any]:
        items = [
            self._named(place) | {"rank": rank, "score": score, "held_out": place in held_out}
            for rank, (place, score) in enumerate(zip(places.tolist(), scores.tolist(), strict=True), 1)
        ]
        return {"by": by, "items": items}

    def _named(self, place: int) -> dict[str, Any]:
        item = self.recommender.item_ids.values[[place]].tolist()[0]
        return {"place": place, "item": item, "title": self.served.titles.get(item)}

    def _history(self, places: Sequence[int], held_out: Container[int] = ()) -> list[dict[str, Any]]:
        return [self._named(place) | {"held_out": place in held_out} for place in places]

    def _by_time(self, place: int) -> list[int]:
        """What a user has used: the newest first where the log has times, else in the order of ids."""
        data, rows = self.learned.data.interactions, self.recommender.viewed
        mine = slice(rows.indptr[place], rows.indptr[place + 1])  # the pairs are sorted by user, then item
        items: NDArray[np.int32] = data.item[mine]
        if data.timestamp is not None:
            items = items[np.argsort(-data.timestamp[mine], kind="stable")]
        return list(items.tolist())

    def _votes(self, votes: Votes, place: int, items: list[int]) -> VotesByItem:
        """As `Recommender.explain` has them, for many items at once."""
        seen, columns = self.learned.data.train[[place]].indices, []
        for voter, name in enumerate(votes.names):
            named, steady = votes.items[voter, place].tolist(), votes.consistency[voter, place].tolist()
            mine = {item: (rank, c) for rank, (item, c) in enumerate(zip(named, steady, strict=True))}
            rank_of = self._ranks(name, place, seen)
            voter_weight = float(votes.voter_weights[voter])
            columns.append(
                [
                    self._vote(name, voter_weight, *(mine[item] if item in mine else (rank_of(item), None)))
                    for item in items
                ]
            )
        return dict(zip(items, map(list, zip(*columns, strict=True)), strict=True))

    def _ranks(self, name: str, place: int, seen: NDArray[Any]) -> Callable[[int], int | None]:
        """Where a head ranks an item, from 0; of a fixed voter that is not known."""
        factors = self.ranker.voters.get(name)
        if factors is None:
            return lambda item: None  # noqa: ARG005
        scores = factors.scores(torch.tensor([place]))[0].numpy()
        scores[seen] = -np.inf
        return lambda item: _rank(scores, item)

    def _folded_votes(self, history: Places, items: list[int], k: int) -> VotesByItem:
        """By R among each voter's first K places, or k if that is more (see `Ranker.of_histories`)."""
        used = np.unique(history)
        shape = (1, self.ranker.n_items)
        matrix = csr_array((np.ones(len(used), np.float32), used, np.array([0, len(used)])), shape=shape)
        kept = max(self.settings.top_k or self.ranker.n_items, k)
        columns = []
        for voter_weight, (name, factors) in zip(self.ranker.voter_weights, self.ranker.voters.items(), strict=True):
            vector = torch.from_numpy(self.ranker._folding((CONSENSUS, name), factors).vectors(matrix))
            scores = Factors(vector, factors.item, factors.bias).scores(torch.tensor([0]))[0].numpy()
            scores[used] = -np.inf
            ranks = [_rank(scores, item) for item in items]
            columns.append([self._vote(name, voter_weight, rank, 0.0 if rank < kept else None) for rank in ranks])
        return dict(zip(items, map(list, zip(*columns, strict=True)), strict=True))

    def _vote(self, head: str, voter_weight: float, rank: int | None, steady: float | None) -> dict[str, Any]:
        """rank: from 0, None if it is not known; steady: C, or None for one that does not vote for the item."""
        told = {"head": head, "rank": None if rank is None else rank + 1}
        if steady is None or rank is None:
            return told | {"R": 0.0, "C": 0.0, "vote": 0.0}
        earned = float(rank_importance(torch.tensor(rank, dtype=torch.float64), self.settings.temperature))
        return told | {"R": earned, "C": steady, "vote": voter_weight * (earned + steady)}


def _rank(scores: NDArray[np.float32], item: int) -> int:
    """From 0: how many items are ahead of one by their scores [items], ties by position."""
    own = scores[item]
    return int(np.count_nonzero(scores > own) + np.count_nonzero(scores[:item] == own))


def _listed(lists: list[dict[str, Any]]) -> list[int]:
    """The positions of what is in any of the lists."""
    return sorted({item["place"] for listed in lists for item in listed["items"]})


def _told(view: dict[str, Any], agreed: dict[str, Any] | None, votes: VotesByItem) -> dict[str, Any]:
    """The view with its consensus, and with the votes for each item once: at its place there, or among the others."""
    shown = [] if agreed is None else agreed["items"]
    for item in shown:
        item["votes"] = votes.pop(item["place"], [])
    names = {item["place"]: item["item"] for listed in view["lists"] for item in listed["items"]}
    others = [{"item": names[place], "votes": cast} for place, cast in votes.items()]
    for item in (*shown, *view["history"], *(item for listed in view["lists"] for item in listed["items"])):
        del item["place"]  # positions are the service's own; callers know ids
    return view | {"consensus": agreed, "others": others}
