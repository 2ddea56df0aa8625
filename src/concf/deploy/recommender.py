"""What a run recommends, in the ids of the log that it learned from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.ids import Ids
from concf.deploy.frames import Library, as_frame, kind_of, long_table
from concf.deploy.ranking import Allowed, Places, Ranker, Short, rows_of
from concf.errors import ConfigError, DataError
from concf.evaluation.ranking import top_k
from concf.learning.checkpoint import load_run
from concf.learning.run import Run
from concf.learning.settings import CONSENSUS

Listed = Sequence[Any] | NDArray[Any] | Mapping[Any, Sequence[Any]]  # for everyone, or by user


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
        users: Any = None,
        k: int = 10,
        *,
        by: str | None = None,
        filter_viewed: bool = True,
        items: Listed | None = None,
        exclude: Listed | None = None,
        unknown: Literal["raise", "popular"] = "raise",
        history: Any = None,
        frame: Library | None = None,
    ) -> Any:
        """The best k items of each user: a frame `user_id, item_id, score, rank` (from 1), or (ids, scores) arrays.

        users:   an id, several, or None for everyone
        by:      consensus, R-consensus or a head; if not said, the consensus
        items:   only these may be shown, for everyone or by user; every head ranks all of them
        exclude: these may not be shown, for everyone or by user
        unknown: what becomes of a user whom the log does not have: an error, or what is used most
        history: what a new user has used: items, or a mapping of names to items for several. A user of the log has
                 used these *too*. Such users are folded in (see `concf.deploy.folding`); a consensus of theirs is by
                 rank alone, since no head has ranked for them over time
        """
        if history is None:
            asked = self._asked(users)
            blocks = self._blocks(asked, k, by or self.default, filter_viewed, items, exclude, unknown)
        else:
            histories = self._histories(users, history)
            asked = self._asked(list(histories))
            blocks = self._folded(histories, k, by or self.default, filter_viewed, items, exclude)
        found = list(blocks)
        if (frame or self.frame) == "arrays":
            _, places, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
            ids = _named(self.item_ids, places)
            single = _is_one(users) if history is None else not isinstance(history, Mapping)
            return (ids[0], scores[0]) if single else (ids, scores)
        kind = self._kind(asked)
        tables = [long_table(*block, self.item_ids, kind) for block in found]
        return as_frame(pa.concat_tables(tables), frame or self.frame)

    def short(self, users: Places, ks: Sequence[int], by: str, *, filter_viewed: bool = True) -> list[Short]:
        """(items, scores) of a few users of the log at once: what `recommend` gives, as positions, without frames."""
        begins, items = self.viewed.indptr, self.viewed.indices
        end = begins[1:] if filter_viewed else begins
        return self.ranker.short(users, ks, by, [items[begins[user] : end[user]] for user in users.tolist()])

    def stream(self, users: Any = None, k: int = 10, **options: Any) -> Iterator[pa.Table]:
        """The same as Arrow tables of some thousand users each, however many there are."""
        options = {"filter_viewed": True, "items": None, "exclude": None, "unknown": "raise"} | options
        by = options.pop("by", None) or self.default
        asked, kind = self._asked(users), None
        for block in self._blocks(asked, k, by, **options):
            kind = kind or self._kind(asked)
            yield long_table(*block, self.item_ids, kind)

    def _blocks(
        self, asked: NDArray[Any], k: int, by: str, filter_viewed: bool, items: Listed | None, exclude: Listed | None,
        unknown: str,
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float32]]]:  # fmt: skip
        _refuse_no_place(k)
        self.ranker.known(by)
        places = self._places(asked, unknown)
        for begin in range(0, max(len(asked), 1), self.ranker.block()):
            users, here = asked[begin : begin + self.ranker.block()], places[begin : begin + self.ranker.block()]
            allowed = self._allowed(users, here, filter_viewed, items, exclude)
            found = self.ranker.lists(np.maximum(here, 0), k, by, allowed)
            strangers = here < 0
            if strangers.any():
                popular = self._popular(allowed.blocked[strangers], k)
                for mine, theirs in zip(found, popular, strict=True):
                    mine[strangers] = theirs
            yield users, *found

    def _histories(self, users: Any, history: Any) -> dict[Any, Places]:
        """Name -> the positions of what it used, with what the log has of it."""
        if isinstance(history, Mapping):
            if users is not None:
                raise ConfigError("a mapping of histories names its users itself; leave `users` out")
            named = dict(history)
        elif users is not None and not _is_one(users):
            raise ConfigError("a history is one user's; for several give a mapping of users to histories")
        else:
            named = {users: history}
        known = _positions(self.user_ids, self._asked(list(named)))
        return {
            name: np.union1d(self._items(used, "history"), self.viewed[[place]].indices if place >= 0 else [])
            .astype(np.int64)
            for (name, used), place in zip(named.items(), known.tolist(), strict=True)
        }  # fmt: skip

    def _folded(
        self, histories: dict[Any, Places], k: int, by: str, filter_viewed: bool, items: Listed | None,
        exclude: Listed | None,
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float32]]]:  # fmt: skip
        _refuse_no_place(k)
        everyone, used = self._asked(list(histories)), list(histories.values())
        for begin in range(0, max(len(used), 1), self.ranker.block()):
            users, here = everyone[begin : begin + self.ranker.block()], used[begin : begin + self.ranker.block()]
            ends = np.cumsum([0, *map(len, here)])
            row = np.concatenate(here) if here else np.empty(0, np.int64)
            matrix = csr_array((np.ones(len(row), np.float32), row, ends), shape=(len(here), len(self.item_ids)))
            strangers = np.full(len(here), -1)
            allowed = self._allowed(users, strangers, False, items, exclude)
            if filter_viewed:
                allowed.blocked[:] |= rows_of(matrix, np.arange(len(here)))
            yield users, *self.ranker.of_histories(matrix, k, by, allowed)

    def _asked(self, users: Any) -> NDArray[Any]:
        if users is None:
            return self.user_ids.values
        several = [users] if _is_one(users) else list(users)
        asked = np.empty(len(several), object)
        asked[:] = several
        return asked

    def _kind(self, asked: NDArray[Any]) -> pa.DataType:
        """The type of a column of the asked ids; strangers among them may have another than the log's."""
        named = [] if asked is self.user_ids.values else [each for each in asked.tolist() if each is not None]
        if not named:
            return kind_of(self.user_ids)
        for fits, kind in ((_is_integer, pa.int64()), (lambda each: isinstance(each, str), pa.string())):
            if all(map(fits, named)):
                return kind
        raise DataError("users: expected integers of 64 bits or text, and the same for all of them")

    def _places(self, asked: NDArray[Any], unknown: str) -> Places:
        if unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {unknown!r}: choose raise or popular")
        if asked is self.user_ids.values:
            return np.arange(len(asked))
        places = _positions(self.user_ids, asked)
        if unknown == "raise" and (places < 0).any():
            stranger = asked[places < 0][0]
            raise DataError(
                f"no user is called {stranger!r} in the log (its ids are {_kind(self.user_ids)}). "
                "Ask for unknown='popular' (--popular on the command line) to give strangers what is used most"
            )
        return places

    def _allowed(
        self, users: NDArray[Any], places: Places, filter_viewed: bool, items: Listed | None, exclude: Listed | None
    ) -> Allowed:
        blocked = np.zeros((len(users), len(self.item_ids)), bool)
        known = places >= 0
        if filter_viewed and known.any():
            blocked[known] = rows_of(self.viewed, places[known])
        for row, denied in self._by_user(users, exclude, "exclude"):
            blocked[row, denied] = True
        if items is None:
            return Allowed(blocked)
        permitted = np.zeros_like(blocked)
        for row, few in self._by_user(users, items, "items"):
            permitted[row, few] = True
        return Allowed(blocked | ~permitted, np.flatnonzero(permitted.any(0)))

    def _by_user(self, users: NDArray[Any], listed: Listed | None, name: str) -> Iterator[tuple[Any, Places]]:
        """(row or all rows, item positions) of an allow or deny list."""
        if listed is None:
            return
        if not isinstance(listed, Mapping):
            yield slice(None), self._items(listed, name)
            return
        for row, user in enumerate(users.tolist()):
            if user in listed:
                yield row, self._items(listed[user], name)

    def _items(self, listed: Any, name: str = "items") -> Places:
        several = [listed] if _is_one(listed) else list(listed)
        asked = np.empty(len(several), object)
        asked[:] = several
        places = _positions(self.item_ids, asked)
        if (places < 0).any():
            stranger = asked[places < 0][0]
            kind = _kind(self.item_ids)
            raise DataError(
                f"{name}: no item is called {stranger!r} in the log (its ids are {kind}), or a filter left it out"
            )
        return places

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

    def similar_items(self, items: Any, k: int = 10, *, head: str | None = None, frame: Library | None = None) -> Any:
        """The k items nearest to each by the cosine of a head's vectors: `item_id, similar_id, score, rank`."""
        return self._similar("item", self._items(items), k, head, frame, _is_one(items))

    def similar_users(self, users: Any, k: int = 10, *, head: str | None = None, frame: Library | None = None) -> Any:
        """The k users nearest to each by the cosine of a head's vectors: `user_id, similar_id, score, rank`."""
        return self._similar("user", self._places(self._asked(users), "raise"), k, head, frame, _is_one(users))

    def _similar(self, side: str, places: Places, k: int, head: str | None, frame: Library | None, single: bool) -> Any:
        _refuse_no_place(k)
        vectors = torch.nn.functional.normalize(getattr(self.ranker.factors(self._head(head)), side), dim=1)
        ids = self.item_ids if side == "item" else self.user_ids
        scores = vectors[torch.from_numpy(places)] @ vectors.T
        scores[torch.arange(len(places)), torch.from_numpy(places)] = -torch.inf
        values, found = top_k(scores, min(k, len(ids) - 1))
        nearest = found.numpy().astype(np.int32)
        if (frame or self.frame) == "arrays":
            named = _named(ids, nearest)
            return (named[0], values[0].numpy()) if single else (named, values.numpy())
        table = long_table(ids.values[places], nearest, values.numpy(), ids, kind_of(ids))
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

    def explain(self, user: Any, item: Any) -> dict[str, Any]:
        """Why an item stands where it stands for a user, at the epoch of the consensus' best.

        heads: of each head and guest that votes its rank of the item (from 1, training items left out; of a guest
        only among its first K), R (Eq. 10), its steadiness C (Eq. 11), and its vote, their sum times its voice; 0
        outside its first K places. importance: the mean of the votes (Eq. 12). judged: the score that a judge gives
        it, which then makes the list's order (what stands below the places that are judged: 1 less each); None without
        one, and where the list does not have the item.
        """
        best = self.run.best.get(CONSENSUS)
        if best is None:
            raise ConfigError("a run of one head has no consensus to explain")
        ballots = self.ranker.ballots(CONSENSUS)
        if ballots is None:
            raise DataError("this run kept no votes; train it again with this version to explain its consensus")
        (place,), (wanted,) = self._places(self._asked(user), "raise"), self._items([item])
        seen = rows_of(self.run.data.train, np.array([place]))[0]
        heads = ballots.cast(int(place), int(wanted))
        for each in heads:
            factors = self.ranker.voters.get(each["head"])
            own = None if factors is None else factors.scores(torch.tensor([place]))[0]
            each["score"] = None if own is None else float(own[wanted])
            if own is not None and each["rank"] is None:
                scores = own.masked_fill(torch.from_numpy(seen), -torch.inf)
                ahead = (scores > scores[wanted]) | ((scores == scores[wanted]) & (torch.arange(len(scores)) < wanted))
                each["rank"] = int(ahead.sum())
            each["rank"] = None if seen[wanted] or each["rank"] is None else each["rank"] + 1
        worth = ballots.worth(int(place), np.array([wanted], np.int32))[0]
        listed = [] if best.lists is None else best.lists[int(place)].tolist()
        return {
            "user": user,
            "item": item,
            "rank": listed.index(wanted) + 1 if wanted in listed else None,
            "importance": sum(each["vote"] for each in heads) / len(heads),
            "judged": None if ballots.judged is None or worth == -np.inf else float(worth),
            "used_in_training": bool(seen[wanted]),
            "heads": heads,
        }


def _is_one(value: Any) -> bool:
    return isinstance(value, str) or not hasattr(value, "__iter__")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def _refuse_no_place(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k = {k}: lists have 1 place or more")


def _kind(ids: Ids) -> str:
    return "integers" if ids.are_integers else "text"


def _positions(ids: Ids, asked: NDArray[Any]) -> Places:
    """[n] where the asked ids stand, -1 where they do not; a number and its text are not the same id."""
    fits = int if ids.are_integers else str
    known = np.array([_is_integer(each) if fits is int else isinstance(each, str) for each in asked.tolist()], bool)
    places = np.full(len(asked), -1, np.int64)
    if known.any():
        wanted = np.array([fits(value) for value in asked[known]], ids.values.dtype)
        at = np.searchsorted(ids.values, wanted).clip(max=len(ids) - 1)
        places[known] = np.where(ids.values[at] == wanted, at, -1)
    return places


def place_of(ids: Ids, asked: Any) -> int:
    """Where one id stands, -1 if it does not."""
    if not (_is_integer(asked) if ids.are_integers else isinstance(asked, str)):
        return -1
    at = bisect_left(ids.values, asked)
    return at if at < len(ids) and ids.values[at] == asked else -1


def _named(ids: Ids, places: NDArray[np.int32]) -> NDArray[Any]:
    """[b, k] the caller's ids; -1, or None for text, at an empty place."""
    named: NDArray[Any] = ids.values[np.maximum(places, 0)]
    named[places < 0] = -1 if ids.are_integers else None
    return named
