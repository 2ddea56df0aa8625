"""One user seen by every head: the history, each head's list, the consensus, and the votes that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS, rank_importance
from concf.data.protocols import origin
from concf.evaluation.scorers import Factors
from concf.inference.explain import Because, about, cross_fitted
from concf.inference.lookup import kind_in_words, place_of
from concf.inference.ranker import Short
from concf.inference.rules import Rules
from concf.inference.votes import Vote, Votes, similarity_shares, speakers
from concf.runtime.provenance import VERSION
from concf.service.answers import NEW_USER, KnownItems, joined
from concf.service.explorer.schemas import (
    ExplainedItem,
    Facts,
    HistoryView,
    ItemList,
    Part,
    SimilarUsers,
    UsedItem,
    View,
)
from concf.service.explorer.search import Attributes, Search, listed
from concf.service.limits import Limits
from concf.service.loading import Served
from concf.service.schemas import Id

Indices = NDArray[np.int64]
Listed = tuple[NDArray[Any], NDArray[np.float32] | None]  # item indices, best first, and their scores, if there are any
Reasons = tuple[list[Because], list[float] | None]
PARTS: tuple[Part, ...] = ("training", "validation", "test")  # by their number in `Split.parts`
NO_VOTES = "this run has no stored votes of its consensus; train it again with this version to see them"
UNASKED = "no consensus was computed for this user (consensus_users): its list is that of the best head"
UNLEARNED = "the run has learned no interaction of this user: all lists are of popular items"
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

    def facts(self, limits: Limits, compared: str | None = None) -> Facts:
        """The run in a few figures. compared: the name of the run that it can be compared with"""
        run, log, settings, heads = self.run, self.run.data.interactions, self.settings, self.ranker.heads
        fixed = list(self.run.settings.fixed_voters) if self.has_consensus else []
        contributions = self.ranker.contributions
        return {
            "name": self.served.name,
            "users": log.n_users,
            "items": self.ranker.n_items,
            "interactions": len(log),
            "user_ids": kind_in_words(log.user_ids),
            "item_ids": kind_in_words(log.item_ids),
            "titles": bool(self.served.titles),
            "columns": self.attributes.columns,
            "heads": heads,
            "about": {name: about(run, name) for name in (*heads, *fixed)},
            "fixed_voters": fixed,
            "voters": [name for name in (*heads, *fixed) if name not in run.settings.non_voting and self.has_consensus],
            "best_head": run.best_head(),
            "why_best_head": run.why_best_head(),
            "default": self.recommender.default,
            "has_consensus": self.has_consensus,
            "reranked": [] if contributions is None else [
                {"voter": each.voter, "kind": each.kind} for each in contributions.groups
            ],
            "top_k": settings.top_k,
            "temperature": settings.temperature,
            "consistency_temperature": run.settings.consistency_temperature,
            "metric": run.metric,
            "validation": {name: run.best[name].validation for name in run.rows()},
            "cross_fitted": cross_fitted(run),
            "learned": list(PARTS[: len(run.learned)]),
            "limits": {"k": limits.k, "history": limits.history},
            "compared": compared,
            "version": VERSION,
        }  # fmt: skip

    @cached_property
    def attributes(self) -> Attributes:
        """What the catalogue says of the items."""
        return Attributes(self.served)

    def of_user(self, user: int, k: int, held_out: bool = False, where: str | None = None) -> View:
        """The view of a user of the log. held_out: whether held-out items may be listed, to see which head finds them

        where: a condition on attributes that all items in the lists fulfil
        The lists are those of `Recommender.recommend`; votes and contributions those of `Recommender.explain`.
        """
        trained: Indices = self.run.log[[user]].indices
        used: Indices = self.recommender.viewed[[user]].indices
        hidden, rules = trained if held_out else used, self.attributes.rules(where)

        def short(by: str, length: int) -> Short:
            def draw(at: Indices, n: int, closed: Sequence[Indices], among: Indices | None) -> list[Short]:
                anew, same = among is not None, np.full(len(at), user)
                return self.ranker.short(same, [n] * len(at), by, closed, anew=anew, among=among)

            return listed(rules, draw, length, hidden, 0 if by in self.ranker.heads else self.settings.shown)

        lists: dict[str, Listed] = {name: short(name, k) for name in self.ranker.heads}
        agreed, stored, note = None, None, None
        if self.has_consensus:
            agreed = short(CONSENSUS, min(k, self.settings.shown))
            stored = self.ranker.votes(CONSENSUS)
            note = NO_VOTES if stored is None else None if self.ranker.was_asked_for(user) else UNASKED
        if stored is not None:
            lists |= self._of_fixed_voters(stored, user, k, hidden, rules)
        items = _all_items(agreed, *lists.values())
        votes = {} if stored is None else self._votes(stored, user, self.ranker.voters, trained, items)
        reasons = self._reasons(trained, items, None if self.ranker.contributions is None else user)
        user_id: Id = self.recommender.user_ids.values[[user]].tolist()[0]
        if self.run.unlearned[user]:
            note = UNLEARNED
        parts = self._parts(user)
        history = [self._used(index, parts) for index in self._newest_first(user)]
        explained = [self._explained(index, parts, votes, reasons) for index in items]
        return self._view(user_id, note, history, lists, CONSENSUS, agreed, explained)

    def of_history(self, history: NDArray[np.int64], k: int, where: str | None = None) -> View:
        """The view of someone who has used the items at these indices.

        Without a re-ranker the consensus is by rank alone, since there are no rankings over time.
        """
        used, rules, reranks = np.unique(history), self.attributes.rules(where), self.ranker.reranks
        rows = self.ranker.rows_of([used])

        def short(by: str, length: int) -> Short:
            def draw(at: Indices, n: int, closed: Sequence[Indices], among: Indices | None) -> list[Short]:
                return self.ranker.of_histories([used] * len(at), n, by, closed, among)

            kept = self.settings.shown if reranks else self.settings.top_k or self.ranker.n_items
            return listed(rules, draw, length, used, 0 if by in self.ranker.heads else kept)

        lists: dict[str, Listed] = {name: short(name, k) for name in self.ranker.heads}
        agreed, votes, note = None, {}, None
        if self.has_consensus:
            agreed = short(CONSENSUS, min(k, self.settings.shown) if reranks else k)
            note = None if reranks else NEW_USER
        stored = self.ranker.folded_votes(rows, CONSENSUS)[1] if reranks else None
        if stored is not None:
            lists |= self._of_fixed_voters(stored, 0, k, used, rules)
        items = _all_items(agreed, *lists.values())
        if self.has_consensus:
            folded = self.ranker.folded_voters(rows)
            votes = (
                self._votes(stored, 0, folded, used, items) if stored else self._folded_votes(folded, used, items, k)
            )
        reasons = self._reasons(used, items)
        given = [self._used(index, {}) for index in dict.fromkeys(history.tolist())]
        explained = [self._explained(index, {}, votes, reasons) for index in items]
        return self._view(None, note, given, lists, CONSENSUS if reranks else R_CONSENSUS, agreed, explained)

    def of_ids(self, request: HistoryView) -> View:
        """The view of a history of ids."""
        known = KnownItems(self.served, request.unknown_items)
        items = known.of(request.history, "body.history")
        indices = [self.served.item_index(item, "body.history") for item in items]
        view = self.of_history(np.array(indices, np.int64), request.k, request.where)
        view["note"], view["unknown_items"] = joined([view["note"], known.note()]), known.report()
        return view

    def similar_users(self, text: str, k: int) -> SimilarUsers:
        """The users nearest to the one that a text spells, by the vectors of the best head."""
        user, head = self.served.user(text), self.run.best_head()
        self.served.user_index(user, "path.user")
        ids, scores = self.recommender.similar_users(user, k, head=head, frame="arrays")
        uses = self.users.popularity[[place_of(self.recommender.user_ids, each) for each in ids.tolist()]]
        rows = zip(ids.tolist(), scores.tolist(), uses.tolist(), strict=True)
        return {
            "user": user, "head": head,
            "users": [{"user": other, "score": score, "uses": n} for other, score, n in rows if np.isfinite(score)],
        }  # fmt: skip

    def _view(
        self, user: Id | None, note: str | None, history: list[UsedItem], lists: dict[str, Listed], by: str,
        agreed: Listed | None, items: list[ExplainedItem],
    ) -> View:  # fmt: skip
        return {
            "user": user,
            "note": note,
            "unknown_items": [],
            "history": history,
            "lists": [self._listed(name, listed) for name, listed in lists.items()],
            "consensus": None if agreed is None else self._listed(by, agreed),
            "items": items,
        }

    def _listed(self, by: str, listed: Listed) -> ItemList:
        indices, scores = listed
        ids = self.recommender.item_ids.values[indices].tolist()
        values = [None] * len(ids) if scores is None else scores.tolist()
        rows = enumerate(zip(ids, values, strict=True), 1)
        return {"by": by, "items": [{"item": item, "rank": rank, "score": score} for rank, (item, score) in rows]}

    def _used(self, index: int, parts: Mapping[int, Part]) -> UsedItem:
        item = self._id(index)
        return {"item": item, "title": self.served.titles.get(item), "part": parts.get(index)}

    def _explained(
        self, index: int, parts: Mapping[int, Part], votes: Mapping[int, list[Vote]], reasons: Mapping[int, Reasons]
    ) -> ExplainedItem:
        used, (because, terms) = self._used(index, parts), reasons[index]
        return {
            "item": used["item"], "title": used["title"], "part": used["part"], "votes": votes.get(index, []),
            "because": because, "contributions": terms, "attributes": self.attributes.of(index),
            "picture": self.attributes.picture(index),
        }  # fmt: skip

    def _id(self, index: int) -> Id:
        item: Id = self.recommender.item_ids.values[[index]].tolist()[0]
        return item

    def _parts(self, user: int) -> dict[int, Part]:
        """Item -> the part of the log that has it for this user."""
        data, rows = self.run.data, self.recommender.viewed
        pairs = slice(rows.indptr[user], rows.indptr[user + 1])  # sorted by user, then item
        codes = zip(data.interactions.item[pairs].tolist(), origin(data.parts[pairs]).tolist(), strict=True)
        return {item: PARTS[code] for item, code in codes}

    def _newest_first(self, user: int) -> list[int]:
        """The items that a user has used: newest first where the log has times, else in the order of ids."""
        log, rows = self.run.data.interactions, self.recommender.viewed
        pairs = slice(rows.indptr[user], rows.indptr[user + 1])  # sorted by user, then item
        items = log.item[pairs]
        if log.timestamp is not None:
            items = items[np.argsort(-log.timestamp[pairs], kind="stable")]
        return list(items.tolist())

    def _of_fixed_voters(
        self, stored: Votes, user: int, k: int, hidden: Indices, rules: Rules | None
    ) -> dict[str, Listed]:
        """The first items of each fixed voter, as it voted; it has no vectors to rank anew with, and no scores."""
        lists: dict[str, Listed] = {}
        open_ = np.ones(self.ranker.n_items, bool) if rules is None or rules.shown is None else rules.shown.copy()
        open_[hidden] = False
        for voter, name in enumerate(stored.names):
            if name in self.run.settings.fixed_voters:
                items = stored.items[voter, user].astype(np.int64)
                lists[name] = items[(items >= 0) & open_[items]][:k], None
        return lists

    def _reasons(self, used: Indices, items: list[int], user: int | None = None) -> dict[int, Reasons]:
        """Item -> the items of the history that speak for it, and the contributions. user: whose list is re-ranked"""
        voters = self.ranker.voters.values() if self.has_consensus else [self.ranker.factors(self.ranker.heads[0])]
        places = speakers(similarity_shares(voters, used, np.array(items, np.int64)))
        contributions = self.ranker.contributions
        terms = {} if user is None or contributions is None else contributions.of_user(user)
        return {
            item: (
                [{"item": self._id(used[place]), "share": share} for place, share in mine],
                terms[item].tolist() if item in terms else None,
            )
            for item, mine in zip(items, places, strict=True)
        }

    def _votes(
        self, stored: Votes, user: int, voters: Mapping[str, Factors], trained: Indices, items: list[int]
    ) -> dict[int, list[Vote]]:
        """The votes for items, as `Recommender.explain` has them. user: its row in the votes and the voters' vectors"""
        ranks = {name: _ranks(factors, user, trained) for name, factors in voters.items()}
        votes: dict[int, list[Vote]] = {}
        for item in items:
            votes[item] = stored.cast(user, item)
            for vote in votes[item]:
                if vote["rank"] is None and vote["head"] in ranks:  # outside its first K
                    vote["rank"] = int(ranks[vote["head"]][item]) + 1
        return votes

    def _folded_votes(
        self, voters: Mapping[str, Factors], used: Indices, items: list[int], k: int
    ) -> dict[int, list[Vote]]:
        """The votes by R alone, of each voter for its first K, or k if that is more (see `Ranker.of_histories`)."""
        voting, votes = max(self.settings.top_k or self.ranker.n_items, k), {item: list[Vote]() for item in items}
        for weight, (name, factors) in zip(self.ranker.voter_weights, voters.items(), strict=True):
            ranks = _ranks(factors, 0, used)[items]
            importance = rank_importance(torch.from_numpy(ranks).double(), self.settings.temperature).tolist()
            for item, rank, value in zip(items, ranks.tolist(), importance, strict=True):
                r = value if rank < voting else 0.0
                votes[item].append(
                    {"head": name, "rank": rank + 1, "R": r, "C": 0.0, "vote": weight * r, "score": None}
                )
        return votes


def _ranks(factors: Factors, user: int, hidden: Indices) -> NDArray[np.int64]:
    """[items] the rank of each, from 0, for a user; ties by index, hidden items last."""
    scores = factors.scores(torch.tensor([user]))[0].numpy()
    scores[hidden] = -np.inf
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return ranks


def _all_items(*lists: Listed | None) -> list[int]:
    """The indices of the items in any of the lists."""
    return sorted({index for each in lists if each is not None for index in each[0].tolist()})
