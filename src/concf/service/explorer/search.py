"""Finding users and items by the beginning of an id, a part of it, or words of a title, in some milliseconds."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from concf.data.ids import Ids

Places = NDArray[np.int64]
BEYOND = chr(0x10FFFF)  # sorts after whatever goes on
WORD = re.compile(r"[^\W_]+")
LINE = "\n"  # between the ids; what is searched for holds none


class Search:
    """Ids, and what they are called, in an order that answers a search by halving.

    weight: [n] what is found first among equals: how often each is used
    titles: [n] where there are any
    """

    def __init__(self, ids: Ids, weight: NDArray[Any], titles: Sequence[str | None] | None = None) -> None:
        self.weight, self.n = weight, len(ids)
        self.by_weight = np.argsort(-weight, kind="stable")
        names = ids.values.tolist()
        plain_ids = plain([str(name) for name in names])
        self.lines = LINE + LINE.join(each.replace(LINE, " ") for each in plain_ids) + LINE
        self.begins = np.cumsum([0, *(len(each) + 1 for each in plain_ids[:-1])])  # of each line, at its separator
        order = sorted(range(self.n), key=plain_ids.__getitem__)
        self.ids, self.id_places = [plain_ids[place] for place in order], np.array(order, np.int64)
        self.words, self.word_begins, self.word_places = _words(titles or [])

    def find(self, asked: str, limit: int) -> Places:
        """[<= limit] the id itself, ids and titles with words that begin so, most used first; then ids that hold it."""
        (text,) = plain([asked.strip()[:200].replace(LINE, " ")])
        if not text:
            return self.by_weight[:limit]
        found, exact = np.zeros(self.n, bool), np.zeros(self.n, bool)
        begin, end = _beginning_with(self.ids, text)
        found[self.id_places[begin:end]] = True
        exact[self.id_places[begin : bisect_right(self.ids, text)]] = True
        found |= self._titled(WORD.findall(text))
        places = np.flatnonzero(found)
        first = places[np.lexsort((-self.weight[places], ~exact[places]))][:limit]
        return np.concatenate([first, self._holding(text, found, limit - len(first))])

    def draw(self, limit: int) -> Places:
        """[<= limit] some by chance."""
        return np.random.default_rng().choice(self.n, min(limit, self.n), replace=False)

    def _titled(self, words: list[str]) -> NDArray[np.bool_]:
        """[n] whether a title has, for each of the words, one that begins so."""
        found = np.full(self.n, bool(words))
        for word in words:
            begin, end = _beginning_with(self.words, word)
            here = np.zeros(self.n, bool)
            here[self.word_places[self.word_begins[begin] : self.word_begins[end]]] = True
            found &= here
        return found

    def _holding(self, text: str, found: NDArray[np.bool_], limit: int) -> Places:
        """[<= limit] further ids with the text anywhere, in the order of ids."""
        places: list[int] = []
        at = self.lines.find(text)
        while at >= 0 and len(places) < limit:
            place = int(np.searchsorted(self.begins, at, side="right")) - 1
            if not found[place]:
                places.append(place)
            line_end = self.lines.find(LINE, at)
            at = self.lines.find(text, line_end)
        return np.array(places, np.int64)


def plain(texts: list[str]) -> list[str]:
    """The texts in small letters without accents."""
    column = pl.Series(texts, dtype=pl.String).str.normalize("NFKD").str.replace_all(r"\p{M}", "")
    return list(column.str.to_lowercase().to_list())


def _words(titles: Sequence[str | None]) -> tuple[list[str], NDArray[np.int64], Places]:
    """(w words in order, [w + 1] where each one's places begin, places)."""
    places = [place for place, title in enumerate(titles) if title is not None]
    texts = pl.Series(plain([titles[place] or "" for place in places]), dtype=pl.String)
    table = pl.DataFrame({"place": pl.Series(places, dtype=pl.Int64), "word": texts.str.extract_all(WORD.pattern)})
    table = table.explode("word").drop_nulls().unique().sort("word", "place")
    counted = table.group_by("word", maintain_order=True).len()
    begins = np.concatenate([[0], np.cumsum(counted["len"].to_numpy())]).astype(np.int64)
    return list(counted["word"].to_list()), begins, table["place"].to_numpy()


def _beginning_with(ordered: list[str], text: str) -> tuple[int, int]:
    return bisect_left(ordered, text), bisect_left(ordered, text + BEYOND)
