"""What a run recommends, in the ids of the log that it learned from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.consensus.settings import CONSENSUS
from concf.errors import ConfigError, DataError, note
from concf.evaluation.ranking import top_k
from concf.inference.frames import Frame, Library, as_frame, kind_of, long_table
from concf.inference.lookup import (
    Histories,
    Id,
    ItemIds,
    ItemLookup,
    ItemsByUser,
    UnknownItems,
    UnknownUsers,
    UserIds,
    as_array,
    is_integer,
    is_one,
    kind_in_words,
    named,
    positions,
)
from concf.inference.ranker import Allowed, Places, Ranker, Short, rows_of
from concf.runtime.arguments import check_count
from concf.training.checkpoint import load_run
from concf.training.run import Run

Block = tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float32]]  # [b] users, [b, k] items and scores


@dataclass(frozen=True)
class Restrictions:
    """What may be shown. items, exclude: positions for everyone, or by user; None: no such list."""

    filter_viewed: bool
    items: Places | dict[Any, Places] | None
    exclude: Places | dict[Any, Places] | None


class Recommender:
    """Recommendations by one head or by the consensus; what a user has used in the log is not shown again.

    frame: the library of the frames that are given back: polars, pandas, arrow, or arrays for (ids, scores)
    """

    def __init__(self, run: Run, frame: Library = "polars") -> None:
        self.run, self.frame, self.ranker = run, frame, Ranker(run)
        self.user_ids, self.item_ids = run.data.interactions.user_ids, run.data.interactions.item_ids

    @classmethod
    def load(cls, folder: str | Path, data: str | Path | None = None, frame: Library = "polars") -> Recommender:
        """Of the run in a folder. data: where its data set is, if it has moved."""
        return cls(load_run(folder, data), frame)

    @cached_property
    def viewed(self) -> Any:
        """[users, items] everything in the log, what was held out too."""
        return self.run.data.interactions.matrix()

    @property
    def default(self) -> str:
        """The consensus, or the one head there is."""
        return CONSENSUS if CONSENSUS in self.ranker.names else self.run.best_head()

    def recommend(
        self,
        users: UserIds | None = None,
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
    ) -> Frame:
        """The best k items of each user: a frame `user_id, item_id, score, rank` (from 1), or (ids, scores) arrays.

        users:   an id, several, or None for everyone
        by:      consensus, R-consensus or a head; if not said, the consensus
        filter_viewed: leave out what the user has used; if not, a consensus is by rank alone, since the lists that are
                 kept leave it out
        items:   only these may be shown, for everyone or by user; every head ranks all of them
        exclude: these may not be shown, for everyone or by user
        unknown: what becomes of a user whom the log does not have: an error, or what is used most
        unknown_items: what becomes of items of `items`, `exclude` and `history` that the log does not have, or that a
                 filter left out: they are left out, with a warning that names some, or are an error
        history: what a new user has used: items, or a mapping of names to items for several. A user of the log has
                 used these *too*. Such users are folded in (see `concf.inference.fold_in`); a consensus of theirs is by
                 rank alone, since no head has ranked for them over time. With no known item it is the average user's
        """
        asked, blocks = self._answer(users, k, by, filter_viewed, items, exclude, unknown, unknown_items, history)
        found = list(blocks)
        if (frame or self.frame) == "arrays":
            _, places, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
            ids = named(self.item_ids, places)
            single = users is not None and is_one(users) if history is None else not isinstance(history, Mapping)
            return (ids[0], scores[0]) if single else (ids, scores)
        kind = self._kind(asked)
        tables = [long_table(*block, self.item_ids, kind) for block in found]
        return as_frame(pa.concat_tables(tables), frame or self.frame)

    def stream(
        self,
        users: UserIds | None = None,
        k: int = 10,
        *,
        by: str | None = None,
        filter_viewed: bool = True,
        items: ItemsByUser | None = None,
        exclude: ItemsByUser | None = None,
        unknown: UnknownUsers = "raise",
        unknown_items: UnknownItems = "ignore",
    ) -> Iterator[pa.Table]:
        """The same as Arrow tables of some thousand users each, however many there are.

        What is wrong or to be noted is said at once, before the first table is asked for.
        """
        asked, blocks = self._answer(users, k, by, filter_viewed, items, exclude, unknown, unknown_items)
        kind = self._kind(asked)
        return (long_table(*block, self.item_ids, kind) for block in blocks)

    def short(self, users: Places, ks: Sequence[int], by: str, *, filter_viewed: bool = True) -> list[Short]:
        """(items, scores) of a few users of the log at once: what `recommend` gives, as positions, without frames."""
        if not filter_viewed and by not in self.ranker.heads:
            places, scores = self.ranker.lists(
                users, max(ks), by, self._allowed(users, users, Restrictions(False, None, None))
            )
            rows = ((row[:k] >= 0, row[:k], figures[:k]) for row, figures, k in zip(places, scores, ks, strict=True))
            return [(items[there], figures[there]) for there, items, figures in rows]
        begins, items = self.viewed.indptr, self.viewed.indices
        end = begins[1:] if filter_viewed else begins
        return self.ranker.short(users, ks, by, [items[begins[user] : end[user]] for user in users.tolist()])

    def _answer(
        self, users: UserIds | None, k: int, by: str | None, filter_viewed: bool, items: ItemsByUser | None,
        exclude: ItemsByUser | None, unknown: UnknownUsers, unknown_items: UnknownItems,
        history: Histories | None = None,
    ) -> tuple[NDArray[Any], Iterator[Block]]:  # fmt: skip
        """The users who are asked for, and their lists block by block; everything is checked before the first."""
        k, by = check_count("k", k), self.ranker.known(self.default if by is None else by)
        if unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {unknown!r}: choose raise or popular")
        lookup = ItemLookup(self.item_ids, unknown_items)
        histories = None if history is None else self._histories(users, history, lookup)
        asked = self._asked(users) if histories is None else self._asked(list(histories))
        restrictions = Restrictions(
            filter_viewed, lookup.by_user(asked, items, "items"), lookup.by_user(asked, exclude, "exclude")
        )
        if histories is None:
            blocks = self._blocks(asked, self._places(asked, unknown), k, by, restrictions)
        else:
            blocks = self._folded(asked, list(histories.values()), k, by, restrictions)
        lookup.report()
        if not len(asked):
            note("no users were asked for: there is nothing to recommend")
        return asked, blocks

    def _blocks(
        self, asked: NDArray[Any], places: Places, k: int, by: str, restrictions: Restrictions
    ) -> Iterator[Block]:
        for begin in range(0, max(len(asked), 1), self.ranker.block()):
            users, here = asked[begin : begin + self.ranker.block()], places[begin : begin + self.ranker.block()]
            allowed = self._allowed(users, here, restrictions)
            found = self.ranker.lists(np.maximum(here, 0), k, by, allowed)
            strangers = here < 0
            if strangers.any():
                popular = self._popular(allowed.blocked[strangers], k)
                for mine, theirs in zip(found, popular, strict=True):
                    mine[strangers] = theirs
            yield users, *found

    def _histories(self, users: UserIds | None, history: Histories, lookup: ItemLookup) -> dict[Any, Places]:
        """Name -> the positions of what it used, with what the log has of it."""
        if isinstance(history, Mapping):
            if users is not None:
                raise ConfigError("a mapping of histories names its users itself; leave `users` out")
            several = {name: as_array(used) for name, used in history.items()}
        elif users is not None and not is_one(users):
            raise ConfigError("a history is one user's; for several give a mapping of users to histories")
        else:
            several = {users: as_array(history)}
        places = positions(self.user_ids, as_array(list(several))).tolist()
        logged = [self.viewed[[place]].indices if place >= 0 else () for place in places]
        found = {
            name: np.union1d(lookup.known(used, "history"), before).astype(np.int64)
            for (name, used), before in zip(several.items(), logged, strict=True)
        }
        emptied = sum(len(used) > 0 and not len(found[name]) for name, used in several.items())
        if emptied:
            note(f"history: {emptied} of {len(found)} have no known item, and get the list of the average user")
        return found

    def _folded(
        self, asked: NDArray[Any], used: list[Places], k: int, by: str, restrictions: Restrictions
    ) -> Iterator[Block]:
        for begin in range(0, max(len(used), 1), self.ranker.block()):
            users, here = asked[begin : begin + self.ranker.block()], used[begin : begin + self.ranker.block()]
            ends = np.cumsum([0, *map(len, here)])
            row = np.concatenate(here) if here else np.empty(0, np.int64)
            matrix = csr_array((np.ones(len(row), np.float32), row, ends), shape=(len(here), len(self.item_ids)))
            allowed = self._allowed(users, np.full(len(here), -1), restrictions)
            if restrictions.filter_viewed:
                allowed.blocked[:] |= rows_of(matrix, np.arange(len(here)))
            yield users, *self.ranker.of_histories(matrix, k, by, allowed)

    def _asked(self, users: UserIds | None) -> NDArray[Any]:
        return self.user_ids.values if users is None else as_array(users)

    def _kind(self, asked: NDArray[Any]) -> pa.DataType:
        """The type of a column of the asked ids; strangers among them may have another than the log's."""
        given = [] if asked is self.user_ids.values else [each for each in asked.tolist() if each is not None]
        if not given:
            return kind_of(self.user_ids)
        for fits, kind in ((is_integer, pa.int64()), (lambda each: isinstance(each, str), pa.string())):
            if all(map(fits, given)):
                return kind
        raise DataError("users: expected integers of 64 bits or text, and the same for all of them")

    def _places(self, asked: NDArray[Any], unknown: UnknownUsers = "raise") -> Places:
        if asked is self.user_ids.values:
            return np.arange(len(asked))
        places = positions(self.user_ids, asked)
        if unknown == "raise" and (places < 0).any():
            stranger = asked[places < 0][0]
            raise DataError(
                f"no user is called {stranger!r} in the log (its ids are {kind_in_words(self.user_ids)}). "
                "Ask for unknown='popular' (--popular on the command line) to give strangers what is used most"
            )
        return places

    def _allowed(self, users: NDArray[Any], places: Places, restrictions: Restrictions) -> Allowed:
        blocked = np.zeros((len(users), len(self.item_ids)), bool)
        known = places >= 0
        if restrictions.filter_viewed and known.any():
            blocked[known] = rows_of(self.viewed, places[known])
        for row, denied in _by_row(users, restrictions.exclude):
            blocked[row, denied] = True
        if restrictions.items is None:
            return Allowed(blocked, viewed=not restrictions.filter_viewed)
        permitted = np.zeros_like(blocked)
        for row, few in _by_row(users, restrictions.items):
            permitted[row, few] = True
        return Allowed(blocked | ~permitted, np.flatnonzero(permitted.any(0)), viewed=not restrictions.filter_viewed)

    def _popular(self, blocked: NDArray[np.bool_], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """For strangers: what most users have used, ties by position; the score is their number."""
        counts = torch.from_numpy(np.bincount(self.viewed.indices, minlength=len(self.item_ids)).astype(np.float32))
        scores = counts.expand(len(blocked), -1).masked_fill(torch.from_numpy(blocked), -torch.inf)
        values, places = top_k(scores, min(k, scores.shape[1]))
        items = places.masked_fill(values == -torch.inf, -1)
        short = k - items.shape[1]
        return (
            np.pad(items.numpy().astype(np.int32), ((0, 0), (0, short)), constant_values=-1),
            np.pad(values.numpy(), ((0, 0), (0, short)), constant_values=-np.inf),
        )

    def similar_items(
        self,
        items: ItemIds,
        k: int = 10,
        *,
        head: str | None = None,
        unknown_items: UnknownItems = "ignore",
        frame: Library | None = None,
    ) -> Frame:
        """The k items nearest to each by the cosine of a head's vectors: `item_id, similar_id, score, rank`.

        items: an id, or several
        head:  whose vectors; if not said, the best head's
        unknown_items: what becomes of items among several that the log does not have: they have no rows (with arrays
               empty places), with a warning, or are an error. A single one is an error anyway
        """
        lookup = ItemLookup(self.item_ids, "error" if is_one(items) else unknown_items)
        places = lookup.places(items, "items")
        lookup.report()
        return self._similar("item", places, k, head, frame, is_one(items))

    def similar_users(
        self, users: UserIds, k: int = 10, *, head: str | None = None, frame: Library | None = None
    ) -> Frame:
        """The k users nearest to each by the cosine of a head's vectors: `user_id, similar_id, score, rank`."""
        return self._similar("user", self._places(as_array(users)), k, head, frame, is_one(users))

    def _similar(
        self, side: str, places: Places, k: int, head: str | None, frame: Library | None, single: bool
    ) -> Frame:
        """places: -1 for one that has nothing similar."""
        if not len(places):
            note(f"no {side}s were asked for: there is nothing to compare")
        ids = self.item_ids if side == "item" else self.user_ids
        k, known = min(check_count("k", k), len(ids) - 1), np.flatnonzero(places >= 0)
        here = torch.from_numpy(places[known])
        vectors = torch.nn.functional.normalize(getattr(self.ranker.factors(self._head(head)), side), dim=1)
        products = vectors[here] @ vectors.T
        products[torch.arange(len(here)), here] = -torch.inf
        values, found = top_k(products, k)
        nearest, scores = np.full((len(places), k), -1, np.int32), np.full((len(places), k), -np.inf, np.float32)
        nearest[known], scores[known] = found.numpy(), values.numpy()
        if (frame or self.frame) == "arrays":
            listed = named(ids, nearest)
            return (listed[0], scores[0]) if single else (listed, scores)
        table = long_table(ids.values[places], nearest, scores, ids, kind_of(ids))
        return as_frame(table.rename_columns([f"{side}_id", "similar_id", "score", "rank"]), frame or self.frame)

    def _head(self, head: str | None) -> str:
        if head is not None and head not in self.ranker.heads:
            raise ConfigError(f"no head is called {head!r}; choose from {', '.join(self.ranker.heads)}")
        return head or self.run.best_head()

    def user_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[users, d + 1] vectors whose inner product with the items' is the head's score; of the best head, if none."""
        vectors = self.ranker.factors(self._head(head)).user.numpy()
        return np.concatenate([vectors, np.ones((len(vectors), 1), np.float32)], 1)

    def item_factors(self, head: str | None = None) -> NDArray[np.float32]:
        """[items, d + 1] the items' vectors, their bias last."""
        factors = self.ranker.factors(self._head(head))
        bias = torch.zeros(len(factors.item)) if factors.bias is None else factors.bias
        return np.concatenate([factors.item.numpy(), bias[:, None].numpy()], 1)

    def explain(self, user: Id, item: Id) -> dict[str, Any]:
        """Why an item stands where it stands for a user, at the epoch of the consensus' best.

        heads: of each head and fixed voter that votes its rank of the item (from 1, training items left out; of a fixed
        voter only among its first K), R (Eq. 10), its consistency C (Eq. 11), and its vote, their sum times its voter
        weight; 0 outside its first K places. importance: the mean of the votes (Eq. 12). re-ranked: the score that a
        re-ranker gives it, which then makes the list's order (what stands below the places that are re-ranked: 1 less
        each); None without one, and where the list does not have the item.
        """
        best = self.run.best.get(CONSENSUS)
        if best is None:
            raise ConfigError("a run of one head has no consensus to explain")
        votes = self.ranker.votes(CONSENSUS)
        if votes is None:
            raise DataError("this run kept no votes; train it again with this version to explain its consensus")
        (place,), (wanted,) = self._places(as_array(user)), ItemLookup(self.item_ids, "error").known(item, "item")
        seen = rows_of(self.run.data.train, np.array([place]))[0]
        heads = votes.cast(int(place), int(wanted))
        for each in heads:
            factors = self.ranker.voters.get(each["head"])
            own = None if factors is None else factors.scores(torch.tensor([place]))[0]
            each["score"] = None if own is None else float(own[wanted])
            if own is not None and each["rank"] is None:
                scores = own.masked_fill(torch.from_numpy(seen), -torch.inf)
                ahead = (scores > scores[wanted]) | ((scores == scores[wanted]) & (torch.arange(len(scores)) < wanted))
                each["rank"] = int(ahead.sum())
            each["rank"] = None if seen[wanted] or each["rank"] is None else each["rank"] + 1
        worth = votes.worth(int(place), np.array([wanted], np.int32))[0]
        listed = [] if best.lists is None else best.lists[int(place)].tolist()
        return {
            "user": user,
            "item": item,
            "rank": listed.index(wanted) + 1 if wanted in listed else None,
            "importance": sum(each["vote"] for each in heads) / len(heads),
            "reranked": None if votes.reranked is None or worth == -np.inf else float(worth),
            "used_in_training": bool(seen[wanted]),
            "heads": heads,
        }


def _by_row(users: NDArray[Any], listed: Places | dict[Any, Places] | None) -> Iterator[tuple[Any, Places]]:
    """(row or all rows, item positions) of an allow or deny list."""
    if isinstance(listed, dict):
        yield from ((row, listed[user]) for row, user in enumerate(users.tolist()) if user in listed)
    elif listed is not None:
        yield slice(None), listed
