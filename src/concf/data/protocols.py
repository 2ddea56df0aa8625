"""Protocols that split interactions into a training, a validation and a test part.

A protocol assigns every interaction to a part, and no pair ever leaves its part. Held-out pairs that cannot be
evaluated are marked (`UNEVALUATED`): a validation pair needs a user and an item with a training pair, a test pair needs
both to have a pair outside the test part. With `paper` and `released` the item needs a training pair, and a user is
evaluated only with validation *and* test items, as published. `given` with a validation share marks nothing, because
published figures count every pair of the test file. With `new-users` the users who are evaluated have a history in
place of training items (`HISTORY`), and `new-items` tests on items that never occur in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from concf.data.filters import Filter
from concf.data.interactions import BLOCK_ROWS, Interactions
from concf.errors import DataError, option
from concf.runtime.settings import Settings

TRAIN, VALID, TEST, HISTORY = 0, 1, 2, 4
UNEVALUATED = 8  # added to the part of a held-out pair that cannot be evaluated
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST, "history": HISTORY}
Parts = NDArray[np.uint8]
HeldOut = Callable[[NDArray[np.int64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


def origin(parts: Parts) -> Parts:
    """[n] the part that each pair was assigned to, evaluated or not."""
    return np.asarray(parts & ~np.uint8(UNEVALUATED))


class _Protocol(Settings):
    both: ClassVar[bool] = False  # whether an evaluated user needs validation and test items

    def filter(self) -> Filter | None:
        """The filter that the protocol applies before it splits."""
        return None

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] the parts, with `UNEVALUATED` added to held-out pairs that cannot be evaluated."""
        return mark_unevaluable(interactions, parts, self.both)


class _Fractions(_Protocol):
    """Each user's eligible interactions (n of them) are shuffled; floor(valid n) and floor(test n) are held out."""

    valid: float = Field(0.2, gt=0, lt=1)  # share of a user's eligible interactions
    test: float = Field(0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> _Fractions:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid:g} + test {self.test:g} leave nothing to train on; their sum must be < 1"
            )
        return self

    def eligible(self, interactions: Interactions) -> NDArray[np.bool_]:
        """[n] which interactions may be held out."""
        return np.ones(len(interactions), bool)

    def held_out(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] eligible interactions validate and test."""
        return _floor(self.valid, total), _floor(self.test, total)

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        return f"Hold out a larger share ({option('valid')}, {option('test')}), or filter less"

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        return _draw(interactions.user, self.eligible(interactions), self.held_out, seed)


class Random(_Fractions):
    """`random`: every interaction is eligible.

    With `at_least`, each user holds out at least that many for validation and for test, unless that leaves nothing to
    train on. With 1, every user with three or more interactions is evaluated.
    """

    name: Literal["random"] = "random"
    at_least: int = Field(0, ge=0)  # held out per user and part, where the share is less; 0: the share alone

    def held_out(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] interactions validate and test."""
        shares = super().held_out(total)
        valid, test = (np.maximum(share, self.at_least) for share in shares)
        enough = valid + test < total
        return np.where(enough, valid, shares[0]), np.where(enough, test, shares[1])

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        if not self.at_least:
            return f"{super().advice()}; {option('at_least', 1)} evaluates every user with three items"
        return f"A user needs {2 * self.at_least + 1} items that others train on; filter less"


class Released(_Fractions):
    """`released`: users and items with fewer than 10 interactions are removed in one pass, then `random`."""

    name: Literal["released"] = "released"
    both: ClassVar[bool] = True

    def filter(self) -> Filter:
        """At least 10 and 10, distinct pairs, one pass."""
        return Filter(min_user=10, min_item=10)


class Paper(_Fractions):
    """`paper`: interactions whose user or item has fewer than 10 are never held out, and nothing is removed."""

    name: Literal["paper"] = "paper"
    both: ClassVar[bool] = True

    def eligible(self, interactions: Interactions) -> NDArray[np.bool_]:
        """[n] pairs whose user and item have 10 interactions or more."""
        per_user, per_item = interactions.per_user(), interactions.per_item()
        return (per_user >= 10)[interactions.user] & (per_item >= 10)[interactions.item]


class LeaveLast(_Protocol):
    """`leave-last`: each user's newest `last` interactions are the test part, those before the validation part.

    Interactions of one user at the same time are ordered by a draw from the seed. Users with `2 * last` or fewer
    interactions only train.
    """

    name: Literal["leave-last"] = "leave-last"
    last: int = Field(1, ge=1)

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        return f"Hold out fewer ({option('last')}), or filter less"

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        all_times, rng = _times(interactions, self.name), np.random.default_rng(seed)
        parts = np.full(len(interactions), TRAIN, np.uint8)
        for block in _blocks_of_users(interactions.user):
            user, time = interactions.user[block], all_times[block]
            newest_first = np.lexsort((rng.random(len(user)), -time, user))
            rank, total = _rank_in_group(user[newest_first])
            enough = total > 2 * self.last
            parts[block.start + newest_first] = np.select(
                [enough & (rank < self.last), enough & (rank < 2 * self.last)], [TEST, VALID], TRAIN
            )
        return parts


class TimeCut(_Protocol):
    """`time`: interactions from `test_from` on are the test part, those from `valid_from` on the validation part.

    A cut that is not given is set so that the fraction `test` (or `valid`) of the interactions comes after it.
    """

    name: Literal["time"] = "time"
    valid: float = Field(0.1, gt=0, lt=1)  # share of all interactions, if valid_from is not given
    test: float = Field(0.1, gt=0, lt=1)  # share of all interactions, if test_from is not given
    valid_from: float | None = None  # in the log's own unit; microseconds since 1970 for dates
    test_from: float | None = None

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        return f"Move the cuts ({option('valid_from')}, {option('test_from')}), or filter less"

    def assign(self, interactions: Interactions, seed: int) -> Parts:  # noqa: ARG002
        """[n] the part of each interaction; the seed is not used."""
        time = _times(interactions, self.name)
        test_from = self.test_from if self.test_from is not None else _cut(time, self.test)
        valid_from = self.valid_from if self.valid_from is not None else _cut(time, self.test + self.valid)
        if valid_from >= test_from:
            raise DataError(
                f"validation would begin at {valid_from:g} and test at {test_from:g}: nothing lies between. "
                f"Set {option('valid_from')} earlier than {option('test_from')}"
            )
        return np.select([time >= test_from, time >= valid_from], [TEST, VALID], TRAIN).astype(np.uint8)


class Given(_Protocol):
    """`given`: training and test are separate files; validation is a third file or a share of the training file.

    With a share, floor(valid n) of each user's n training items are drawn, at least one and never all of them; with
    `newest` they are its newest, and only those of equal times are drawn. An item that would be left without any
    training pair goes back to training. The test file is taken whole.
    """

    name: Literal["given"] = "given"
    both: ClassVar[bool] = True
    valid: float | None = None  # share of each user's training items; None: a file of its own
    newest: bool = False  # whether the share is of the newest

    @field_validator("valid")
    @classmethod
    def _is_a_share(cls, valid: float | None) -> float | None:
        if valid is not None and not 0 < valid < 1:
            raise ValueError("expected a share of each user's training items above 0 and below 1, such as 0.05")
        return valid

    @model_validator(mode="after")
    def _of_a_share(self) -> Given:
        if self.newest and self.valid is None:
            raise ValueError("newest is of a share of the training items: set valid to one, such as 0.05")
        return self

    def assign(self, interactions: Interactions, seed: int, files: Parts) -> Parts:
        """[n] the part of each interaction. files: [n] the part whose file it is in, or one from an earlier draw."""
        if self.valid is None:
            return files
        test, times = files == TEST, _times(interactions, self.name) if self.newest else None
        parts = np.where(test, TEST, _draw(interactions.user, ~test, self._held_out, seed, times)).astype(np.uint8)
        return _train_first(interactions, parts)

    def _held_out(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] training items validate, and that none tests."""
        assert self.valid is not None
        return np.minimum(np.maximum(_floor(self.valid, total), 1), total - 1), np.zeros(len(total))

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] the parts, with unevaluated pairs marked: none of them, with a share."""
        return super().evaluable(interactions, parts) if self.valid is None else parts

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        if self.valid is None:
            return "A user needs items in all three files, and its held-out items must occur in training"
        return "Some users need two items or more in the training file, and some need items in the test file"


class NewUsers(_Protocol):
    """`new-users`: some users validate, others test, and only the rest train (strong generalisation).

    floor(wanted n) of the n items of a held-out user, at least one, are to be found; the others are its history, all
    that a recommender is told of it. The shares are of the users with two items or more; all others train.
    """

    name: Literal["new-users"] = "new-users"
    valid: float = Field(0.1, gt=0, lt=1)  # share of the users
    test: float = Field(0.1, gt=0, lt=1)
    wanted: float = Field(0.2, gt=0, lt=1)  # share of a held-out user's items

    @model_validator(mode="after")
    def _leaves_someone_to_train_on(self) -> NewUsers:
        if self.valid + self.test >= 1:
            raise ValueError(
                f"valid {self.valid:g} + test {self.test:g} of the users leave none to train on; their sum must be < 1"
            )
        return self

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        return (
            f"Hold out more users ({option('valid')}, {option('test')}), each with two items or more that others train "
            "on, or filter less"
        )

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        rng, role = np.random.default_rng(seed), np.full(interactions.n_users, TRAIN, np.uint8)
        eligible = rng.permutation(np.flatnonzero(interactions.per_user() >= 2))
        n_test, n_valid = (int(np.floor(share * len(eligible) + 1e-9)) for share in (self.test, self.valid))
        role[eligible[:n_test]], role[eligible[n_test : n_test + n_valid]] = TEST, VALID
        mine = role[interactions.user]
        drawn = _draw(interactions.user, mine != TRAIN, self._to_be_found, int(rng.integers(2**63)))
        return np.where(mine == TRAIN, TRAIN, np.where(drawn == VALID, mine, HISTORY)).astype(np.uint8)

    def _to_be_found(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] items are to be found, and none for another part."""
        return np.maximum(_floor(self.wanted, total), 1), np.zeros(len(total))

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] the parts, with items marked that nobody trains on, and users left without history or targets."""
        trained = interactions.per_item(rows=parts == TRAIN) > 0
        parts = _marked(parts, ~trained[interactions.item])
        wanted = (parts == VALID) | (parts == TEST)
        both = (interactions.per_user(rows=parts == HISTORY) > 0) & (interactions.per_user(rows=wanted) > 0)
        return _marked(parts, ~both[interactions.user])


class NewItems(_Protocol):
    """`new-items`: all interactions of a share of the items are the test part; of the rest, `random` validates.

    Tested are users who train too, with the new items alone as candidates. A validation item that would be left without
    any training pair goes back to training.
    """

    name: Literal["new-items"] = "new-items"
    valid: float = Field(0.1, gt=0, lt=1)  # share of a user's interactions with the other items, at least one
    test: float = Field(0.1, gt=0, lt=1)  # share of the items

    def advice(self) -> str:
        """What to do if no user can be evaluated."""
        return f"Hold out more or fewer items ({option('test')}), or filter less"

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        new = np.zeros(interactions.n_items, bool)
        drawn = np.random.default_rng([seed, 1]).permutation(interactions.n_items)
        new[drawn[: max(1, int(_floor(self.test, np.array(len(new)))))]] = True
        test = new[interactions.item]
        return _train_first(interactions, np.where(test, TEST, _draw(interactions.user, ~test, self._held_out, seed)))

    def _held_out(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] interactions with other items validate; none tests."""
        return np.minimum(np.maximum(_floor(self.valid, total), 1), total - 1), np.zeros(len(total))

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] the parts, with the test items of users marked who do not train."""
        trains = interactions.per_user(rows=parts == TRAIN) > 0
        return _marked(parts, (parts == TEST) & ~trains[interactions.user])


Drawn = Random | Released | Paper | LeaveLast | TimeCut | NewUsers | NewItems
Protocol = Annotated[Drawn | Given, Field(discriminator="name")]
PROTOCOLS: dict[str, type[Drawn]] = {
    "paper": Paper, "released": Released, "random": Random, "leave-last": LeaveLast, "time": TimeCut,
    "new-users": NewUsers, "new-items": NewItems,
}  # fmt: skip


def _train_first(interactions: Interactions, parts: NDArray[Any]) -> Parts:
    """[n] the parts, with validation pairs of items without any training pair back in training."""
    trained = interactions.per_item(rows=parts == TRAIN) > 0
    return np.where((parts == VALID) & ~trained[interactions.item], TRAIN, parts).astype(np.uint8)


def mark_unevaluable(interactions: Interactions, parts: Parts, both: bool) -> Parts:
    """[n] the parts, with held-out pairs marked that cannot be evaluated (see the top of this module).

    both: whether an evaluated user needs validation and test items
    """
    marked = parts
    for part in (VALID, TEST):
        earlier = parts == TRAIN if both else parts < part
        user, item = interactions.per_user(rows=earlier) > 0, interactions.per_item(rows=earlier) > 0
        marked = _marked(marked, (parts == part) & ~(user[interactions.user] & item[interactions.item]))
    if not both:
        return marked
    evaluated = np.logical_and(*(interactions.per_user(rows=marked == part) > 0 for part in (VALID, TEST)))
    return _marked(marked, ~evaluated[interactions.user])


def _marked(parts: Parts, rows: NDArray[np.bool_]) -> Parts:
    """[n] the parts, with the held-out pairs of the mask `rows` [n] marked as not evaluated."""
    return np.where(rows & (parts != TRAIN), parts | np.uint8(UNEVALUATED), parts).astype(np.uint8)


def _floor(share: float, total: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n] floor(share total), exact where the product is an integer: in floating point 0.29 * 100 is below 29."""
    return np.asarray(np.floor(share * total + 1e-9))


def _draw(
    user: NDArray[np.int32], eligible: NDArray[np.bool_], held_out: HeldOut, seed: int,
    times: NDArray[np.float64] | None = None,
) -> Parts:  # fmt: skip
    """[n] the part of each interaction, after a shuffle of each user's eligible ones.

    user, eligible: [n], users in ascending order; held_out: how many of a user's `total` [n] eligible interactions
    validate [n] and test [n]; times: [n], where the newest are held out and the shuffle is of equal times alone
    """
    rng = np.random.default_rng(seed)
    parts = np.full(len(user), TRAIN, np.uint8)
    for block in _blocks_of_users(user):
        rows = block.start + np.flatnonzero(eligible[block])
        shuffled = _shuffle_within(user[rows], rng)
        if times is not None:
            shuffled = shuffled[np.lexsort((-times[rows[shuffled]], user[rows[shuffled]]))]
        rank, total = _rank_in_group(user[rows[shuffled]])
        n_valid, n_test = held_out(total)
        parts[rows[shuffled]] = np.select([rank < n_test, rank < n_test + n_valid], [TEST, VALID], TRAIN)
    return parts


def _blocks_of_users(user: NDArray[np.int32]) -> Iterator[slice]:
    """Slices of the ascending users [n], of about BLOCK_ROWS rows, each with all rows of its users."""
    start = 0
    while start < len(user):
        last = user[min(start + BLOCK_ROWS, len(user)) - 1]
        end = int(np.searchsorted(user, last, side="right"))
        yield slice(start, end)
        start = end


def _shuffle_within(groups: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.int64]:
    """[n] the order that shuffles each run of equal values of the ascending groups [n].

    One sort by group + draw; the sum is kept below the next group, to which it could be rounded up.
    """
    keys = np.minimum(groups + rng.random(len(groups)), np.nextafter(groups + 1.0, 0.0))
    return np.argsort(keys, kind="stable")


def _rank_in_group(groups: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([n], [n]) the rank of each element within its run of equal values, from 0, and the length of that run."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    lengths = np.diff(starts, append=len(groups))
    return np.arange(len(groups)) - np.repeat(starts, lengths), np.repeat(lengths, lengths)


def _times(interactions: Interactions, protocol: str) -> NDArray[np.float64]:
    if interactions.timestamp is None:
        raise DataError(
            f"protocol {protocol!r} needs times and the log has none. Name their column with {option('timestamp')}; if "
            f"it has a line per user, in order of time, set {option('ordered', True)}"
        )
    return interactions.timestamp


def _cut(time: NDArray[np.float64], share: float) -> float:
    """The time from which on about `share` of all interactions happened."""
    if share >= 1:
        raise DataError(f"a validation and test part of {share:g} together leave nothing to train on")
    return float(np.quantile(time, 1 - share, method="higher"))
