"""Top-k recommendations of a run, in the ids of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concf.data.reading.times import When, in_unit_of, moment
from concf.errors import ConfigError, DataError, note, option
from concf.inference.frames import Library, as_arrays, as_frame, column_type, long_table
from concf.inference.lookup import (
    NONE,
    History,
    ItemLookup,
    Positions,
    Short,
    as_array,
    as_events,
    hidden_items,
    is_one,
    item_index,
    plain,
    user_rows,
)
from concf.inference.ranker import Ranker, highest
from concf.inference.rules import Rules, catalogue_of
from concf.loading import load_run
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS
from concf.runtime.arguments import check_count
from concf.strong.run import StrongRun

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from scipy.sparse import csr_array

    from concf.data.ids import Ids
    from concf.inference.explain import Explanation
    from concf.inference.frames import Frame
    from concf.inference.lookup import Events, EventsByUser, Id, ItemsByUser, OneOrMany, Users
    from concf.inference.titles import Catalogue

Block = tuple[NDArray[Any], list[Short]]  # user ids of a block, and their lists


class ListOptions(TypedDict, total=False):
    """Options of `Recommender.recommend` and `stream`."""

    by: str | None
    items: ItemsByUser | None
    exclude: ItemsByUser | None
    rules: Rules | None
    at: When | None


class Recommender:
    """Top-k recommendations of a trained run, by its consensus or by one head.

        model = concf.Recommender.load("runs/mine")
        model.recommend(["alice", "bob"], k=5)

    run:   the result of `concf.train` or `concf.load_run`
    frame: the library of returned frames: polars, pandas or arrow; or arrays, for (ids, scores)
    """

    frame: Library = "polars"
    _ranker: Ranker | None = None

    def __init__(self, run: Run, frame: Library = "polars") -> None:
        self._ranker, self.frame = Ranker(run), frame

    @classmethod
    def load(cls, folder: str | Path, data: str | Path | None = None, frame: Library = "polars") -> Self:
        """Load the folder of a run (`concf train`, `ConCF.save`, or `fit` and `train` with `out`).

        data: the folder of its data set, if that has moved. frame: see the class
        """
        return cls(load_run(folder, data), frame)

    def add_items(self, catalogue: str | Path | Catalogue | pl.DataFrame | pd.DataFrame | pa.Table) -> Self:
        """Also recommend items of a catalogue that are not in the log, by their attributes.

            model.add_items("items.parquet").recommend("alice")

        A linear map from attributes to the vectors of each head is learned from the items of the log, and vectors of
        rare items are shrunk towards it (docs/new-data.md). Another call starts from the log again. Returns the model.

        catalogue: a file or frame with a row for each item, new and known; its other columns are attributes
        """
        self._ranker = Ranker(self.run, items=catalogue_of(catalogue))
        return self

    @property
    def ranker(self) -> Ranker:
        """The ranker of user and item positions."""
        if self._ranker is None:
            raise ConfigError("nothing was learned yet: call fit(data) first, or ConCF.load(folder)")
        return self._ranker

    @property
    def run(self) -> Run:
        """The run: settings, history, data, each head and consensus at its best epoch."""
        return self.ranker.run

    @property
    def user_ids(self) -> Ids:
        """User ids of the log; `user_ids.values` is an array in the order of `user_factors`."""
        return self.run.data.interactions.user_ids

    @property
    def item_ids(self) -> Ids:
        """Item ids of the log, then new ones; `item_ids.values` is an array in the order of `item_factors`."""
        return self.ranker.item_ids

    @property
    def viewed(self) -> csr_array:
        """[users, items] all interactions of the log, including held-out items."""
        return self.ranker.viewed

    @property
    def default(self) -> str:
        """The default of `by`: the consensus, or the only head."""
        return CONSENSUS if CONSENSUS in self.ranker.names else self.run.best_head()

    def recommend(
        self, users: Users = None, k: int = 10, *, history: Events | EventsByUser | None = None,
        frame: Library | None = None, **options: Unpack[ListOptions],
    ) -> Frame:  # fmt: skip
        """Return the best k items of each user, best first.

            model.recommend("alice")
            model.recommend(["alice", "bob"], k=5, exclude=["sold out"])
            model.recommend(history=["a", "c"])  # the newest last
            model.recommend(history=[{"item": "a", "time": "2026-11-01"}, {"item": "c", "time": "2026-11-17"}])
            model.recommend("alice", rules=concf.Rules("items.parquet", where="price < 20", at_most={"category": 2}))

        Returns a frame `user_id, item_id, score, rank` (from 1) in the library of the log that was fitted, or with
        frame="arrays" (ids, scores): [users, k] each, or [k] for a single user; where a list is shorter, ids are -1
        (text: None) and scores -inf.

        users:   an id, several (a list, an array, a column of a frame: a list for each entry), or None for everyone
        k:       the length of the lists, 1 or more
        by:      "consensus" (the default), "R-consensus", or the name of a head
        history: items of a new user, oldest first, or a mapping of users to items. An item is an id, or a dictionary
                 {"item", "time", "weight"}; items at equal times, and those of a Python set, have no order. They are
                 added to the history of a user of the log. The users are folded in (`concf.strong.fold_in`); their
                 consensus is re-ranked as for others, or by rank alone without a re-ranker. A user without known items
                 gets the average user's list. Order and times matter only where the run uses them (docs/time.md)
        items:   only these may be recommended: to everyone, or as a mapping of users to items
        exclude: these may not be recommended: to anyone, or as a mapping
        rules:   conditions on items, diversity, and how used items and unknown ids are treated; see `concf.Rules`
        at:      when the lists are shown, a date or a time in the log's unit; None: at the newest learned event. It
                 changes the consensus of a run that uses the ages of items and the idleness of users
        frame:   polars, pandas, arrow or arrays; None: the library of the log
        """
        names, blocks = self.blocks(users, k, history, **options)
        lists = [short for _, block in blocks for short in block]
        if (frame or self.frame) == "arrays":
            single = users is not None and is_one(users) if history is None else not isinstance(history, Mapping)
            return as_arrays(lists, k, self.item_ids, single)
        kind = column_type(self.user_ids, names)
        return as_frame(long_table(names, lists, self.item_ids, kind), frame or self.frame)

    def stream(self, users: Users = None, k: int = 10, **options: Unpack[ListOptions]) -> Iterator[pa.Table]:
        """Yield the lists of `recommend` as Arrow tables of a few thousand users each, in bounded memory.

        Errors and warnings come before the first table. Arguments: see `recommend`
        """
        names, blocks = self.blocks(users, k, **options)
        kind = column_type(self.user_ids, names)
        return (long_table(users, lists, self.item_ids, kind) for users, lists in blocks)

    def blocks(
        self, users: Users, k: int, history: Events | EventsByUser | None = None, **options: Unpack[ListOptions]
    ) -> tuple[NDArray[Any], Iterator[Block]]:
        """Return user ids, and an iterator over blocks of lists, each of as many users as memory allows.

        All arguments are checked before the first block, and notes come before it. Arguments: see `recommend`
        """
        if unknown := options.keys() - ListOptions.__annotations__.keys():
            raise TypeError(f"recommend() got an unexpected keyword argument {min(unknown)!r}")
        by, items, exclude, rules, at = map(dict[str, Any](options).get, ListOptions.__annotations__)
        if not isinstance(rules, Rules | None):
            raise ConfigError(f"rules = {rules!r:.80}: expected concf.Rules(...), found {type(rules).__name__}")
        k, rules = check_count("k", k), rules or Rules()
        by = self.ranker.known(self.default if by is None else by)
        lookup, ranker = ItemLookup(self.item_ids), self._as_of(at, by)
        used = None if history is None else self._histories(users, history, lookup, ranker)
        given = users if used is None else list(used)
        names = self.user_ids.values if given is None else as_array(given)
        rows = user_rows(self.user_ids, names, rules.unknown if used is None else "popular")
        allow, deny = (lookup.by_user(names, *each) for each in ((items, "items"), (exclude, "exclude")))
        lookup.report()
        if not len(names):
            note("users is empty: there is nothing to recommend")
        histories = None if used is None else list(used.values())
        head = by if by in self.ranker.heads else self.run.best_head()
        applied, filter_viewed = rules.applied(self.ranker, head), rules.filter_viewed
        chosen, kept = self.run.settings.consensus, 0  # length of a consensus list, if it limits the candidates
        if by not in self.ranker.heads and allow is None:
            stored = filter_viewed and (used is None or self.ranker.reranks)
            kept = chosen.shown if stored else chosen.top_k or len(self.item_ids)

        def draw(at: Positions, k: int, hidden: Sequence[Positions], among: Positions | None) -> list[Short]:
            if histories is not None:
                return ranker.of_histories([histories[row] for row in at], k, by, hidden, among)
            anew = not filter_viewed or among is not None
            lists = ranker.short(rows[at].clip(min=0), k, by, hidden, anew=anew, among=among)
            for row in np.flatnonzero(rows[at] < 0).tolist():
                lists[row] = highest(self.ranker.popularity.copy(), k, hidden[row])
            return lists

        def blocks() -> Iterator[Block]:
            step = ranker.block()
            for begin in range(0, max(len(names), 1), step):
                at = np.arange(begin, min(begin + step, len(names)))
                seen = [NONE] * len(at)
                if filter_viewed and histories is not None:
                    seen = [histories[row].items for row in at]
                elif filter_viewed:
                    seen = [_row(self.viewed, row) for row in rows[at].tolist()]
                disliked = [_row(ranker.disliked, row) for row in rows[at].tolist()]
                seen = [np.union1d(*each) if len(each[1]) else each[0] for each in zip(seen, disliked, strict=True)]
                hidden, among = hidden_items(names[at].tolist(), seen, allow, deny, len(self.item_ids))
                lists = applied.lists(draw, at, k, hidden, among, kept) if applied else draw(at, k, hidden, among)
                yield names[at], lists

        if applied and applied.shown is not None and applied.shown.sum() < k:
            note(f"{applied.shown.sum()} items match: lists are shorter than k = {k} ({option('where')})")
        return names, blocks()

    def _as_of(self, at: When | None, by: str) -> Ranker:
        """The ranker at a time, which may not be earlier than the newest learned event."""
        run, label = self.run, option("at", at)
        if at is None:
            return self.ranker
        clock = run.clock if isinstance(run, StrongRun) else None
        reason = "the run uses no ages (`time` in its summary)" if by == CONSENSUS else f"{by} knows no time"
        if run.data.interactions.timestamp is not None:
            newest = float(run.data.times(run.learned).data.max()) if clock is None else clock.now
            now = in_unit_of(newest, at, label)
            if now < newest:
                raise ConfigError(f"{label}: earlier than the newest event that the run has learned ({moment(newest)})")
            if clock is not None and by == CONSENSUS:
                return self.ranker if now == newest else self.ranker.as_of(now)
        note(f"{label}: it has no effect, since {reason}")
        return self.ranker

    def history(self, events: Events, lookup: ItemLookup, row: int = -1, now: float = 0.0) -> History:
        """Return a history of events, after that of the log's user at `row`, if any. now: time of the list, if later"""
        times, items, newest = self.run.data.interactions.timestamp, _row(self.viewed, row), self.ranker.newest
        before = History.of(items)
        if times is not None and len(items):
            before = before._replace(times=times[self.viewed.indptr[row] : self.viewed.indptr[row + 1]].astype(float))
        return before.then(lookup.history(events, newest, now))

    def _histories(
        self, users: Users, history: Events | EventsByUser, lookup: ItemLookup, ranker: Ranker
    ) -> dict[Any, History]:
        """User -> the given history, after that of the log."""
        if users is not None and (isinstance(history, Mapping) or not is_one(users)):
            raise ConfigError("a history is one user's; for several, give a mapping of users to items, without `users`")
        given: Mapping[Any, Any] = history if isinstance(history, Mapping) else {users: history}
        several = {
            plain(name): each if isinstance(each, set | frozenset) else as_events(each) for name, each in given.items()
        }
        rows = user_rows(self.user_ids, as_array(list(several)), "popular").tolist()
        now = 0.0 if ranker.clock is None else ranker.clock.now
        used = {
            name: self.history(events, lookup, row, now)
            for (name, events), row in zip(several.items(), rows, strict=True)
        }
        emptied = sum(len(events) > 0 and not len(used[name].items) for name, events in several.items())
        if emptied:
            note(f"history: {emptied} of {len(used)} users have no known item, and get the list of the average user")
        return used

    def similar_items(
        self, items: OneOrMany, k: int = 10, *, head: str | None = None, frame: Library | None = None
    ) -> Frame:
        """Return the k nearest items of each by the cosine of a head's vectors: `item_id, similar_id, score, rank`.

        items: an id, or several, of which unknown ones are ignored with a `ConcfWarning` (with frame="arrays" their
               lists are empty); a single unknown item is an error
        k:     the length of the lists, 1 or more
        head:  whose vectors; None: those of the best head
        frame: polars, pandas, arrow or arrays; None: the library of the log
        """
        import torch

        single, lookup, ids = is_one(items), ItemLookup(self.item_ids), self.item_ids
        rows = np.array([item_index(ids, items, "items")]) if single else lookup.positions(items, "items")
        lookup.report()
        if not len(rows):
            note("items is empty: there is nothing to compare")
        k, vectors = min(check_count("k", k), len(ids) - 1), self.ranker.directions(self.ranker.head(head))
        cosines = (torch.from_numpy(vectors[rows.clip(min=0)]) @ torch.from_numpy(vectors).T).numpy()
        lists = [
            highest(cosine, max(k, 1), np.array([row])) if row >= 0 else (NONE, NONE.astype(np.float32))
            for cosine, row in zip(cosines, rows, strict=True)
        ]
        if (frame or self.frame) == "arrays":
            return as_arrays(lists, k, ids, single)
        columns = ("item_id", "similar_id", "score", "rank")
        return as_frame(long_table(ids.values[rows], lists, ids, column_type(ids), columns), frame or self.frame)

    def user_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[users, d + 1] vectors whose inner product with the items' is the head's score; None: of the best head."""
        return self.ranker.vectors(self.ranker.head(head))[0]

    def item_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[items, d + 1] item vectors, the bias last; None: of the best head."""
        return self.ranker.vectors(self.ranker.head(head))[1]

    def explain(self, user: Id, item: Id) -> Explanation:
        """Explain an item's rank in a user's consensus list, at the best epoch of the consensus.

            model.explain("alice", "a")["heads"]  # the rank, R, C, vote and score of each head

        Returns a dictionary: user, item, rank, importance (Eq. 12), reranked, used_in_training, heads; see
        `concf.inference.explain.Explanation`.
        """
        from concf.inference.explain import ranks_of, similarity_shares, speakers

        ranker, run = self.ranker, self.run
        row = int(user_rows(self.user_ids, as_array(user))[0])
        index = item_index(self.item_ids, item, "item")
        if CONSENSUS not in run.best:
            raise ConfigError("a run of one head has no consensus to explain")
        votes = ranker.votes(CONSENSUS)
        if votes is None:
            raise DataError("this run kept no votes. Train it again with this version to explain its consensus")
        seen = run.log[[row]].indices
        used, heads = bool(index in seen), votes.cast(row, index)
        for vote in heads:
            if vote["head"] in ranker.voters:
                factors = ranker.voters[vote["head"]]
                vote["score"] = float(factors.scores(np.array([row]))[0, index])
                vote["rank"] = vote["rank"] or int(ranks_of(factors, row, seen)[index]) + 1
            vote["rank"] = None if used else vote["rank"]
        contributions = None if ranker.contributions is None else ranker.contributions.of_pair(row, index)
        aspects: dict[str, float] = {}
        for each in contributions or []:
            aspects[each["aspect"]] = aspects.get(each["aspect"], 0.0) + each["value"]
        (because,) = speakers(similarity_shares(ranker.voters.values(), seen, np.array([index])))
        lists, worth = run.best[CONSENSUS].lists, float(votes.worth(row, np.array([index], np.int32))[0])
        listed = [] if lists is None else lists[row].tolist()
        if ranker.new is not None or listed[:1] == [-1]:  # with new items, or without a consensus list
            listed = ranker.short(np.array([row]), run.settings.consensus.shown, CONSENSUS, [seen])[0][0].tolist()
        return {
            "user": user,
            "item": item,
            "rank": listed.index(index) + 1 if index in listed else None,
            "importance": sum(vote["vote"] for vote in heads) / len(heads),
            "reranked": None if votes.reranked is None or worth == -np.inf else worth,
            "used_in_training": used,
            "heads": heads,
            "contributions": contributions,
            "aspects": aspects or None,
            "because": [{"item": ranker.item_ids.named(seen[[at]])[0], "share": share} for at, share in because],
        }


def _row(matrix: csr_array, row: int) -> Positions:
    """Items of a user in a matrix [users, items]; none for an unknown user (-1)."""
    items: Positions = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]] if row >= 0 else NONE
    return items
