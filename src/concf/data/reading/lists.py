"""Read ranked lists of other models: rows of a user, an item and a score or a rank, in a file or a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.data.interactions import SIDES, Interactions
from concf.data.reading.cast import plain_ids
from concf.data.reading.objects import scan_object
from concf.data.reading.scan import UNREADABLE, Reading, Table, scan_file
from concf.data.reading.sniff import ROLES, first_line
from concf.errors import DataError, note

SCORES = ("score", "prediction", "relevance", "predicted_score", "rating")
LIST_ROLES = {role: ROLES[role] for role in SIDES} | {"score": SCORES, "rank": ("rank", "position")}


class ListReading(Reading):
    """Settings for reading lists. A column that is not named is found by its usual names."""

    roles: ClassVar[dict[str, tuple[str, ...]]] = LIST_ROLES
    is_log: ClassVar[bool] = False

    score: str | None = None
    rank: str | None = None


class Lists(NamedTuple):
    """Best items of each user of a log.

    items:  [users, k] int32 positions, best first, -1 where a list is shorter
    scores: [users, k] float32, 0 or more, descending: (score - lowest of all) / largest absolute score, or for ranks
            1 / log2(1 + rank)
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float32]


def read_lists(source: Any, name: str, log: Interactions, seen: csr_array, k: int) -> Lists:
    """Read the lists of a voter, at most k items a user; ties go to the lower position of the item.

    source: a file or a frame; name: of the voter, for messages; log: the log with their ids; seen: [users, items]
    pairs to leave out. Of a repeated pair the better row counts.
    """
    is_file = isinstance(source, str | Path)
    try:
        table = scan_file(Path(source), ListReading()) if is_file else scan_object(source, ListReading())
        where = f"voter {name!r}: {table.name}"
        kind = next((role for role in ("score", "rank") if role in table.columns), None)
        if kind is None:
            found = ", ".join(table.columns.values())
            raise DataError(f"{where}: no column score (higher is better) or rank (from 1) among {found}. Add one")
        rows = _with_positions(table.frame, log, kind).collect(engine="streaming")
    except UNREADABLE as error:
        problem = f"{source if is_file else f'the {type(source).__name__}'}: cannot be read ({first_line(error)})"
        raise DataError(f"voter {name!r}: {problem}. Expected CSV, Parquet or JSON lines") from None
    known = rows.drop_nulls(["at_user", "at_item"])
    finite = known.filter(pl.col("value").is_finite())
    null = {side: pl.col(f"at_{side}").is_null() for side in SIDES}
    unknown = " and ".join(f"{rows.filter(null[side])[side].n_unique():,} {side}s" for side in SIDES)
    _check(rows, known, finite, unknown, table, where, kind)
    cell = pl.col("at_user").cast(pl.Int64) * log.n_items + pl.col("at_item")
    ranked = finite.select(cell=cell, value=pl.col("value") if kind == "rank" else -pl.col("value"))
    users = np.repeat(np.arange(log.n_users, dtype=np.int64), np.diff(seen.indptr))
    fresh = ranked.join(pl.DataFrame({"cell": users * log.n_items + seen.indices}), on="cell", how="anti")
    best = fresh.sort("value", "cell").unique("cell", keep="first", maintain_order=True)
    lost = {
        f"{unknown} are not in the log": len(rows) - len(known),
        "infinite or not a number (NaN)": len(known) - len(finite),
        "of pairs that were learned from, which are not recommended": len(finite) - len(fresh),
        "repeated, of which the best is taken": len(fresh) - len(best),
    }
    for what, count in lost.items():
        if count:
            note(f"{where}: {count:,} of {len(rows):,} rows are left out: {what}")
    listed = best.select(pl.col("cell") // log.n_items).n_unique()
    if not listed:
        raise DataError(f"{where}: nothing is left of it: it lists only pairs that were learned from")
    if listed < log.n_users / 2:
        note(f"{where}: it lists items for only {listed:,} of {log.n_users:,} users, and votes for them alone")
    ranks = best.with_columns(rank=pl.int_range(pl.len()).over(pl.col("cell") // log.n_items))
    cells, value, rank = (column.to_numpy() for column in ranks.filter(pl.col("rank") < k))
    user, item = np.divmod(cells, log.n_items)
    items, scores = np.full((log.n_users, k), -1, np.int32), np.zeros((log.n_users, k), np.float32)
    items[user, rank] = item
    all_values = finite["value"].to_numpy()
    largest = np.abs(all_values).max() or 1.0  # so that no score is too large for 32 bits
    scores[user, rank] = 1 / np.log2(rank + 2) if kind == "rank" else -value / largest - all_values.min() / largest
    return Lists(items, scores)


def _with_positions(frame: pl.LazyFrame, log: Interactions, kind: str) -> pl.LazyFrame:
    """row, user, item, at_user, at_item, value: a position is null for an unknown id, the value if it is no number."""
    schema = frame.collect_schema()
    plain = {side: _plain(plain_ids(side, schema[side]), schema[side]) for side in SIDES}
    rows = frame.select("row", **plain, value=pl.col(kind).cast(pl.Float64, strict=False))
    for side in SIDES:
        ids = getattr(log, f"{side}_ids")
        known = pl.Series("key", ids.values.tolist(), dtype=pl.Int64 if ids.are_integers else pl.String)
        positions = pl.LazyFrame([known, pl.int_range(len(ids), eager=True).alias(f"at_{side}")])
        keyed = rows.with_columns(key=pl.col(side).cast(known.dtype, strict=False))
        rows = keyed.join(positions, on="key", how="left").drop("key")
    return rows


def _plain(ids: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Cast ids to a type that can be cast to the log's. Whole numbers may be floats, as in pandas; 4.4 is no id."""
    if dtype.is_float():
        whole = ids.cast(pl.Int64, strict=False).cast(pl.String)
        return pl.when(ids == ids.floor()).then(whole).otherwise(ids.cast(pl.String))
    return ids.cast(pl.String) if isinstance(dtype, pl.Categorical | pl.Enum) else ids


def _check(
    rows: pl.DataFrame, known: pl.DataFrame, finite: pl.DataFrame, unknown: str, table: Table, where: str, kind: str
) -> None:
    """Refuse lists that cannot vote. known: rows with ids of the log; finite: those of them with a finite value"""
    value, column, row = pl.col("value"), table.columns[kind], None
    no_number, values = rows.filter(value.is_null()), finite["value"]
    no_rank = rows.filter(value.is_finite() & ((value < 0) | (value != value.floor())))
    if rows.is_empty():
        problem = f"has no rows. Expected a user, an item and a {kind} in each"
    elif len(no_number):
        problem, row = f"its {kind} (column {column!r}) is missing or no number", no_number["row"].min()
    elif known.is_empty():
        problem = f"nothing in common with the log: {unknown} are not in it. Are ids alike?"
    elif kind == "rank" and len(no_rank):
        problem, row = f"ranks are 0, 1, 2 ... Is {column!r} a score? Name it score", no_rank["row"].min()
    elif finite.is_empty():
        problem = f"every {kind} is infinite or not a number (NaN), so that it ranks nothing"
    elif kind == "score" and values.n_unique() == 1 and len(values) > 1:
        problem = f"every score is {values[0]:g}, so that it ranks nothing. Give scores that differ, or ranks"
    else:
        return
    raise DataError(f"{where if row is None else where.replace(table.name, table.where(int(str(row))))}: {problem}")
