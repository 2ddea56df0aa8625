"""View of a user: history, lists of all heads, consensus, and the votes for each item."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from concf.data.parts import origin
from concf.errors import ConfigError
from concf.evaluation.scorers import Factors
from concf.inference.explain import Vote, Votes, about, cross_fitted, ranks_of, similarity_shares, speakers
from concf.inference.lookup import ItemLookup, Short, kind_in_words
from concf.inference.rules import AppliedRules
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.service.answers import BY_RANK, unknown_items
from concf.service.explorer.search import Search
from concf.service.loading import Served, ServedRules
from concf.service.problems import Problem
from concf.service.schemas import Answer, HistoryView, Id, ViewQuery

Indices = NDArray[np.int64]
Listed = tuple[NDArray[Any], NDArray[np.float32] | None]  # item indices, best first, and their scores, if there are any
PARTS = ("training", "validation", "test")  # by their number in `Split.parts`
LONGEST_CELL = 300  # most characters of an attribute that are shown
NO_CONSENSUS = "no consensus was computed for this user (consensus_users): its list is that of the best head"
UNLEARNED = "the run has learned no interaction of this user: all lists are of popular items"


class Explorer:
    """Answers to the requests of the explorer page about a served run."""

    def __init__(self, served: Served) -> None:
        self.served, self.recommender = served, served.recommender
        self.ranker, self.run = self.recommender.ranker, self.recommender.run
        self.settings = self.run.settings.consensus
        self.has_consensus = CONSENSUS in self.ranker.names

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

    @cached_property
    def attributes(self) -> Any:
        """[items] the catalogue as a Polars frame, without ids and titles; None if there is none."""
        catalogue = self.served.attributes
        return catalogue and catalogue.attributes(self.recommender.item_ids).drop(catalogue.roles())

    def facts(self) -> Answer:
        """Describe the run.

        about: head or fixed voter -> description in a few words; reranked: groups of terms of the re-ranker, [] without
        one; top_k: K, number of items that a head votes for, null for all; consistency_temperature: T_c;
        cross_fitted: recommenders whose validation metric is cross-fitted; learned: parts of the log that were learned
        from; columns: attributes that conditions may name
        """
        run, log, heads, groups = self.run, self.run.data.interactions, self.ranker.heads, self.ranker.contributions
        fixed = list(run.fixed_voters) if self.has_consensus else []
        return {
            "name": self.served.folder.resolve().name,
            "users": log.n_users,
            "items": self.ranker.n_items,
            "interactions": len(log),
            "item_ids": kind_in_words(log.item_ids),
            "columns": [] if self.attributes is None else self.attributes.columns,
            "heads": heads,
            "about": {name: about(run, name) for name in (*heads, *fixed)},
            "fixed_voters": fixed,
            "voters": [name for name in (*heads, *fixed) if name not in run.settings.non_voting and self.has_consensus],
            "best_head": run.best_head(),
            "why_best_head": run.why_best_head(),
            "has_consensus": self.has_consensus,
            "reranked": [] if groups is None else [
                {"voter": each.voter, "kind": each.kind, "aspect": each.aspect} for each in groups.groups
            ],
            "top_k": self.settings.top_k,
            "consistency_temperature": run.settings.consistency_temperature,
            "metric": run.metric,
            "validation": {name: run.best[name].validation for name in run.rows()},
            "cross_fitted": cross_fitted(run),
            "learned": list(PARTS[: len(run.learned)]),
        }  # fmt: skip

    def of_user(self, text: str, query: ViewQuery) -> Answer:
        """Return the view of a user of the log; see `_view`. query.held_out: list held-out items too

        The lists are those of `Recommender.recommend`; votes and contributions those of `Recommender.explain`.
        """
        name, user = self.served.known("user", text, "path.user")
        trained: Indices = self.run.log[[user]].indices
        used: Indices = self.recommender.viewed[[user]].indices

        def draw(by: str, at: Indices, n: int, hidden: Sequence[Indices], among: Indices | None) -> list[Short]:
            users = np.full(len(at), user)
            return self.ranker.short(users, n, by, hidden, anew=among is not None, among=among)

        votes, voters, note = None, {}, None
        if self.has_consensus:
            votes, voters, lists = self.ranker.votes(CONSENSUS), self.ranker.voters, self.run.best[CONSENSUS].lists
            no_list = lists is not None and int(lists[user, 0]) < 0
            note = NO_CONSENSUS if no_list else None
        if self.run.unlearned[user]:
            note = UNLEARNED
        data, rows = self.run.data, self.recommender.viewed
        pairs = slice(rows.indptr[user], rows.indptr[user + 1])  # sorted by user, then item
        items, codes, times = data.interactions.item[pairs], origin(data.parts[pairs]), data.interactions.timestamp
        order = np.arange(len(items)) if times is None else np.argsort(-times[pairs], kind="stable")  # newest first
        history = {item: PARTS[code] for item, code in zip(items[order].tolist(), codes[order].tolist(), strict=True)}
        hidden = trained if query.held_out else used
        view = self._view(draw, query.k, query.where, trained, hidden, CONSENSUS, votes, voters, user, history)
        return {"user": name, "note": note, "unknown_items": [], **view}

    def of_history(self, request: HistoryView) -> Answer:
        """Return the view of a new user with this history; see `_view`.

        Without a re-ranker the consensus is by rank alone, since there are no rankings over time.
        """
        unknown, lookup = unknown_items(self.served, request.history), ItemLookup(self.recommender.item_ids)
        try:
            given = self.recommender.history(request.history, lookup)
        except ConfigError as error:  # times that are not the log's
            raise Problem(409, "refused_rule", str(error), "body.history") from None
        used, reranks, rows = given.items, self.ranker.reranks, self.ranker.rows_of([given])

        def draw(by: str, at: Indices, n: int, hidden: Sequence[Indices], among: Indices | None) -> list[Short]:
            return self.ranker.of_histories([given] * len(at), n, by, hidden, among)

        voters, votes = self.ranker.folded_voters(rows) if self.has_consensus else {}, None
        if reranks:
            lists, _, stored = self.ranker.fold_in.agree(*rows)
            votes = Votes(stored, lists, self.run, CONSENSUS)
        elif self.has_consensus:
            votes = self._by_rank(voters, used, request.k)
        by, history = CONSENSUS if reranks else R_CONSENSUS, dict.fromkeys(used[np.argsort(given.times)].tolist())
        view = self._view(draw, request.k, request.where, used, used, by, votes, voters, None, history)
        notes = [BY_RANK] * (self.has_consensus and not reranks) + ["unknown items are ignored"] * bool(unknown)
        return {"user": None, "note": "; ".join(notes) or None, "unknown_items": unknown, **view}

    def _view(
        self, draw: Callable[..., list[Short]], k: int, where: str | None, trained: Indices, hidden: Indices, by: str,
        votes: Votes | None, voters: Mapping[str, Factors], user: int | None, history: Mapping[int, str | None],
    ) -> Answer:  # fmt: skip
        """Return the lists of all voters and the consensus, with the votes and reasons for each item.

        draw: called with the name of a head or consensus, then the arguments of `rules.Draw`; trained: items that the
        voters did not rank; hidden: items that are not shown; by: kind of consensus; the re-ranked one has a limited
        length; votes, voters: of the user, or of a new history if user is None; history: item -> part of the log

        lists, consensus: {by, items: [{item, rank, score}]}, the consensus null for a run of one head, the score null
        for a fixed voter; items: all that a list has, {item, title, part, votes, because, contributions, attributes},
        contributions in the order of `reranked` in `facts`, null for an item that was not re-ranked
        """
        rules, row = self._rules(where), user or 0
        kept, length = self.settings.top_k or self.ranker.n_items, k
        if by == CONSENSUS:
            kept, length = self.settings.shown, min(k, self.settings.shown)

        def short(name: str, length: int, kept: int = 0) -> Short:
            own = partial(draw, name)
            if rules is None:
                return own(np.array([0]), length, [hidden], None)[0]
            return rules.lists(own, np.array([0]), length, [hidden], None, kept)[0]

        lists: dict[str, Listed] = {name: short(name, k) for name in self.ranker.heads}
        agreed = short(CONSENSUS, length, kept) if self.has_consensus else None
        if votes is not None:
            lists |= self._of_fixed_voters(votes, row, k, hidden, rules)
        items = sorted({item for each in (*lists.values(), agreed) if each for item in each[0].tolist()})
        cast = {} if votes is None else self._votes(votes, row, voters, trained, items)
        compared = self.ranker.voters.values() if self.has_consensus else [self.ranker.factors(self.ranker.heads[0])]
        speaking = speakers(similarity_shares(compared, trained, np.array(items, np.int64)))
        groups = self.ranker.contributions
        contributed = {} if user is None or groups is None else groups.of_user(user)
        return {
            "history": [self._used(item, history) for item in history],
            "lists": [self._listed(*each) for each in lists.items()],
            "consensus": agreed and self._listed(by, agreed),
            "items": [
                {
                    **self._used(item, history), "votes": cast.get(item, []),
                    "because": [{"item": self._id(trained[at]), "share": share} for at, share in because],
                    "contributions": contributed[item].tolist() if item in contributed else None,
                    "attributes": self._described(item),
                }
                for item, because in zip(items, speaking, strict=True)
            ],
        }  # fmt: skip

    def _rules(self, where: str | None) -> AppliedRules | None:
        """Return the rules of a condition and of the standing rule; None without either."""
        try:
            rules = ServedRules(self.served.attributes, where or None, allowed=self.served.allowed())
            return rules.applied(self.ranker, self.run.best_head())
        except ConfigError as error:
            raise Problem(409, "refused_rule", str(error), "where") from None

    def _described(self, index: int) -> dict[str, str]:
        """Column -> value of an item as text, without missing values."""
        row = {} if self.attributes is None else self.attributes.row(index, named=True)
        return {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)[:LONGEST_CELL]
            for name, value in row.items()
            if value is not None
        }

    def _listed(self, by: str, listed: Listed) -> Answer:
        indices, scores = listed
        values = [None] * len(indices) if scores is None else scores.tolist()
        rows = enumerate(zip(indices, values, strict=True), 1)
        return {"by": by, "items": [{"item": self._id(at), "rank": rank, "score": score} for rank, (at, score) in rows]}

    def _used(self, index: int, parts: Mapping[int, str | None]) -> Answer:
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

    def _votes(
        self, stored: Votes, user: int, voters: Mapping[str, Factors], trained: Indices, items: list[int]
    ) -> dict[int, list[Vote]]:
        """Item -> votes, as in `Recommender.explain`. user: row of the votes and of the voters' user vectors"""
        ranks = {name: ranks_of(factors, user, trained) for name, factors in voters.items()}
        votes = {item: stored.cast(user, item) for item in items}
        for item, cast in votes.items():
            for vote in cast:
                if vote["rank"] is None and vote["head"] in ranks:  # outside its first K
                    vote["rank"] = int(ranks[vote["head"]][item]) + 1
        return votes

    def _by_rank(self, voters: Mapping[str, Factors], used: Indices, k: int) -> Votes:
        """Return votes by R alone, of each voter for its first max(K, k) items (see `Ranker.of_histories`)."""
        first = max(self.settings.top_k or self.ranker.n_items, k)
        lists = np.stack([np.argsort(ranks_of(each, 0, used))[:first] for each in voters.values()])
        votes = Votes({"items": torch.from_numpy(lists)[:, None]}, None, self.run, R_CONSENSUS)
        votes.names, votes.voter_weights = list(voters), np.array(self.ranker.voter_weights)  # fixed voters do not vote
        return votes
