"""Search for users and items by a part of an id or by words of a title."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import Ids
from concf.errors import ConfigError
from concf.inference.rules import AppliedRules
from concf.service.explorer.schemas import SearchResult
from concf.service.loading import Served
from concf.service.problems import Problem
from concf.service.standing import Mask, ServedRules

WORD = r"[^\W_]+"
LONGEST = 200  # characters of a search
LONGEST_CELL = 300  # characters of an attribute that are shown


class Search:
    """Ids, and titles where there are any, with their popularity.

    popularity: [n] how often each is used: the order of equally good results
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

    def draw(self, limit: int) -> NDArray[np.int64]:
        """[<= limit] random indices."""
        return np.random.default_rng().choice(len(self.table), min(limit, len(self.table)), replace=False)

    def results(self, indices: NDArray[np.int64]) -> list[SearchResult]:
        """Return the entries at the indices, with titles and popularity."""
        columns = (self.ids[indices].tolist(), map(self.titles.__getitem__, indices), self.popularity[indices].tolist())
        return [{"id": name, "title": title, "uses": uses} for name, title, uses in zip(*columns, strict=True)]


def _simple(texts: pl.Series) -> pl.Series:
    """Normalise texts: one line, lower case, no accents."""
    plain: Any = texts.str.normalize("NFKD").str.replace_all(r"\p{M}", "").str.to_lowercase()
    return plain.str.replace_all("\n", " ", literal=True)  # type: ignore[no-any-return]


class Attributes:
    """The catalogue of a run that is served.

    columns: the names of its attributes, without ids, titles and pictures; [] if there is no catalogue
    """

    def __init__(self, served: Served) -> None:
        self.ranker, self.catalogue = served.recommender.ranker, served.attributes
        self.frame = None if self.catalogue is None else self.catalogue.attributes(self.ranker.item_ids)
        hidden = () if self.catalogue is None else self.catalogue.roles()
        self.columns = [] if self.frame is None else [name for name in self.frame.columns if name not in hidden]

    def of(self, index: int) -> dict[str, str]:
        """Column -> value of an item as text, without missing values."""
        row = {} if self.frame is None else self.frame.row(index, named=True)
        known = {name: row[name] for name in self.columns if row[name] is not None}
        return {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)[:LONGEST_CELL]
            for name, value in known.items()
        }

    def picture(self, index: int) -> str | None:
        """Return the URL of an item's picture if its origin is allowed."""
        if self.frame is None or self.catalogue is None or self.catalogue.image is None:
            return None
        address = self.frame[self.catalogue.image][index]
        return address if isinstance(address, str) and allowed(address, self.catalogue.image_sources) else None

    def rules(self, where: str | None, allowed: Mask | None) -> AppliedRules | None:
        """Return the rules of a condition and of the standing rule; None without either."""
        try:
            rules = ServedRules(self.catalogue, where or None, allowed=allowed)
            return rules.applied(self.ranker, self.ranker.run.best_head())
        except ConfigError as error:
            raise Problem(409, "refused_rule", str(error), "where") from None


def allowed(address: str, sources: Sequence[str]) -> bool:
    """Return whether a picture may be loaded: from this site, or from an origin that the operator named."""
    if re.search(r"[\s\\\x00-\x1f\x7f]", address):  # browsers drop some of these: "/\t/other.example" is another site
        return False
    own = address.startswith("/") and not address.startswith("//")
    return own or any(address.startswith(f"{source}/") for source in sources)
