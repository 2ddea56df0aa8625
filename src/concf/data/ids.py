"""External ids of users and items; everything else uses their positions 0 .. n-1."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concf.runtime.files import mapped

MAX_ID_BYTES = 1024


class Ids:
    """Distinct ids in ascending order: integers by value, strings by code point.

    values: [n] int64, or object with str. An id's position depends on the set of ids alone, never on the order of rows.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    @property
    def are_integers(self) -> bool:
        """Whether the ids are integers rather than strings."""
        return bool(self.values.dtype == np.int64)

    def place(self, one: Any) -> int:
        """Return the position of an id, -1 if it is unknown; a number and its text are different ids."""
        if not (is_integer(one) if self.are_integers else isinstance(one, str)):
            return -1
        at = bisect_left(self.values, one)
        return at if at < len(self) and self.values[at] == one else -1

    def named(self, positions: NDArray[Any]) -> list[Any]:
        """Return the ids at the positions, in that order, without empty positions (-1)."""
        return list(self.values[positions[positions >= 0]].tolist())

    def positions(self, others: Ids) -> NDArray[np.int64]:
        """[others] the position of each of the other ids, -1 if unknown; integers and text are compared as text."""
        if self.are_integers == others.are_integers:
            return find(self.values, others.values)
        known = {str(name): position for position, name in enumerate(self.values.tolist())}
        return np.array([known.get(str(name), -1) for name in others.values.tolist()], np.int64)

    def to_bytes(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """([b], [n + 1]) the string ids as consecutive UTF-8 bytes, and their offsets."""
        names = [name.encode() for name in self.values.tolist()]
        return np.array(bytearray(b"".join(names))), np.cumsum([0, *map(len, names)])

    def digest(self) -> bytes:
        """SHA-256 of type and values."""
        blob, integers = (b"", self.values) if self.are_integers else self.to_bytes()
        kind = b"int" if self.are_integers else b"str"
        return hashlib.sha256(kind + integers.astype("<i8").tobytes() + bytes(blob)).digest()

    def save(self, folder: Path, name: str) -> None:
        """Write `name.npy` (integers), or `name.npy` (UTF-8 bytes) and `name_offsets.npy` (strings)."""
        arrays: tuple[NDArray[Any], ...] = (self.values,) if self.are_integers else self.to_bytes()
        for suffix, array in zip(("", "_offsets"), arrays, strict=False):
            np.save(folder / f"{name}{suffix}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, name: str) -> Ids:
        """Load what `save` wrote; integers are memory-mapped."""
        values, offsets = mapped(folder / f"{name}.npy"), folder / f"{name}_offsets.npy"
        if not offsets.exists():
            return cls(values)
        blob = values.tobytes()
        return cls(np.array([blob[a:b].decode() for a, b in pairwise(np.load(offsets).tolist())], dtype=object))


class JoinedIds(Ids):
    """Ids of a log followed by further ones, both in ascending order."""

    def __init__(self, first: Ids, others: Ids) -> None:
        super().__init__(np.concatenate([first.values, others.values]))
        self.first, self.others = first, others

    def place(self, one: Any) -> int:
        """Return the position of an id, -1 if it is unknown."""
        at, behind = self.first.place(one), self.others.place(one)
        return at if behind < 0 else len(self.first) + behind


def is_integer(value: object) -> bool:
    """Return whether a value can be an id of a log of integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def find(ascending: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """[values] the index of each value in the ascending array, -1 where it is missing."""
    if not len(ascending):
        return np.full(len(values), -1)
    index = np.searchsorted(ascending, values).clip(max=len(ascending) - 1)
    return np.where(ascending[index] == values, index, -1)
