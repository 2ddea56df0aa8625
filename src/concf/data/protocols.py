"""Protocols that split interactions into a training, a validation and a test part.

A protocol assigns every interaction to a part, and no pair ever leaves its part. Held-out pairs that cannot be
evaluated are marked (`UNEVALUATED`): a validation pair needs a user and an item with a training pair, a test pair needs
both to have a pair outside the test part. With `paper` and `released` the item needs a training pair, and a user is
evaluated only with validation *and* test items, as published. `given` with a validation share marks nothing, because
published metrics count every pair of the test file. With `new-users` the users who are evaluated have a history in
place of training items (`HISTORY`), and `new-items` tests on items that never occur in training.

A new protocol is one subclass of `Protocol` and one row of `PROTOCOLS`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from concf.data.interactions import Filter, Interactions
from concf.data.parts import HISTORY, TEST, TRAIN, UNEVALUATED, VALID, Parts, all_but_one, draw, draw_valid, floor, mark
from concf.data.reading.times import DURATION, in_unit_of, moment, ticks_in
from concf.errors import ConfigError, DataError, option
from concf.runtime.settings import Settings


class Known(NamedTuple):
    """State of the [n] pairs of an update."""

    parts: Parts  # [n] part of each, `TRAIN` for new ones
    fresh: NDArray[np.bool_]  # [n] whether a pair is new
    learned: NDArray[np.bool_]  # [n] whether a model was fitted to a pair, so that it never becomes a test pair


class Protocol(Settings):
    """Settings of a protocol, and how it assigns interactions to parts."""

    both: ClassVar[bool] = False  # whether an evaluated user needs validation and test items
    time_cut: ClassVar[str | None] = None  # split by time: "user": each user's newest are held out; "all": one cut
    new_users: ClassVar[bool] = False  # whether evaluated users do not train
    new_items: ClassVar[bool] = False  # whether tested items do not train

    name: str = ""

    def filter(self) -> Filter | None:
        """Return the filter that is applied before the split."""
        return None

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        raise NotImplementedError

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] the parts, with held-out pairs marked that cannot be evaluated (see the top of this module)."""
        marked = parts
        for part in (VALID, TEST):
            earlier = parts == TRAIN if self.both else parts < part
            user, item = interactions.per_user(rows=earlier) > 0, interactions.per_item(rows=earlier) > 0
            marked = mark(marked, (parts == part) & ~(user[interactions.user] & item[interactions.item]))
        if not self.both:
            return marked
        evaluated = np.logical_and(*(interactions.per_user(rows=marked == part) > 0 for part in (VALID, TEST)))
        return mark(marked, ~evaluated[interactions.user])

    def extend(self, interactions: Interactions, known: Known, seed: int) -> Parts:  # noqa: ARG002
        """[n] the parts after an update; by default new pairs train."""
        return known.parts


class _Shares(Protocol):
    """Held-out shares that leave something to train on."""

    valid: float = Field(0.2, gt=0, lt=1)
    test: float = Field(0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> _Shares:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid {self.valid:g} + test {self.test:g} >= 1 leave nothing to train on. Lower one")
        return self


class _Fractions(_Shares):
    """Shuffle each user's n eligible interactions; floor(valid n) and floor(test n) are held out."""

    def eligible(self, interactions: Interactions) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """[n] which interactions may be held out; None: all."""
        return None

    def held_out(self, total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """([n], [n]) how many of a user's `total` [n] eligible interactions validate and test."""
        return floor(self.valid, total), floor(self.test, total)

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        return draw(interactions.user, self.eligible(interactions), self.held_out, seed)

    def extend(self, interactions: Interactions, known: Known, seed: int) -> Parts:
        """[n] the parts; new pairs are drawn among themselves, and those that cannot be evaluated train."""
        parts, fresh, _ = known
        if not fresh.any():
            return parts
        parts[fresh] = self.assign(interactions.keep(fresh), seed)
        unevaluated = self.evaluable(interactions, parts) >= UNEVALUATED
        return self.evaluable(interactions, np.where(fresh & unevaluated, TRAIN, parts).astype(np.uint8))


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


class _ByTime(Protocol):
    """Parts in order of time."""

    def extend(self, interactions: Interactions, known: Known, seed: int) -> Parts:
        """[n] the parts, assigned by time anew."""
        assigned = self.assign(interactions, seed)
        return self.evaluable(interactions, np.where(known.learned & (assigned == TEST), known.parts, assigned))


class LeaveLast(_ByTime):
    """`leave-last`: each user's newest `last` interactions are the test part, those before the validation part.

    Interactions of one user at the same time are one set and stay together, so that a part may have more than `last`. A
    user who would be left with nothing in one of the three parts only trains. The seed is not used.
    """

    name: Literal["leave-last"] = "leave-last"
    last: int = Field(1, ge=1)
    time_cut: ClassVar[str | None] = "user"

    def assign(self, interactions: Interactions, seed: int) -> Parts:  # noqa: ARG002
        """[n] the part of each interaction."""
        time, user = _times(interactions, self.name), interactions.user
        parts, complete = np.full(len(user), TRAIN, np.uint8), np.ones(interactions.n_users, bool)
        for part in (TEST, VALID):
            rows = np.flatnonzero(parts == TRAIN)
            rows = rows[np.lexsort((-time[rows], user[rows]))]
            starts = np.searchsorted(user[rows], np.arange(interactions.n_users + 1))
            complete &= np.diff(starts) >= self.last
            since = np.full(interactions.n_users, np.inf)  # time of each user's `last`-th newest
            since[complete] = time[rows[starts[:-1][complete] + self.last - 1]]
            parts[(parts == TRAIN) & (time >= since[user])] = part
        complete &= interactions.per_user(rows=parts == TRAIN) > 0
        return np.where(complete[user], parts, TRAIN).astype(np.uint8)


Share = Annotated[float, Field(gt=0, lt=1)]


class TimeCut(_ByTime):
    """`time`: a global temporal split. Interactions from one time on test, those from an earlier time on validate.

    A window is a share of the pairs or a duration, or starts at a given time. No cut divides interactions of equal
    times: a share counts those of the border as later, and a duration those that are exactly as old as earlier.
    """

    name: Literal["time"] = "time"
    test: Share | str = 0.1  # share of the interactions, or a duration such as 28d, if test_from is not given
    valid: Share | str | None = None  # length of the window before; None: as `test`
    test_from: float | str | None = None  # a date, or a time in the log's own unit
    valid_from: float | str | None = None
    time_cut: ClassVar[str | None] = "all"

    @field_validator("test", "valid", mode="before")
    @classmethod
    def _is_a_window(cls, value: Any) -> Any:
        if isinstance(value, str) and value.startswith(("0.", ".")) and value.replace(".", "", 1).isdecimal():
            return float(value)
        if isinstance(value, str) and not DURATION.fullmatch(value.strip()):
            raise ValueError(f"{value!r}: expected a share such as 0.1, or a duration such as 28d, 12h, 8w or 1.5y")
        return value

    def cuts(self, time: NDArray[Any]) -> tuple[float, float]:
        """Start of the validation and of the test part, in the unit of the times [n]."""
        newest, valid = float(time.max()), self.test if self.valid is None else self.valid
        test_from = self._given("test_from", newest)
        test_from = self.start(time) if test_from is None else test_from
        valid_from = self._given("valid_from", newest)
        if valid_from is None and isinstance(valid, float):
            by_share = self.test_from is None and isinstance(self.test, float)
            tested = float(self.test) if by_share else float(np.mean(time >= test_from))
            valid_from = _cut(time, tested + valid)
        elif valid_from is None:
            valid_from = test_from - ticks_in(str(valid), newest, option("valid", valid))
        if valid_from >= test_from:
            starts = f"the validation part begins {moment(valid_from)}, the test part {moment(test_from)}"
            raise DataError(f"{starts}: nothing lies between to validate on. Set an earlier {option('valid_from')}")
        return valid_from, test_from

    def start(self, time: NDArray[Any], windows: int = 1) -> float:
        """Start of the last `windows` windows of length `test` in a log with times [n].

        A time exactly 28d before the newest is earlier than the last 28d, so that 28 whole days are 28.
        """
        if isinstance(self.test, float):
            return _cut(time, windows * self.test)
        newest = float(time.max())
        duration = windows * ticks_in(self.test, newest, option("test", self.test))
        return float(np.nextafter(newest - duration, np.inf))

    def _given(self, name: str, newest: float) -> float | None:
        """Convert the given start of a part to the unit of the log's times; None: not given."""
        if (given := getattr(self, name)) is None:
            return None
        label = option(name, given)
        if (start := in_unit_of(newest, given, label)) > newest:
            raise DataError(f"{label}: later than all of the log, whose newest time is {moment(newest)}")
        return start

    def assign(self, interactions: Interactions, seed: int) -> Parts:  # noqa: ARG002
        """[n] the part of each interaction; the seed is not used."""
        time = _times(interactions, self.name)
        valid_from, test_from = self.cuts(time)
        return np.select([time >= test_from, time >= valid_from], [TEST, VALID], TRAIN).astype(np.uint8)


class Given(Protocol):
    """`given`: training and test are separate files; validation is a third file or a share of the training file.

    With a share, floor(valid n) of each user's n training items are drawn, at least one and never all of them; with
    `newest` they are its newest, and only those of equal times are drawn. An item that would be left without any
    training pair goes back to training. The test file is taken whole.
    """

    name: Literal["given"] = "given"
    both: ClassVar[bool] = True
    valid: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of each user's training items; None: a file
    newest: bool = False  # whether the share is of the newest

    @model_validator(mode="after")
    def _of_a_share(self) -> Given:
        if self.newest and self.valid is None:
            raise ValueError("newest needs a share of the training items: set valid to one, such as 0.05")
        return self

    def assign(self, interactions: Interactions, seed: int, files: Parts | None = None) -> Parts:
        """[n] part of each interaction. files: [n] part whose file it is in, or part from an earlier draw."""
        if files is None:
            raise ConfigError("protocol 'given' needs the part of each interaction")
        if self.valid is None:
            return files
        times = _times(interactions, self.name) if self.newest else None
        return draw_valid(interactions, files == TEST, self.valid, seed, times)

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] parts, with unevaluated pairs marked; with a share, no pair is."""
        return super().evaluable(interactions, parts) if self.valid is None else parts


class NewUsers(_Shares):
    """`new-users`: some users validate, others test, and only the rest train (strong generalisation).

    floor(target_share n) of the n items of a held-out user, at least one, are its targets; the others are its history,
    all that a recommender knows of it. The shares are of the users with two items or more; all others train.
    """

    name: Literal["new-users"] = "new-users"
    valid: float = Field(0.1, gt=0, lt=1)  # share of the users
    test: float = Field(0.1, gt=0, lt=1)
    target_share: float = Field(0.2, gt=0, lt=1)  # share of a held-out user's items
    new_users: ClassVar[bool] = True

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        rng, part_of_user = np.random.default_rng(seed), np.full(interactions.n_users, TRAIN, np.uint8)
        eligible = rng.permutation(np.flatnonzero(interactions.per_user() >= 2))
        n_test, n_valid = (int(floor(share, np.array(len(eligible)))) for share in (self.test, self.valid))
        part_of_user[eligible[:n_test]], part_of_user[eligible[n_test : n_test + n_valid]] = TEST, VALID
        part = part_of_user[interactions.user]
        drawn = draw(interactions.user, part != TRAIN, all_but_one(self.target_share), int(rng.integers(2**63)))
        return np.where(part == TRAIN, TRAIN, np.where(drawn == VALID, part, HISTORY)).astype(np.uint8)

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] parts, with items marked that nobody trains on, and users without history or targets."""
        trained = interactions.per_item(rows=parts == TRAIN) > 0
        parts = mark(parts, ~trained[interactions.item])
        targets = (parts == VALID) | (parts == TEST)
        both = (interactions.per_user(rows=parts == HISTORY) > 0) & (interactions.per_user(rows=targets) > 0)
        return mark(parts, ~both[interactions.user])


class NewItems(Protocol):
    """`new-items`: all interactions of a share of the items are the test part; of the rest, `random` validates.

    Tested are users who train too, with the new items alone as candidates. A validation item that would be left without
    any training pair goes back to training.
    """

    name: Literal["new-items"] = "new-items"
    valid: float = Field(0.1, gt=0, lt=1)  # share of a user's interactions with the other items, at least one
    test: float = Field(0.1, gt=0, lt=1)  # share of the items
    new_items: ClassVar[bool] = True

    def assign(self, interactions: Interactions, seed: int) -> Parts:
        """[n] the part of each interaction."""
        new = np.zeros(interactions.n_items, bool)
        drawn = np.random.default_rng([seed, 1]).permutation(interactions.n_items)
        new[drawn[: max(1, int(floor(self.test, np.array(len(new)))))]] = True
        return draw_valid(interactions, new[interactions.item], self.valid, seed)

    def evaluable(self, interactions: Interactions, parts: Parts) -> Parts:
        """[n] parts, with the test pairs marked whose users do not train."""
        trains = interactions.per_user(rows=parts == TRAIN) > 0
        return mark(parts, (parts == TEST) & ~trains[interactions.user])

    def extend(self, interactions: Interactions, known: Known, seed: int) -> Parts:  # noqa: ARG002
        """[n] the parts; new pairs of test items are test pairs."""
        parts, fresh, _ = known
        train = interactions.per_item(rows=~fresh & (parts < TEST)) > 0
        test = (interactions.per_item(rows=~fresh) > 0) & ~train
        return self.evaluable(interactions, np.where(test[interactions.item], TEST, parts).astype(np.uint8))


PROTOCOLS: dict[str, type[Protocol]] = {
    "paper": Paper, "released": Released, "random": Random, "leave-last": LeaveLast, "time": TimeCut,
    "new-users": NewUsers, "new-items": NewItems, "given": Given,
}  # fmt: skip


def _times(interactions: Interactions, protocol: str) -> NDArray[np.float64]:
    if interactions.timestamp is None:
        fix = f"Set {option('timestamp')}, or for lines in order of time {option('ordered', True)}"
        raise DataError(f"protocol {protocol!r} needs times and the log has none. {fix}")
    return interactions.timestamp


def _cut(time: NDArray[np.float64], share: float) -> float:
    """Return the time from which on about `share` of all interactions happened."""
    if share >= 1:
        raise DataError(f"a validation and test part of {share:g} together leave nothing to train on. Hold out less")
    return float(np.quantile(time, 1 - share, method="higher"))
