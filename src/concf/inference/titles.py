"""Titles of items, from the user's own file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concf.errors import DataError
from concf.runtime.files import refuse_no_file

if TYPE_CHECKING:
    import polars as pl

    from concf.data.ids import Ids

ITEM_NAMES, TITLE_NAMES = ("item", "item_id", "itemid", "id"), ("title", "name")
SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": "\t"}


@dataclass(frozen=True)
class Catalogue:
    """A file with a row for each item. item, title: its columns; None: found by their usual names."""

    path: Path
    item: str | None = None
    title: str | None = None

    def titles(self, ids: Ids) -> dict[Any, str]:
        """Item id -> title, for items of the log. Of several titles the first counts; empty ones do not."""
        return self.read(ids)[0]

    def read(self, ids: Ids) -> tuple[dict[Any, str], str]:
        """The titles, and a sentence that says how many there are."""
        import polars as pl

        frame = self._read()
        item = self._column(frame, self.item, ITEM_NAMES, "item")
        title = self._column(frame, self.title, TITLE_NAMES, "title")
        kind = pl.Int64 if ids.are_integers else pl.String
        try:
            rows = frame.select(
                item=pl.col(item).cast(pl.String).str.strip_chars().cast(kind, strict=False) if ids.are_integers
                else pl.col(item).cast(kind),
                title=pl.col(title).cast(pl.String).str.strip_chars(),
            )  # fmt: skip
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{self.path}: {_first_line(error)}. Expected plain ids and titles") from None
        rows = rows.drop_nulls().filter(pl.col("title") != "").unique("item", keep="first", maintain_order=True)
        known = pl.DataFrame({"item": pl.Series(ids.values.tolist(), dtype=kind)})
        titles = dict(rows.join(known, on="item", how="semi").iter_rows())
        ignored = f"; {len(rows) - len(titles):,} others are not in it" if len(rows) > len(titles) else ""
        return titles, f"{self.path}: titles for {len(titles):,} of the {len(ids):,} items of the log{ignored}"

    def _read(self) -> pl.DataFrame:
        import polars as pl

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
            f"{self.path}: no column for the {role} among {columns}. Name it with --catalogue-{role} "
            f"(usual names: {', '.join(usual)})"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
