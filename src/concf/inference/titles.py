"""Titles and attributes of items, from the user's own file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from concf.errors import DataError, note
from concf.runtime.files import refuse_no_file

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from concf.data.ids import Ids

ITEM_NAMES, TITLE_NAMES = ("item", "item_id", "itemid", "id"), ("title", "name")
SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


@dataclass(frozen=True)
class Catalogue:
    """A file with a row for each item. item, title: its columns; None: found by their usual names.

    image: the column of the address of a picture; image_sources: origins that pictures may come from
    frame: the rows, if they are already in memory; `path` is then only their name in messages
    joined: the items that the rows of `frame` are of, by position, if `joined_to` has made them
    """

    path: Path
    item: str | None = None
    title: str | None = None
    frame: pl.DataFrame | None = None
    joined: Ids | None = None
    image: str | None = None
    image_sources: tuple[str, ...] = ()

    def loaded(self) -> Self:
        """The same with its rows in memory, for workers that cannot reach the file."""
        return replace(self, frame=self._typed())

    def joined_to(self, ids: Ids) -> Self:
        """The same with the attributes of these items in memory, for many calls."""
        return replace(self, frame=self.attributes(ids), joined=ids)

    def titles(self, ids: Ids) -> dict[Any, str]:
        """Item id -> title, for items of the log. Of several titles the first counts; empty ones do not."""
        return self.read(ids)[0]

    def read(self, ids: Ids) -> tuple[dict[Any, str], str]:
        """The titles, and a sentence that says how many there are."""
        import polars as pl

        frame = self._read()
        item = self._column(frame, self.item, ITEM_NAMES, "item")
        title = self._column(frame, self.title, TITLE_NAMES, "title")
        try:
            rows = frame.select(
                item=_plain(item, frame.schema[item], ids), title=pl.col(title).cast(pl.String).str.strip_chars()
            )
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{self.path}: {_first_line(error)}. Expected plain ids and titles") from None
        rows = rows.drop_nulls().filter(pl.col("title") != "").unique("item", keep="first", maintain_order=True)
        titles = dict(rows.join(_known(ids, "item"), on="item", how="semi").iter_rows())
        return titles, self._counts("titles", len(titles), len(rows), ids)

    def attributes(self, ids: Ids, say: Callable[[str], None] = note) -> pl.DataFrame:
        """[items] a row for each item of the log, by position, in the columns of the file; NaN is null.

        Items that are not in the file have nulls. say: is told how many they are, and how many are not in the log
        """
        if self.frame is not None and self.joined is ids:
            return self.frame
        rows, item = self._rows(ids)
        known = rows.join(_known(ids, item), on=item, how="semi")
        if known[item].is_duplicated().any():
            twice = known[item].filter(known[item].is_duplicated()).unique().sort()
            raise DataError(
                f"{self.path}: {len(twice):,} items have rows that differ, as {twice[0]!r}. Keep one row each"
            )
        if known.is_empty():
            raise DataError(f"{self.path}: none of the {len(rows):,} items of column {item!r} is in the log")
        if not len(known) == len(rows) == len(ids):
            say(self._counts("attributes", len(known), len(rows), ids))
        return _known(ids, item).join(known, on=item, how="left", maintain_order="left")

    def others(self, ids: Ids) -> list[Any]:
        """The items of the file that the log does not have, in ascending order."""
        rows, item = self._rows(ids)
        others = rows.join(_known(ids, item), on=item, how="anti")[item].drop_nulls().unique().sort().to_list()
        return [each for each in others if each != ""]

    def described(self, ids: Ids) -> NDArray[np.bool_]:
        """[items] whether the file has a row for each."""
        rows, item = self._rows(ids)
        return _known(ids, item)[item].is_in(rows[item].implode()).to_numpy()

    def _rows(self, ids: Ids) -> tuple[pl.DataFrame, str]:
        """The rows with ids of the log's type, each once, NaN as null; and the column of the ids."""
        import polars as pl
        import polars.selectors as cs

        frame = self._typed()
        item = self._column(frame, self.item, ITEM_NAMES, "item")
        try:
            plain = frame.with_columns(cs.float().fill_nan(None)).with_columns(
                _plain(item, frame.schema[item], ids).alias(item)
            )
            return plain.unique(maintain_order=True), item
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{self.path}: {_first_line(error)}. Expected plain ids") from None

    def roles(self) -> set[str | None]:
        """The columns of ids, titles and pictures."""
        frame = self._read()
        item = self._column(frame, self.item, ITEM_NAMES, "item")
        title = self._column(frame, self.title, TITLE_NAMES, "title")
        if self.image is not None:
            self._column(frame, self.image, (), "image")
        return {item, title, self.image}

    def _counts(self, what: str, known: int, rows: int, ids: Ids) -> str:
        ignored = f"; {rows - known:,} others are not in it" if rows > known else ""
        of_all = f"all {known:,}" if known == len(ids) else f"{known:,} of the {len(ids):,}"
        return f"{self.path}: {what} for {of_all} items of the log{ignored}"

    def _typed(self) -> pl.DataFrame:
        """The rows; a column of text in which every value is a number, as any of a text file, becomes numbers."""
        if self.frame is not None or self.path.suffix.lower() not in SUFFIXES:
            return self._read()
        frame = self._read()
        return frame.with_columns(_numbers(column) for column in frame)

    def _read(self) -> pl.DataFrame:
        import polars as pl

        if self.frame is not None:
            return self.frame
        path = self.path
        refuse_no_file(path)
        suffix = path.suffix.lower()
        try:
            if suffix in (".parquet", ".pq"):
                return pl.read_parquet(path)
            if suffix in (".jsonl", ".ndjson", ".json"):
                return pl.read_ndjson(path, infer_schema_length=None)
            if suffix in SUFFIXES:
                return pl.read_csv(path, separator=SUFFIXES[suffix], infer_schema=False)
        except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({_first_line(error)})") from None
        raise DataError(f"{path}: choose a .csv, .tsv, .parquet or .jsonl file of items and titles")

    def _column(self, frame: pl.DataFrame, chosen: str | None, usual: tuple[str, ...], role: str) -> str:
        columns = frame.columns
        if chosen is not None:
            if chosen not in columns:
                raise DataError(f"{self.path}: no column {chosen!r} for the {role}; the columns are {columns}")
            return chosen
        lowered = {name.lower(): name for name in reversed(columns)}
        for name in usual:
            if name in lowered:
                return lowered[name]
        raise DataError(
            f"{self.path}: no column for the {role} among {columns}. Rename it, or on the command line name "
            f"it with --catalogue-{role} (usual names: {', '.join(usual)})"
        )


def _plain(item: str, kind: pl.DataType, ids: Ids) -> pl.Expr:
    """The column as ids of the log's type; null where a value cannot be one."""
    import polars as pl

    from concf.data.reading.cast import plain_ids

    text = plain_ids(item, kind).cast(pl.String)
    return text.str.strip_chars().cast(pl.Int64, strict=False) if ids.are_integers else text


def _known(ids: Ids, name: str) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({name: pl.Series(ids.values.tolist(), dtype=pl.Int64 if ids.are_integers else pl.String)})


def _numbers(column: pl.Series) -> pl.Series:
    import polars as pl

    for kind in (pl.Int64, pl.Float64):
        with suppress(pl.exceptions.PolarsError):
            return column.cast(kind)
    return column


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
