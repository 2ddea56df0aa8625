"""Rules for lists: conditions on items, at most n of a group, diversity, a popularity penalty.

Candidates are drawn best first, and each next item of a list is the best candidate that the rules permit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concf.data.reading.sniff import first_line
from concf.errors import ConfigError, option
from concf.inference.lookup import Positions, Short, UnknownUsers
from concf.inference.titles import Catalogue
from concf.runtime.arguments import check_count

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from concf.inference.ranker import Ranker

POOL = 10  # candidates that diversity and popularity reorder, as a multiple of k; later ones only fill up
BELOW = 4.0  # margin by which candidates behind the pool score below it
WORDS = ("and", "between", "case", "else", "in", "like", "not", "or", "then", "when")  # keywords, not functions
FUNCTIONS = ("abs", "array_contains", "coalesce", "ends_with", "length", "lower", "starts_with", "upper")
Draw = Callable[[Positions, int, Sequence[Positions], Positions | None], list[Short]]
"""Draw the first k items of users: their indices, k, the items that each may not see, the only items any may see."""
LONGEST = 1000  # characters of a condition: Polars takes minutes for thousands of terms, or overflows its stack


def catalogue_of(given: Any) -> Catalogue:
    """Return a caller's file or frame of items as a catalogue."""
    import polars as pl

    if given is None:
        raise ConfigError(f"{option('where')}, {option('at_most')} and new items need {option('catalogue')}")
    if isinstance(given, Catalogue):
        return given
    if isinstance(given, str | Path):
        return Catalogue(Path(given))
    try:
        return Catalogue(Path("catalogue"), frame=pl.DataFrame(given))
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        raise ConfigError(f"{option('catalogue')}: expected a file or a frame, found {type(given).__name__}") from None


def matching(attributes: pl.DataFrame, where: str) -> NDArray[np.bool_]:
    """[items] whether the condition holds; unknown is False. Columns of dates are compared with ISO 8601 text."""
    import polars as pl

    hint, start = "Expected a condition, as category in (3, 5) and price < 20", f"{option('where', where)[:200]}: "
    if not isinstance(where, str) or len(where) > LONGEST:
        raise ConfigError(f"{start}expected a condition of at most {LONGEST} characters. For long lists use items")
    plain = re.sub(r"""'[^']*'|"[^"]*\"""", " quoted ", where)
    forbidden = re.findall(r"\\", where) or re.findall(r"(?i)\bselect\b|--|/\*|[^\w\s.,()<>=!+*/%~-]", plain)
    if forbidden:
        raise ConfigError(f"{start}{forbidden[0]!r} is not allowed. {hint}")
    for name in re.findall(r"(\w+)\s*\(", plain):  # some take any amount of memory, as lpad(name, 10000000000, 'x')
        if name.lower() not in WORDS + FUNCTIONS:
            raise ConfigError(f"{start}unknown function {name}; choose from {', '.join(FUNCTIONS)}")
    try:
        condition = pl.sql_expr(where)
        for name in condition.meta.root_names():
            _check_column(attributes, name, f"{start}text is in single quotes, and")
            kind = attributes.schema[name]
            if kind.is_temporal():
                example = "2024-01-31" if kind == pl.Date else "2024-01-31T18:00:00"
                hint = f"{name!r} is a column of {kind}. Compare it with text as '{example}'"
        if condition.meta.has_multiple_outputs():
            raise ConfigError(f"{start}expected one condition, found several columns")
        holds = attributes.sql(f'select ({where}) as "where" from self')["where"]  # knows which columns are dates
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError) as error:
        raise ConfigError(f"{start}{first_line(error)}. {hint}") from None
    if holds.dtype != pl.Boolean:
        raise ConfigError(f"{start}expected a condition that is true or false, found {holds.dtype}")
    shown: NDArray[np.bool_] = holds.fill_null(value=False).to_numpy()
    if not shown.any():
        raise ConfigError(f"{start}no item of the log matches")
    return shown


def _check_column(attributes: pl.DataFrame, name: str, start: str) -> None:
    if name not in attributes.columns:
        raise ConfigError(f"{start} no column is called {name!r}; the columns are {', '.join(attributes.columns)}")


def group(attributes: pl.DataFrame, name: str) -> NDArray[np.int64]:
    """[items] a number for each value of a column, from 0; -1 for items without a value."""
    import polars as pl

    _check_column(attributes, name, f"{option('at_most')}:")
    if attributes[name].dtype.is_nested():
        raise ConfigError(f"{option('at_most')}: {name!r} holds {attributes[name].dtype}; expected one value an item")
    numbers = attributes[name].cast(pl.String).rank("dense").cast(pl.Int64).fill_null(0) - 1
    return numbers.to_numpy()


@dataclass(frozen=True)
class AppliedRules:
    """Rules of one call, for positions of items.

    shown:   [items] bool, whether an item may be shown; None: all items
    groups:  for each column, ([items] group of the item, -1 for none; items of one group that a list may have)
    vectors: [items, d] of length 1, whose inner products are similarities
    diversity, penalty: from 0 to 1
    popularity: [items] log(1 + users), scaled to at most 1
    """

    shown: NDArray[np.bool_] | None
    groups: list[tuple[Positions, int]]
    vectors: NDArray[np.float32]
    popularity: NDArray[np.float64]
    diversity: float = 0.0
    penalty: float = 0.0

    def choose(self, items: Positions, k: int) -> Positions:
        """Choose at most k of the candidates, given best first; returns their indices in the order of the list.

            next = argmax_i (1 - d) (1 - r_i / n - p popularity_i) - d max_(j chosen) cos(i, j)

        among the first n = 10 k candidates whose groups are not full, r_i from 0; ties by r. Then, if those do not fill
        the list, candidates behind them in their order. This is maximal marginal relevance (MMR) by rank, since scores
        of heads and consensus have no common scale.
        """
        if not (self.groups or self.diversity or self.penalty):
            return np.arange(min(k, len(items)))
        n = min(len(items), POOL * k)
        pool, rest = items[:n], np.arange(len(items) - n)
        relevance = 1 - np.arange(n) / n - self.penalty * self.popularity[pool]
        worth = np.concatenate([(1 - self.diversity) * relevance, -BELOW - rest])
        groups = [(numbers[items], most) for numbers, most in self.groups]
        nearest, chosen = np.full(n, -1.0), np.empty(0, np.int64)
        while len(chosen) < min(k, len(items)):
            value = worth.copy()
            value[:n] -= self.diversity * nearest
            best = int(value.argmax())
            if value[best] == -np.inf:
                break
            worth[best], chosen = -np.inf, np.append(chosen, best)
            for numbers, most in groups:
                if numbers[best] >= 0 and (numbers[chosen] == numbers[best]).sum() >= most:
                    worth[numbers == numbers[best]] = -np.inf
            if self.diversity:
                nearest = np.maximum(nearest, self.vectors[pool] @ self.vectors[items[best]])
        return chosen

    def lists(
        self, draw: Draw, at: Positions, k: int, hidden: Sequence[Positions], among: Positions | None, kept: int
    ) -> list[Short]:
        """Return the lists of a block of users. Where the first candidates do not fill a list, all others follow.

        kept: length of a consensus list before rules; 0 if all items can be ranked. Others: as for `Draw`
        """
        n_items = len(self.popularity)
        everything = np.arange(n_items) if self.shown is None else np.flatnonzero(self.shown)
        everything = everything if among is None else np.intersect1d(among, everything)
        closed = list(hidden)
        if self.shown is not None:
            others = np.flatnonzero(~self.shown)
            closed = [np.concatenate([own, others]) for own in hidden]
        if kept:
            lists = draw(at, max(k, kept), hidden, None)
            if self.shown is not None:
                lists = [(items[self.shown[items]], scores[self.shown[items]]) for items, scores in lists]
        else:
            lists = draw(at, min(POOL * k, n_items), closed, everything)
        chosen = [self.choose(items, k) for items, _ in lists]
        most = min(k, len(everything))  # of a full list
        for numbers, limit in self.groups:
            own = numbers[everything]
            most = min(most, int(np.minimum(np.bincount(own[own >= 0]), limit).sum() + (own < 0).sum()))
        short = [
            row for row, own in enumerate(chosen)
            if len(own) < most and len(lists[row][0]) < n_items - len(np.unique(closed[row]))
        ]  # fmt: skip
        more = draw(at[short], n_items, [closed[row] for row in short], everything) if short else []
        for row, (others, theirs) in zip(short, more, strict=True):
            items, scores = lists[row]
            if not np.array_equal(items, others[: len(items)]):  # the others follow, their scores below the lowest
                new = ~np.isin(others, items)
                theirs = np.concatenate([scores, scores.min() + theirs[new] - theirs.max()])
                others = np.concatenate([items, others[new]])
            lists[row], chosen[row] = (others, theirs), self.choose(others, k)
        return [(items[own], scores[own]) for (items, scores), own in zip(lists, chosen, strict=True)]


@dataclass(frozen=True)
class Rules:
    """Rules of lists for `Recommender.recommend` and `stream` (docs/recommending.md).

        concf.Rules("items.parquet", where="price < 20", at_most={"category": 2})

    Scores do not change: a list that is reordered is not sorted by them.

    catalogue: a file or frame with a row for each item, whose columns are attributes
    where:     only items for which this SQL condition on the catalogue's columns holds
    at_most:   a column of the catalogue -> how many items with the same value a list may have
    diversity: from 0 to 1, how much an item loses by its similarity to those above it (MMR)
    popularity_penalty: from 0 to 1, how much an item loses by its popularity
    filter_viewed: leave out items of the user's history, including held-out ones. If False, the voters of a
               consensus rank again and agree by rank alone, since its stored lists lack training items
    unknown:   users who are not in the log: "raise" an error, or recommend the most "popular" items
    """

    catalogue: str | Path | Catalogue | pl.DataFrame | pd.DataFrame | pa.Table | None = None
    where: str | None = None
    at_most: Mapping[str, int] | None = None
    diversity: float = 0.0
    popularity_penalty: float = 0.0
    filter_viewed: bool = True
    unknown: UnknownUsers = "raise"

    def __post_init__(self) -> None:
        for name in ("diversity", "popularity_penalty"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 <= share <= 1:
                raise ConfigError(f"{option(name, share)}: expected a number from 0 (off) to 1")
        if self.at_most is not None and not isinstance(self.at_most, Mapping):
            raise ConfigError(f"{option('at_most', self.at_most)}: expected columns and numbers: {{'category': 2}}")
        if self.unknown not in ("raise", "popular"):
            raise ConfigError(f"unknown = {self.unknown!r}: choose raise or popular")

    def applied(self, ranker: Ranker, head: str) -> AppliedRules | None:
        """Apply the rules to a ranker's items; None: they change nothing. head: head whose vectors give similarities"""
        if self.where is None and not (self.at_most or self.diversity or self.popularity_penalty):
            return None
        shown, groups, ids = None, [], ranker.item_ids
        if self.where is not None or self.at_most:
            attributes = catalogue_of(self.catalogue).attributes(ids)
            shown = None if self.where is None else matching(attributes, self.where)
            shown = None if shown is None or shown.all() else shown
            for name, most in (self.at_most or {}).items():
                groups.append((group(attributes, name), min(check_count(f"at_most[{name!r}]", most), len(ids))))
        logs = np.log1p(ranker.popularity.astype(np.float64))
        similar = ranker.directions(head)
        return AppliedRules(shown, groups, similar, logs / logs.max(), self.diversity, self.popularity_penalty)
