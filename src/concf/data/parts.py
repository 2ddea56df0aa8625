"""Parts of a split: draw them user by user, and mark held-out pairs that cannot be evaluated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from concf.data.interactions import BLOCK_ROWS, Interactions

TRAIN, VALID, TEST, HISTORY = 0, 1, 2, 4
UNEVALUATED = 8  # flag in the part of a held-out pair that cannot be evaluated
PARTS = {"train": TRAIN, "valid": VALID, "test": TEST, "history": HISTORY}
Parts = NDArray[np.uint8]
HeldOut = Callable[[NDArray[np.int64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


def origin(parts: Parts) -> Parts:
    """[n] part that each pair was assigned to, evaluated or not."""
    return np.asarray(parts & ~np.uint8(UNEVALUATED))


def mark(parts: Parts, rows: NDArray[np.bool_]) -> Parts:
    """[n] parts, with the held-out pairs of the mask `rows` [n] marked as not evaluated."""
    return np.where(rows & (parts != TRAIN), parts | np.uint8(UNEVALUATED), parts).astype(np.uint8)


def floor(share: float, total: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n] floor(share total), exact where the product is an integer: in floating point 0.29 * 100 is below 29."""
    return np.asarray(np.floor(share * total + 1e-9))


def draw(
    user: NDArray[np.int32], eligible: NDArray[np.bool_] | None, held_out: HeldOut, seed: int,
    times: NDArray[np.float64] | None = None,
) -> Parts:  # fmt: skip
    """[n] draw the part of each interaction by a shuffle of each user's eligible ones.

    user, eligible: [n], users in ascending order; held_out: how many of a user's `total` [n] eligible interactions
    validate [n] and test [n]; times: [n], to hold out the newest and shuffle only those of equal times
    """
    rng = np.random.default_rng(seed)
    parts = np.full(len(user), TRAIN, np.uint8)
    start = 0
    while start < len(user):  # blocks of about BLOCK_ROWS rows, each with all rows of its users
        last = user[min(start + BLOCK_ROWS, len(user)) - 1]
        end = int(np.searchsorted(user, last, side="right"))
        rows = np.arange(start, end)
        rows = rows if eligible is None else rows[eligible[start:end]]
        users, noise = user[rows], rng.random(len(rows))
        if times is None:  # one sort by user + noise, kept below the next user, to which the sum could be rounded up
            order = np.argsort(np.minimum(users + noise, np.nextafter(users + 1.0, 0.0)), kind="stable")
        else:
            order = np.lexsort((noise, -times[rows], users))
        starts = np.flatnonzero(np.diff(users, prepend=-1))
        lengths = np.diff(starts, append=len(users))
        rank, total = np.arange(len(users)) - np.repeat(starts, lengths), np.repeat(lengths, lengths)
        n_valid, n_test = held_out(total)
        parts[rows[order]] = np.select([rank < n_test, rank < n_test + n_valid], [TEST, VALID], TRAIN)
        start = end
    return parts


def draw_valid(
    interactions: Interactions, test: NDArray[np.bool_], share: float, seed: int,
    times: NDArray[np.float64] | None = None,
) -> Parts:  # fmt: skip
    """[n] draw the parts: pairs of the mask `test` [n] test; a share of each user's others validates.

    A validation pair of an item without any training pair goes back to training.
    """
    parts = np.where(test, TEST, draw(interactions.user, ~test, all_but_one(share), seed, times))
    trained = interactions.per_item(rows=parts == TRAIN) > 0
    return np.where((parts == VALID) & ~trained[interactions.item], TRAIN, parts).astype(np.uint8)


def all_but_one(share: float) -> HeldOut:
    """Hold out floor(share total) as validation, at least one and never all of a user's pairs."""
    return lambda total: (floor(share, total).clip(1, total - 1), np.zeros(len(total)))
