"""One user as every head sees them: history, lists, consensus, and the votes for each item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from concf.consensus.consensus import CONSENSUS, R_CONSENSUS, rank_importance
from concf.data.parts import origin
from concf.errors import ConfigError
from concf.evaluation.scorers import Factors
from concf.inference.explain import Because, Vote, Votes, about, cross_fitted, similarity_shares, speakers
from concf.inference.lookup import ItemLookup, Short, kind_in_words, position_of
from concf.inference.rules import AppliedRules
from concf.runtime.provenance import VERSION
from concf.service.answers import NEW_USER, KnownItems, joined
from concf.service.explorer.schemas import Facts, HistoryView, ItemList, Part, SimilarUsers, UsedItem, View
from concf.service.explorer.search import Attributes, Search
from concf.service.loading import Served
from concf.service.problems import Problem
from concf.service.schemas import Id
from concf.service.standing import Mask

Indices = NDArray[np.int64]
Listed = tuple[NDArray[Any], NDArray[np.float32] | None]  # item indices, best first, and their scores, if there are any
Reasons = tuple[list[Because], list[float] | None]
PARTS: tuple[Part, ...] = ("training", "validation", "test")  # by their number in `Split.parts`
NO_VOTES = "this run has no stored votes of its consensus; train it again with this version to see them"
NO_CONSENSUS = "no consensus was computed for this user (consensus_users): its list is that of the best head"
UNLEARNED = "the run has learned no interaction of this user: all lists are of popular items"


class Explorer:
    """Answers to the requests of the explorer page about one run."""

    def __init__(self, served: Served) -> None:
        self.served, self.recommender = served, served.recommender
        self.ranker, self.run = self.recommender.ranker, self.recommender.run
        self.settings = self.run.settings.consensus
        self.standing: Callable[[], Mask | None] = lambda: None
        self.has_consensus = CONSENSUS in self.ranker.names

    @classmethod
    def of(cls, served: Served) -> Explorer:
        """Return the explorer of a run, made once."""
        return cast(Explorer, served.cache.setdefault("explorer", cls(served)))

    @cached_property
    def users(self) -> Search:
        """Users by id, with their number of items."""
        return Search(self.recommender.user_ids, np.diff(self.recommender.viewed.indptr))

    @cached_property
    def items(self) -> Search:
        """Items by id and title, with their number of users."""
        titles = [self.served.titles.get(item) for item in self.recommender.item_ids.values.tolist()]
        uses = np.bincount(self.recommender.viewed.indices, minlength=self.ranker.n_items)
        return Search(self.recommender.item_ids, uses, titles)

    def facts(self, limits: Mapping[str, int], compared: str | None = None) -> Facts:
        """Describe the run. compared: the name of the run that it can be compared with"""
        run, log, settings, heads = self.run, self.run.data.interactions, self.settings, self.ranker.heads
        fixed = list(run.fixed_voters) if self.has_consensus else []
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
                {"voter": each.voter, "kind": each.kind, "aspect": each.aspect} for each in contributions.groups
            ],
            "top_k": settings.top_k,
            "temperature": settings.temperature,
            "consistency_temperature": run.settings.consistency_temperature,
            "metric": run.metric,
            "validation": {name: run.best[name].validation for name in run.rows()},
            "cross_fitted": cross_fitted(run),
            "learned": list(PARTS[: len(run.learned)]),
            "limits": dict(limits),
            "compared": compared,
            "version": VERSION,
        }  # fmt: skip

    @cached_property
    def attributes(self) -> Attributes:
        """Attributes of the items, from the catalogue."""
        return Attributes(self.served)

    def of_user(self, user: int, k: int, held_out: bool = False, where: str | None = None) -> View:
        """Return the view of a user of the log. held_out: list held-out items too, to see which head finds them

        where: a condition on attributes that all listed items fulfil
        The lists are those of `Recommender.recommend`; votes and contributions those of `Recommender.explain`.
        """
        trained: Indices = self.run.log[[user]].indices
        used: Indices = self.recommender.viewed[[user]].indices

        def draw(by: str, at: Indices, n: int, hidden: Sequence[Indices], among: Indices | None) -> list[Short]:
            users = np.full(len(at), user)
            return self.ranker.short(users, [n] * len(at), by, hidden, anew=among is not None, among=among)

        votes, voters, note = None, {}, None
        if self.has_consensus:
            votes, voters = self.ranker.votes(CONSENSUS), self.ranker.voters
        if self.run.unlearned[user]:
            note = UNLEARNED
        elif self.has_consensus:
            lists = self.run.best[CONSENSUS].lists
            no_list = lists is not None and int(lists[user, 0]) < 0
            note = NO_VOTES if votes is None else NO_CONSENSUS if no_list else None
        data, rows = self.run.data, self.recommender.viewed
        pairs = slice(rows.indptr[user], rows.indptr[user + 1])  # sorted by user, then item
        items, codes, times = data.interactions.item[pairs], origin(data.parts[pairs]), data.interactions.timestamp
        order = np.arange(len(items)) if times is None else np.argsort(-times[pairs], kind="stable")  # newest first
        history = {item: PARTS[code] for item, code in zip(items[order].tolist(), codes[order].tolist(), strict=True)}
        hidden = trained if held_out else used
        view = self._view(draw, k, where, trained, hidden, CONSENSUS, votes, voters, user, history)
        view["user"], view["note"] = self.recommender.user_ids.values[[user]].tolist()[0], note
        return view

    def of_history(self, request: HistoryView) -> View:
        """Return the view of a new user with this history.

        Without a re-ranker the consensus is by rank alone, since there are no rankings over time.
        """
        known = KnownItems(self.served, request.unknown_items)
        items = known.of(request.history, "body.history")
        try:
            given = self.recommender.history(items, ItemLookup(self.recommender.item_ids, "error"))
        except ConfigError as error:  # times that are not the log's
            raise Problem(409, "refused_rule", str(error), "body.history") from None
        used, reranks, rows = given.items, self.ranker.reranks, self.ranker.rows_of([given])

        def draw(by: str, at: Indices, n: int, hidden: Sequence[Indices], among: Indices | None) -> list[Short]:
            return self.ranker.of_histories([given] * len(at), n, by, hidden, among)

        votes = self.ranker.folded_votes(rows, CONSENSUS)[1] if reranks else None
        voters = self.ranker.folded_voters(rows) if self.has_consensus else {}
        by, history = CONSENSUS if reranks else R_CONSENSUS, dict.fromkeys(used[np.argsort(given.times)].tolist())
        view = self._view(draw, request.k, request.where, used, used, by, votes, voters, None, history)
        note = NEW_USER if self.has_consensus and not reranks else None
        view["note"], view["unknown_items"] = joined([note, known.note()]), known.report()
        return view

    def _view(
        self, draw: Callable[..., list[Short]], k: int, where: str | None, trained: Indices, hidden: Indices, by: str,
        votes: Votes | None, voters: Mapping[str, Factors], user: int | None, history: Mapping[int, Part | None],
    ) -> View:  # fmt: skip
        """Return the lists of all voters and the consensus, with the votes and reasons for each item.

        draw: the name of a head or consensus, then the arguments of `rules.Draw`; trained: items that the voters did
        not rank; hidden: items that are not shown; by: the kind of consensus, of which the re-ranked one has a limited
        length; votes, voters: of the user, or of a new history if user is None; history: item -> part of the log
        """
        rules, row = self.attributes.rules(where, self.standing()), user or 0
        kept, length = self.settings.top_k or self.ranker.n_items, k
        if by == CONSENSUS:
            kept, length = self.settings.shown, min(k, self.settings.shown)

        def short(name: str, length: int, kept: int = 0) -> Short:
            own = partial(draw, name)
            if rules is None:
                return own(np.array([0]), length, [hidden], None)[0]
            return rules.lists(own, np.array([0]), length, [hidden], None, kept)[0]

        lists: dict[str, Listed] = {name: short(name, k) for name in self.ranker.heads}
        agreed = {by: short(CONSENSUS, length, kept)} if self.has_consensus else {}
        if votes is not None:
            lists |= self._of_fixed_voters(votes, row, k, hidden, rules)
        items = sorted({item for indices, _ in (*lists.values(), *agreed.values()) for item in indices.tolist()})
        cast: dict[int, list[Vote]] = {}
        if votes is not None:
            cast = self._votes(votes, row, voters, trained, items)
        elif by == R_CONSENSUS and self.has_consensus:
            cast = self._folded_votes(voters, trained, items, k)
        reasons = self._reasons(trained, items, user)
        return {
            "user": None,
            "note": None,
            "unknown_items": [],
            "history": [self._used(item, history) for item in history],
            "lists": [self._listed(*each) for each in lists.items()],
            "consensus": next((self._listed(*each) for each in agreed.items()), None),
            "items": [
                {
                    **self._used(item, history), "votes": cast.get(item, []), "because": because,
                    "contributions": contributions, "attributes": self.attributes.of(item),
                    "picture": self.attributes.picture(item),
                }
                for item, (because, contributions) in reasons.items()
            ],
        }  # fmt: skip

    def similar_users(self, text: str, k: int) -> SimilarUsers:
        """Return the users nearest to the one that a text spells, by the vectors of the best head."""
        user, head = self.served.user(text), self.run.best_head()
        self.served.user_index(user, "path.user")
        ids, scores = self.recommender.similar_users(user, k, head=head, frame="arrays")
        uses = self.users.popularity[[position_of(self.recommender.user_ids, each) for each in ids.tolist()]]
        rows = zip(ids.tolist(), scores.tolist(), uses.tolist(), strict=True)
        return {
            "user": user, "head": head,
            "users": [{"user": other, "score": score, "uses": n} for other, score, n in rows if np.isfinite(score)],
        }  # fmt: skip

    def _listed(self, by: str, listed: Listed) -> ItemList:
        indices, scores = listed
        ids = self.recommender.item_ids.values[indices].tolist()
        values = [None] * len(ids) if scores is None else scores.tolist()
        rows = enumerate(zip(ids, values, strict=True), 1)
        return {"by": by, "items": [{"item": item, "rank": rank, "score": score} for rank, (item, score) in rows]}

    def _used(self, index: int, parts: Mapping[int, Part | None]) -> UsedItem:
        item = self._id(index)
        return {"item": item, "title": self.served.titles.get(item), "part": parts.get(index)}

    def _id(self, index: int) -> Id:
        item: Id = self.recommender.item_ids.values[[index]].tolist()[0]
        return item

    def _of_fixed_voters(
        self, stored: Votes, user: int, k: int, hidden: Indices, rules: AppliedRules | None
    ) -> dict[str, Listed]:
        """Return the stored list of each fixed voter, which has no vectors to rank with and no scores."""
        lists: dict[str, Listed] = {}
        open_ = np.ones(self.ranker.n_items, bool) if rules is None or rules.shown is None else rules.shown.copy()
        open_[hidden] = False
        for voter, name in enumerate(stored.names):
            if name in self.run.fixed_voters:
                items = stored.items[voter, user].astype(np.int64)
                lists[name] = items[(items >= 0) & open_[items]][:k], None
        return lists

    def _reasons(self, used: Indices, items: list[int], user: int | None = None) -> dict[int, Reasons]:
        """Item -> the most similar items of the history, and contributions. user: whose list is re-ranked, if any"""
        voters = self.ranker.voters.values() if self.has_consensus else [self.ranker.factors(self.ranker.heads[0])]
        speaking = speakers(similarity_shares(voters, used, np.array(items, np.int64)))
        contributions = self.ranker.contributions
        terms = {} if user is None or contributions is None else contributions.of_user(user)
        return {
            item: (
                [{"item": self._id(used[position]), "share": share} for position, share in each],
                terms[item].tolist() if item in terms else None,
            )
            for item, each in zip(items, speaking, strict=True)
        }

    def _votes(
        self, stored: Votes, user: int, voters: Mapping[str, Factors], trained: Indices, items: list[int]
    ) -> dict[int, list[Vote]]:
        """Item -> votes, as in `Recommender.explain`. user: row of the votes and of the voters' user vectors"""
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
        """Item -> votes by R alone, of each voter for its first max(K, k) items (see `Ranker.of_histories`)."""
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
    """[items] ranks for a user, from 0; ties by index, hidden items last."""
    scores = factors.scores(torch.tensor([user]))[0].numpy()
    scores[hidden] = -np.inf
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return ranks
