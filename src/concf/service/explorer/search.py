"""Search for users and items, by part of an id or by words of a title."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.service.schemas import Answer, SearchQuery

WORD = r"[^\W_]+"
LONGEST = 200  # characters of a search


class Search:
    """Index of ids and, if there are any, titles.

    popularity: [n] number of uses, which orders equally good results
    titles: [n] or None
    """

    def __init__(self, ids: Ids, popularity: NDArray[np.int64], titles: Sequence[str | None] | None = None) -> None:
        self.ids, self.popularity, self.titles = ids.values, popularity, titles or [None] * len(ids)
        names = pl.Series("id", [str(name) for name in ids.values.tolist()], dtype=pl.String)
        texts = pl.Series("words", self.titles, dtype=pl.String)
        words = _simple(texts).str.extract_all(WORD).list.join(" ")
        self.table = pl.DataFrame(
            {"index": np.arange(len(names)), "id": _simple(names), "words": " " + words, "popularity": popularity}
        )

    def find(self, text: str, limit: int) -> NDArray[np.int64]:
        """[<= limit] indices: the id itself; ids and words of titles with this prefix, most popular first; ids that
        contain the text, in order.
        """
        simple: str = _simple(pl.Series([text.strip()[:LONGEST]]))[0]
        words = re.findall(WORD, simple)
        titled = [pl.col("words").str.contains(f" {word}", literal=True) for word in words] or [pl.lit(False)]
        begins = pl.col("id").str.starts_with(simple) | pl.all_horizontal(titled).fill_null(False)
        table = self.table.filter(begins | pl.col("id").str.contains(simple, literal=True))
        order = (~begins, pl.col("id") != simple, pl.when(begins).then(-pl.col("popularity")).otherwise(0), "index")
        indices: NDArray[np.int64] = table.sort(*order)["index"].head(limit).to_numpy()
        return indices

    def results(self, query: SearchQuery) -> list[Answer]:
        """Return entries {id, title, uses}, found or random. uses: the popularity"""
        if query.random:
            indices = np.random.default_rng().choice(len(self.ids), min(query.limit, len(self.ids)), replace=False)
        else:
            indices = self.find(query.q, query.limit)
        columns = (self.ids[indices].tolist(), map(self.titles.__getitem__, indices), self.popularity[indices].tolist())
        return [{"id": name, "title": title, "uses": uses} for name, title, uses in zip(*columns, strict=True)]


def _simple(texts: pl.Series) -> pl.Series:
    """Normalise texts: one line, lower case, no accents."""
    plain: Any = texts.str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
    return plain.str.replace_all("\n", " ", literal=True)  # type: ignore[no-any-return]
