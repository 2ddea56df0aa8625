"""Recommendations of a run, in the ids of the log that it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, overload

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from concf.consensus.consensus import CONSENSUS
from concf.errors import ConfigError, DataError, note
from concf.inference.explain import Explanation, explain
from concf.inference.frames import Library, ManyLists, OneList, as_arrays, as_frame, kind_of, long_table
from concf.inference.lookup import (
    Id,
    ItemLookup,
    UnknownItems,
    UnknownUsers,
    as_array,
    hidden_items,
    is_integer,
    is_one,
    kind_in_words,
    plain,
    positions,
)
from concf.inference.ranker import Positions, Ranker, Short, highest
from concf.inference.rules import RuleOptions, catalogue_of, rules_of
from concf.models import load_run
from concf.runs.run import Run
from concf.runtime.arguments import check_count, check_names

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from scipy.sparse import csr_array

    from concf.data.ids import Ids
    from concf.inference.frames import Arrays, Arrow, Frame, Pandas, Polars
    from concf.inference.lookup import ByUser, Column, Histories, ItemIds, ItemsByUser, UserIds, Users
    from concf.inference.titles import Catalogue

Block = tuple[NDArray[Any], list[Short]]  # ids of some users, and their lists
NONE: Positions = np.empty(0, np.int64)


class ListOptions(RuleOptions, total=False):
    """Options of `stream`; see `recommend`."""

    by: str | None
    filter_viewed: bool
    items: ItemsByUser | None
    exclude: ItemsByUser | None
    unknown: UnknownUsers
    unknown_items: UnknownItems


class Options(ListOptions, total=False):
    """Options of `recommend`."""

    history: Histories | None


class Similar(TypedDict, total=False):
    """Options of `similar_items`."""

    head: str | None
    unknown_items: UnknownItems


class Recommender:
    """Recommendations of a trained run, by its consensus or by one head.

        model = concf.Recommender.load("runs/mine")
        model.recommend(["alice", "bob"], k=5)

    run:   what `concf.train` or `concf.load_run` gives
    frame: the library of the frames that are returned: polars, pandas or arrow; or arrays, for (ids, scores)
    """

    frame: Library = "polars"
    _ranker: Ranker | None = None

    def __init__(self, run: Run, frame: Library = "polars") -> None:
        self._ranker, self.frame = Ranker(run), frame

    @classmethod
    def load(cls, folder: str | Path, data: str | Path | None = None, frame: Library = "polars") -> Self:
        """The model in the folder of a run (`concf train`, `ConCF.save`, or `fit` and `train` with `out`).

        data: the folder of its data set, if that has moved. frame: see the class
        """
        return cls(load_run(folder, data), frame)

    def add_items(self, catalogue: str | Path | Catalogue | pl.DataFrame | pd.DataFrame | pa.Table) -> Self:
        """Recommend the items of a catalogue that the log does not have too, by what their attributes say.

            model.add_items("items.parquet").recommend("alice")

        A linear map from attributes to the vectors of each head is learned from the items of the log, and those of them
        that few have used are shrunk towards it (docs/new-items.md). Another call begins from the log again. Returns
        the model itself.

        catalogue: a file or frame with a row for each item, new ones and those of the log; its other columns are used
        """
        self._ranker = Ranker(self.run, items=catalogue_of(catalogue))
        return self

    @property
    def ranker(self) -> Ranker:
        """Ranks positions of users and items."""
        if self._ranker is None:
            raise ConfigError("nothing was learned yet: call fit(data) first, or ConCF.load(folder)")
        return self._ranker

    @property
    def run(self) -> Run:
        """The run: settings, history, data, and each head and consensus at its best epoch."""
        return self.ranker.run

    @property
    def user_ids(self) -> Ids:
        """The users of the log; `user_ids.values` is an array in the order of `user_factors`."""
        return self.run.data.interactions.user_ids

    @property
    def item_ids(self) -> Ids:
        """The items of the log, and new ones; `item_ids.values` is an array in the order of `item_factors`."""
        return self.ranker.item_ids

    @property
    def viewed(self) -> csr_array:
        """[users, items] everything in the log, including held-out items."""
        return self.ranker.viewed

    @property
    def default(self) -> str:
        """What recommends if `by` is not given: the consensus, or the only head."""
        return CONSENSUS if CONSENSUS in self.ranker.names else self.run.best_head()

    @overload
    def recommend(
        self, users: Users = None, k: int = 10, *, frame: None = None, **options: Unpack[Options]
    ) -> Frame: ...
    @overload
    def recommend(
        self, users: Users = None, k: int = 10, *, frame: Polars, **options: Unpack[Options]
    ) -> pl.DataFrame: ...
    @overload
    def recommend(
        self, users: Users = None, k: int = 10, *, frame: Pandas, **options: Unpack[Options]
    ) -> pd.DataFrame: ...
    @overload
    def recommend(self, users: Users = None, k: int = 10, *, frame: Arrow, **options: Unpack[Options]) -> pa.Table: ...
    @overload
    def recommend(  # type: ignore[overload-overlap]  # text is iterable too
        self, users: Id, k: int = 10, *, history: ItemIds | None = None, frame: Arrays, **options: Unpack[ListOptions]
    ) -> OneList: ...
    @overload
    def recommend(
        self, users: Column | None = None, k: int = 10, *, frame: Arrays, **options: Unpack[ListOptions]
    ) -> ManyLists: ...
    @overload
    def recommend(  # type: ignore[overload-overlap]  # a mapping is iterable too
        self, users: None = None, k: int = 10, *, history: ByUser, frame: Arrays, **options: Unpack[ListOptions]
    ) -> ManyLists: ...
    @overload
    def recommend(
        self, users: None = None, k: int = 10, *, history: ItemIds, frame: Arrays, **options: Unpack[ListOptions]
    ) -> OneList: ...
    def recommend(
        self,
        users: Users = None,
        k: int = 10,
        *,
        by: str | None = None,
        filter_viewed: bool = True,
        items: ItemsByUser | None = None,
        exclude: ItemsByUser | None = None,
        unknown: UnknownUsers = "raise",
        unknown_items: UnknownItems = "ignore",
        history: Histories | None = None,
        frame: Library | None = None,
        **rules: Unpack[RuleOptions],
    ) -> Frame | ManyLists | OneList:
        """The best k items of each user, best first.

            model.recommend("alice")
            model.recommend(["alice", "bob"], k=5, exclude=["sold out"])
            model.recommend(history=["a", "c"])
            model.recommend("alice", catalogue="items.parquet", where="price < 20", at_most={"category": 2})

        Returns a frame `user_id, item_id, score, rank` (from 1) in the library of the log that was fitted, or with
        frame="arrays" (ids, scores): [users, k] each, or [k] for a single user; where a list is shorter, ids are -1
        (text: None) and scores -inf.

        users:   an id, several (a list, an array, a column of a frame), or None for everyone
        k:       the length of the lists, 1 or more
        by:      "consensus" (the default), "R-consensus", or the name of a head
        filter_viewed: leave out what the user has used, including held-out items. If False, the voters of a consensus
                 rank again and agree by rank alone, since the lists that it keeps are without training items
        items:   only these may be recommended: to everyone, or as a mapping of users to items
        exclude: these may not be recommended: to anyone, or as a mapping
        unknown: users whom the log does not have: "raise" an error, or recommend what is most "popular"
        unknown_items: items of `items`, `exclude` and `history` that the log does not have, or that a filter left out:
                 "ignore" them with a `ConcfWarning`, or raise an "error"
        history: what a new user has used: items, or for several users a mapping of names to items. To a user of the log
                 they are added. The users are folded in (`concf.strong.fold_in`); their consensus is
                 re-ranked as that of others, or by rank alone where there is no re-ranker. Without any known item the
                 list is that of the average user
        frame:   polars, pandas, arrow or arrays; None: the library of the log
        rules:   as follows (docs/recommending.md). Scores stay: a list that is reordered is not sorted by them

        catalogue: a file or frame with a row for each item, whose columns are attributes
        where:     only items for which this SQL condition on the catalogue's columns holds
        at_most:   a column of the catalogue -> how many items with the same value a list may have
        diversity: from 0 to 1, how much an item loses by its similarity to those above it (MMR)
        popularity_penalty: from 0 to 1, how much an item loses by its popularity
        """
        k = check_count("k", k)
        check_names("recommend", rules.keys() - RuleOptions.__annotations__.keys(), [*Options.__annotations__, "frame"])
        names, blocks = self.blocks(
            users, k, history, by=by, filter_viewed=filter_viewed, items=items, exclude=exclude, unknown=unknown,
            unknown_items=unknown_items, **rules,
        )  # fmt: skip
        lists = [each for _, block in blocks for each in block]
        if (frame or self.frame) == "arrays":
            single = users is not None and is_one(users) if history is None else not isinstance(history, Mapping)
            return as_arrays(lists, k, self.item_ids, single)
        return as_frame(long_table(names, lists, self.item_ids, self._kind(names)), frame or self.frame)

    def stream(self, users: Users = None, k: int = 10, **options: Unpack[ListOptions]) -> Iterator[pa.Table]:
        """The lists of `recommend` as Arrow tables of some thousand users each, in bounded memory.

        Errors and warnings come at once, before the first table. options: see `recommend`
        """
        check_names("stream", options, ListOptions.__annotations__)
        names, blocks = self.blocks(users, check_count("k", k), None, **options)
        kind = self._kind(names)
        return (long_table(some, lists, self.item_ids, kind) for some, lists in blocks)

    def short(self, users: Positions, ks: Sequence[int], by: str, *, filter_viewed: bool = True) -> list[Short]:
        """The lists of a few users of the log as (item positions, scores), without ids and frames."""
        hidden = [self._hidden(user, self._viewed(user) if filter_viewed else NONE) for user in users.tolist()]
        return self.ranker.short(users, ks, by, hidden, anew=not filter_viewed)

    def blocks(
        self, users: Users, k: int, history: Histories | None, *, by: str | None = None,
        filter_viewed: bool = True, items: ItemsByUser | None = None, exclude: ItemsByUser | None = None,
        unknown: UnknownUsers = "raise", unknown_items: UnknownItems = "ignore", size: int | None = None,
        say: Callable[[str], None] = note, **rules: Unpack[RuleOptions],
    ) -> tuple[NDArray[Any], Iterator[Block]]:  # fmt: skip
        """The ids of the users, and their lists block by block; all arguments are checked before the first.

        size: users of a block; None: as many as memory allows. say: is told of a condition that few items fulfil. Other
        arguments: see `recommend`
        """
        by = self.ranker.known(self.default if by is None else by)
        if unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {unknown!r}: choose raise or popular")
        lookup = ItemLookup(self.item_ids, unknown_items)
        used = None if history is None else self._histories(users, history, lookup)
        given = users if used is None else list(used)
        names = self.user_ids.values if given is None else as_array(given)
        rows = self._rows(names, unknown) if used is None else NONE
        places = rows if used is None else self._rows(names, "popular")
        allow, deny = lookup.by_user(names, items, "items"), lookup.by_user(names, exclude, "exclude")
        lookup.report()
        if not len(names):
            note("no users were asked for: there is nothing to recommend")
        histories = None if used is None else list(used.values())
        head = by if by in self.ranker.heads else self.run.best_head()
        ruled = rules_of(self.ranker, self.item_ids, head, **rules)
        if ruled and (few := ruled.note(k)):
            say(few)
        chosen = self.run.settings.consensus
        stored = filter_viewed and (used is None or self.ranker.reranks)
        kept = chosen.shown if stored else chosen.top_k or len(self.item_ids)
        kept = 0 if by in self.ranker.heads or allow is not None else kept

        def draw(at: Positions, k: int, hidden: Sequence[Positions], among: Positions | None) -> list[Short]:
            if histories is not None:
                return self.ranker.of_histories([histories[row] for row in at], k, by, hidden, among)
            anew = not filter_viewed or among is not None
            lists = self.ranker.short(rows[at].clip(min=0), [k] * len(at), by, hidden, anew=anew, among=among)
            for row in np.flatnonzero(rows[at] < 0).tolist():
                lists[row] = highest(self.ranker.popularity.copy(), k, hidden[row])
            return lists

        def blocks() -> Iterator[Block]:
            step = size or self.ranker.block()
            for begin in range(0, max(len(names), 1), step):
                at = np.arange(begin, min(begin + step, len(names)))
                seen = (
                    [self._viewed(row) for row in rows[at].tolist()]
                    if histories is None
                    else [histories[row] for row in at]
                )
                seen = seen if filter_viewed else [NONE] * len(at)
                seen = [self._hidden(row, each) for row, each in zip(places[at].tolist(), seen, strict=True)]
                hidden, among = hidden_items(names[at].tolist(), seen, allow, deny, len(self.item_ids))
                lists = ruled.lists(draw, at, k, hidden, among, kept) if ruled else draw(at, k, hidden, among)
                yield names[at], lists

        return names, blocks()

    def _histories(self, users: Users, history: Histories, lookup: ItemLookup) -> dict[Any, Positions]:
        """Name -> the positions of the items that were used, according to the history and to the log."""
        if isinstance(history, Mapping):
            if users is not None:
                raise ConfigError("a mapping of histories names its users itself; leave `users` out")
            several = {plain(name): as_array(items) for name, items in history.items()}
        elif users is not None and not is_one(users):
            raise ConfigError("a history is one user's; for several give a mapping of users to histories")
        else:
            several = {plain(users): as_array(history)}
        rows = positions(self.user_ids, as_array(list(several))).tolist()
        used = {
            name: np.union1d(lookup.known(items, "history"), self._viewed(row)).astype(np.int64)
            for (name, items), row in zip(several.items(), rows, strict=True)
        }
        emptied = sum(len(items) > 0 and not len(used[name]) for name, items in several.items())
        if emptied:
            note(f"history: {emptied} of {len(used)} have no known item, and get the list of the average user")
        return used

    def _kind(self, names: NDArray[Any]) -> pa.DataType:
        """The type of a column of the users' ids; unknown users may have ids of another type than the log's."""
        given = [] if names is self.user_ids.values else [each for each in names.tolist() if each is not None]
        if not given:
            return kind_of(self.user_ids)
        if all(map(is_integer, given)):
            return pa.int64()
        if all(isinstance(each, str) for each in given):
            return pa.string()
        raise DataError("users: expected integers of 64 bits or text, and the same for all of them")

    def _rows(self, names: NDArray[Any], unknown: UnknownUsers = "raise") -> Positions:
        """[n] the position of each user, -1 for an unknown one."""
        if names is self.user_ids.values:
            return np.arange(len(names))
        rows = positions(self.user_ids, names)
        if unknown == "raise" and (rows < 0).any():
            raise DataError(
                f"no user is called {names[rows < 0][0]!r} in the log (its ids are {kind_in_words(self.user_ids)}). "
                "With unknown='popular' (--popular on the command line) unknown users get the most popular items"
            )
        return rows

    def _hidden(self, row: int, seen: Positions) -> Positions:
        """What a user is not shown: these, and what it dislikes."""
        ends = self.ranker.disliked.indptr
        disliked = self.ranker.disliked.indices[ends[row] : ends[row + 1]] if row >= 0 else NONE
        return np.union1d(seen, disliked).astype(np.int64) if len(disliked) else seen

    def _viewed(self, row: int) -> Positions:
        """The positions of the items that a user has used; none for an unknown user (-1)."""
        ends = self.viewed.indptr
        used: Positions = self.viewed.indices[ends[row] : ends[row + 1]] if row >= 0 else NONE
        return used

    @overload
    def similar_items(
        self, items: ItemIds, k: int = 10, *, frame: None = None, **options: Unpack[Similar]
    ) -> Frame: ...
    @overload
    def similar_items(
        self, items: ItemIds, k: int = 10, *, frame: Polars, **options: Unpack[Similar]
    ) -> pl.DataFrame: ...
    @overload
    def similar_items(
        self, items: ItemIds, k: int = 10, *, frame: Pandas, **options: Unpack[Similar]
    ) -> pd.DataFrame: ...
    @overload
    def similar_items(self, items: ItemIds, k: int = 10, *, frame: Arrow, **options: Unpack[Similar]) -> pa.Table: ...
    @overload
    def similar_items(self, items: Id, k: int = 10, *, frame: Arrays, **options: Unpack[Similar]) -> OneList: ...  # type: ignore[overload-overlap]
    @overload
    def similar_items(self, items: Column, k: int = 10, *, frame: Arrays, **options: Unpack[Similar]) -> ManyLists: ...
    def similar_items(
        self,
        items: ItemIds,
        k: int = 10,
        *,
        head: str | None = None,
        unknown_items: UnknownItems = "ignore",
        frame: Library | None = None,
    ) -> Frame | ManyLists | OneList:
        """The k items nearest to each by the cosine of a head's vectors: `item_id, similar_id, score, rank`.

        items: an id, or several
        k:     the length of the lists, 1 or more
        head:  whose vectors; None: those of the best head
        unknown_items: items among several that the log does not have: "ignore" them with a `ConcfWarning` (with
               frame="arrays" their lists are empty), or raise an "error". A single unknown item is an error
        frame: polars, pandas, arrow or arrays; None: the library of the log
        """
        lookup = ItemLookup(self.item_ids, "error" if is_one(items) else unknown_items)
        rows = lookup.positions(items, "items")
        lookup.report()
        return self._similar("item", rows, k, head, frame or self.frame, is_one(items))

    @overload
    def similar_users(self, users: UserIds, k: int = 10, *, head: str | None = None, frame: None = None) -> Frame: ...
    @overload
    def similar_users(self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Polars) -> pl.DataFrame: ...
    @overload
    def similar_users(self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Pandas) -> pd.DataFrame: ...
    @overload
    def similar_users(self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Arrow) -> pa.Table: ...
    @overload
    def similar_users(self, users: Id, k: int = 10, *, head: str | None = None, frame: Arrays) -> OneList: ...  # type: ignore[overload-overlap]
    @overload
    def similar_users(self, users: Column, k: int = 10, *, head: str | None = None, frame: Arrays) -> ManyLists: ...
    def similar_users(
        self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Library | None = None
    ) -> Frame | ManyLists | OneList:
        """The k users nearest to each by the cosine of a head's vectors: `user_id, similar_id, score, rank`.

        users: an id of the log, or several
        k:     the length of the lists, 1 or more
        head:  whose vectors; None: those of the best head
        frame: polars, pandas, arrow or arrays; None: the library of the log
        """
        return self._similar("user", self._rows(as_array(users)), k, head, frame or self.frame, is_one(users))

    def _similar(
        self, side: Literal["user", "item"], rows: Positions, k: int, head: str | None, frame: Library, single: bool
    ) -> Frame | ManyLists | OneList:
        """rows: positions of users or items, -1 for an unknown one."""
        if not len(rows):
            note(f"no {side}s were asked for: there is nothing to compare")
        ids = self.item_ids if side == "item" else self.user_ids
        k = min(check_count("k", k), len(ids) - 1)
        vectors = torch.nn.functional.normalize(getattr(self.ranker.factors(self._head(head)), side), dim=1)
        cosines = (vectors[rows.clip(min=0)] @ vectors.T).numpy()
        lists = [
            highest(cosine, max(k, 1), np.array([row])) if row >= 0 else (NONE, NONE.astype(np.float32))
            for cosine, row in zip(cosines, rows, strict=True)
        ]
        if frame == "arrays":
            return as_arrays(lists, k, ids, single)
        columns = (f"{side}_id", "similar_id", "score", "rank")
        return as_frame(long_table(ids.values[rows], lists, ids, kind_of(ids), columns), frame)

    def _head(self, head: str | None) -> str:
        if head is not None and head not in self.ranker.heads:
            raise ConfigError(f"no head is called {head!r}; choose from {', '.join(self.ranker.heads)}")
        return head or self.run.best_head()

    def user_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[users, d + 1] vectors whose inner product with the items' is the head's score; None: of the best head."""
        return self.ranker.vectors(self._head(head))[0]

    def item_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[items, d + 1] the items' vectors, their bias last; None: of the best head."""
        return self.ranker.vectors(self._head(head))[1]

    def explain(self, user: Id, item: Id) -> Explanation:
        """Why an item has its rank in a user's consensus list, at the best epoch of the consensus.

            model.explain("alice", "a")["heads"]  # the rank, R, C, vote and score of each head

        Returns a dictionary: user, item, rank, importance (Eq. 12), reranked, used_in_training, heads; see
        `concf.inference.explain.Explanation`.
        """
        row = int(self._rows(as_array(user))[0])
        index = int(ItemLookup(self.item_ids, "error").positions(item, "item")[0])
        return explain(self.ranker, row, index, user, item)
