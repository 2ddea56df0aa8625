"""Titles and attributes of items, from the user's own file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from concf.data.reading.sniff import first_line
from concf.errors import DataError, note
from concf.runtime.files import refuse_no_file

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from concf.data.ids import Ids

ITEM_NAMES, TITLE_NAMES = ("item", "item_id", "itemid", "id"), ("title", "name")
SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


@dataclass(frozen=True)
class Catalogue:
    """File with a row for each item. item, title: its columns; None: found by their usual names.

    frame: the rows, if they are already in memory; `path` is then only their name in messages
    joined: ids of the rows of `frame`, by position, if `joined_to` made them
    """

    path: Path
    item: str | None = None
    title: str | None = None
    frame: pl.DataFrame | None = None
    joined: Ids | None = None

    def loaded(self) -> Self:
        """Load the rows, for workers that cannot reach the file."""
        return replace(self, frame=self._read(numbers=True))

    def joined_to(self, ids: Ids) -> Self:
        """Load the attributes of these items, for many calls."""
        return replace(self, frame=self.attributes(ids), joined=ids)

    def read(self, ids: Ids) -> tuple[dict[Any, str], str]:
        """Map item ids of the log to their first title that is not empty; also return a sentence with their number."""
        import polars as pl

        rows, item = self._rows(self._read(), ids)
        title = self._column(rows, self.title, TITLE_NAMES, "title")
        if rows.schema[title].is_nested():
            raise DataError(f"{self.path}: column {title!r} holds {rows.schema[title]}. Expected titles as text")
        text = pl.col(title).cast(pl.String, strict=False).str.strip_chars()
        rows = rows.select(item=item, title=text).drop_nulls().filter(pl.col("title") != "")
        rows = rows.unique("item", keep="first", maintain_order=True)
        titles = dict(rows.join(_known(ids, "item"), on="item", how="semi").iter_rows())
        return titles, self._counts("titles", len(titles), len(rows), ids)

    def attributes(self, ids: Ids, say: Callable[[str], None] = note) -> pl.DataFrame:
        """[items] a row for each item of the log, by position, in the columns of the file; NaN is null.

        Items that are not in the file have nulls. say: called with the number of items in the file and in the log
        """
        if self.frame is not None and self.joined is ids:
            return self.frame
        rows, item = self._rows(self._read(numbers=True), ids)
        known = rows.join(_known(ids, item), on=item, how="semi")
        if known[item].is_duplicated().any():
            twice = known[item].filter(known[item].is_duplicated()).unique().sort()
            raise DataError(f"{self.path}: {len(twice):,} items have rows that differ, as {twice[0]!r}. Keep one each")
        if known.is_empty():
            raise DataError(f"{self.path}: none of the {len(rows):,} items of column {item!r} is in the log")
        if not len(known) == len(rows) == len(ids):
            say(self._counts("attributes", len(known), len(rows), ids))
        return _known(ids, item).join(known, on=item, how="left", maintain_order="left")

    def others(self, ids: Ids) -> tuple[list[Any], NDArray[np.bool_]]:
        """Return the items of the file that are not in the log, ascending; and [items] which of the log are in it."""
        rows, item = self._rows(self._read(numbers=True), ids)
        others = rows.join(_known(ids, item), on=item, how="anti")[item].drop_nulls().unique().sort().to_list()
        described = _known(ids, item)[item].is_in(rows[item].implode()).to_numpy()
        return [each for each in others if each != ""], described

    def roles(self) -> tuple[str, str]:
        """Return the columns of ids and titles."""
        frame = self._read()
        item = self._column(frame, self.item, ITEM_NAMES, "item")
        return item, self._column(frame, self.title, TITLE_NAMES, "title")

    def _rows(self, frame: pl.DataFrame, ids: Ids) -> tuple[pl.DataFrame, str]:
        """Return distinct rows with ids of the log's type (null where a value cannot be one), and their column."""
        import polars as pl
        import polars.selectors as cs

        from concf.data.reading.cast import plain_ids

        item = self._column(frame, self.item, ITEM_NAMES, "item")
        text = plain_ids(item, frame.schema[item]).cast(pl.String)
        plain = text.str.strip_chars().cast(pl.Int64, strict=False) if ids.are_integers else text
        try:
            rows = frame.with_columns(cs.float().fill_nan(None)).with_columns(plain.alias(item))
            return rows.unique(maintain_order=True), item
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{self.path}: {first_line(error)}. Expected plain ids") from None

    def _counts(self, what: str, known: int, rows: int, ids: Ids) -> str:
        ignored = f"; {rows - known:,} others are not in it" if rows > known else ""
        of_all = f"all {known:,}" if known == len(ids) else f"{known:,} of the {len(ids):,}"
        return f"{self.path}: {what} for {of_all} items of the log{ignored}"

    def _read(self, numbers: bool = False) -> pl.DataFrame:
        """Read the rows. numbers: convert columns of a text file in which every value is a number"""
        import polars as pl

        if self.frame is not None:
            return self.frame
        refuse_no_file(self.path)
        suffix = self.path.suffix.lower()
        try:
            if suffix in (".parquet", ".pq"):
                return pl.read_parquet(self.path)
            if suffix in (".jsonl", ".ndjson", ".json"):
                return pl.read_ndjson(self.path, infer_schema_length=None)
            if suffix in SEPARATORS:
                frame = pl.read_csv(self.path, separator=SEPARATORS[suffix], infer_schema=False)
                return frame.with_columns(_numbers(column) for column in frame) if numbers else frame
        except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: cannot be read ({first_line(error)})") from None
        raise DataError(f"{self.path}: choose a .csv, .tsv, .parquet or .jsonl file of items and titles")

    def _column(self, frame: pl.DataFrame, chosen: str | None, usual: tuple[str, ...], role: str) -> str:
        """Return the chosen column, or the first with a usual name in any case."""
        lowered = {name.lower(): name for name in reversed(frame.columns)}
        columns = [chosen] if chosen in frame.columns else [lowered[name] for name in usual if name in lowered]
        if not columns or chosen not in (None, columns[0]):
            fix = f"Name it with --catalogue-{role}, or rename it" + f" ({', '.join(usual)})" * bool(usual)
            named = "" if chosen is None else f" {chosen!r}"
            raise DataError(f"{self.path}: no column{named} for the {role} among {frame.columns}. {fix}")
        return columns[0]


def _known(ids: Ids, name: str) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({name: pl.Series(ids.values.tolist(), dtype=pl.Int64 if ids.are_integers else pl.String)})


def _numbers(column: pl.Series) -> pl.Series:
    import polars as pl

    for kind in (pl.Int64, pl.Float64):
        with suppress(pl.exceptions.PolarsError):
            return column.cast(kind)
    return column
