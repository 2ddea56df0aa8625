"""The distinct ids of a log and how many rows each has, in memory that grows with the ids and not with the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.errors import DataError

NO_ID = {"nan", "null", "none"}  # what other programs write, in any case of letters, where there is no id
MAX_SEEDS = 64  # of hashes; two of n ids collide with a chance of n^2 / 2^65
WAITING_ROWS = 1 << 23  # counted batch by batch, before they are added up


class Census:
    """Rows by id. Polars' own streaming group_by would keep nearly every row of a large log until its end."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.waiting: list[pl.DataFrame] = []
        self.n_waiting = 0

    def add(self, batch: pl.DataFrame) -> None:
        """Count the rows of a batch."""
        counted = batch.group_by(self.role).agg(pl.len().cast(pl.Int64).alias("rows"))
        self.waiting.append(counted)
        self.n_waiting += len(counted)
        if self.n_waiting > WAITING_ROWS:
            total = self.total()
            self.waiting, self.n_waiting = [total], 0  # only what is new counts as waiting

    def total(self) -> pl.DataFrame:
        """role, rows: every id once, in no order."""
        return pl.concat(self.waiting).group_by(self.role).agg(pl.col("rows").sum())


class FirstLook:
    """What a first pass over a log finds, batch by batch.

    ids:    role -> the census of the rows that are liked
    faults: the numbers of those of which there is a row
    n_rows, n_liked: of the log, all and those that are interactions
    """

    def __init__(self, roles: tuple[str, ...]) -> None:
        self.ids = {role: Census(role) for role in roles}
        self.faults: set[int] = set()
        self.n_rows = self.n_liked = 0

    def add(self, batch: pl.DataFrame) -> None:
        """Look at rows: fault (or null), liked, and a column of each role."""
        self.n_rows += len(batch)
        self.faults.update(batch["fault"].drop_nulls().unique())
        liked = batch.filter("liked")
        self.n_liked += len(liked)
        for census in self.ids.values():
            census.add(liked)


def suspicious(found: pl.DataFrame) -> dict[str, int]:
    """Of a census: the text ids that may stand for none, such as `NaN`, and the rows of each."""
    if found.schema.dtypes()[0] != pl.String:
        return {}
    return dict(found.filter(pl.first().str.to_lowercase().is_in(NO_ID)).sort(pl.first()).iter_rows())


@dataclass(frozen=True)
class Numbered:
    """The ids of one side in ascending order, and how the place of an id is found.

    rows:   [n] the rows of the log that each id has
    key:    what stands for an id of the log: a hash of 64 bits that no two of these ids share
    keys:   [n] the keys, ascending; order: [n] the place of the id of each
    begins: [2^b] where among the keys those begin whose first b bits are 0, 1, 2 ..; about one key each
    """

    ids: Ids
    rows: NDArray[np.int64]
    key: pl.Expr
    keys: NDArray[np.uint64]
    order: NDArray[np.int64]
    begins: NDArray[np.int64]

    def places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """[m] the places of the ids with the given keys [m]; one step to the bucket, then as many as it has keys."""
        last = len(self.keys) - 1
        at: NDArray[np.int64] = self.begins[keys >> np.uint64(64 - _bits(len(self.keys)))]
        astray = np.flatnonzero(self.keys[at] != keys)
        while len(astray):
            at[astray] += 1
            here, wanted = self.keys[np.minimum(at[astray], last)], keys[astray]
            if np.any(here > wanted) or at[astray].max() > last:
                raise DataError("the log was changed while it was read. Read it again when nobody writes to it")
            astray = astray[here != wanted]
        return np.asarray(self.order[at])


def number(found: pl.DataFrame, may_be_integers: bool) -> Numbered:
    """Put the ids (column 0) of a census in order."""
    role, ids = found.columns[0], found.to_series(0)
    numbers = ids.cast(pl.Int64, strict=False) if may_be_integers else None
    plain = numbers is not None and (numbers.cast(pl.String) == ids).fill_null(False).all()  # 7, but not 007
    values = numbers if numbers is not None and plain else ids
    order = values.arg_sort()
    known, rows = Ids.of_series(values.gather(order)), found["rows"].gather(order).to_numpy()
    for seed in range(MAX_SEEDS):
        hashes = ids.gather(order).hash(seed).to_numpy()
        by_hash = np.argsort(hashes)
        keys, bits = hashes[by_hash], _bits(len(ids))
        if np.all(keys[1:] != keys[:-1]):
            begins = np.searchsorted(keys, np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits))
            return Numbered(known, rows, pl.col(role).hash(seed), keys, by_hash, begins.clip(max=len(keys) - 1))
    raise DataError(f"the {role} ids cannot be told apart by 64 bits. Number them first")


def _bits(n: int) -> int:
    """Of as many buckets as there are ids, or up to twice as many."""
    return max(1, (n - 1).bit_length())
