"""Items that nobody, or hardly anybody, has used: their vectors follow from their attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, diags_array, hstack

from concf.data.ids import Ids, JoinedIds
from concf.errors import DataError, note
from concf.evaluation.scorers import Factors
from concf.runs.run import Run

if TYPE_CHECKING:
    from concf.inference.titles import Catalogue

Short = tuple[NDArray[Any], NDArray[np.float32]]
SHRINKAGE = 3.0  # users of an item with whom its own vector counts as much as its attributes (docs/new-items.md)
if TYPE_CHECKING:
    import polars as pl

WIDTH = 2048  # columns of categories and words; where there are more of them, they are hashed
FEW = 100  # different values up to which a column of integers is also one of categories
TWICE = 2  # trained items that a category or word must have: one item teaches nothing about another
FURTHEST = 5.0  # standard deviations: what is further off counts as this far
PENALTIES = tuple(4.0**power for power in range(-2, 7))
FOLDS = 5
CLEARLY = 3.0  # standard errors by which the held-out error has to fall for features to say anything
Array = NDArray[np.float64]


class Moments(NamedTuple):
    """Sums over items, weighted by trust t: of 1, of x [F], of v [D], of x'x [F, F] and of x'v [F, D]."""

    total: float
    x: Array
    v: Array
    xx: Array
    xv: Array

    @classmethod
    def of(cls, features: csr_array, vectors: Array, trust: Array) -> Self:
        """features: [n, F]; vectors: [n, D]; trust: [n]."""
        weighted = csr_array((diags_array(trust) @ features).T)
        xx = np.asarray((weighted @ features).todense())
        return cls(float(trust.sum()), np.asarray(features.T @ trust), trust @ vectors, xx, weighted @ vectors)

    @classmethod
    def sum(cls, parts: Sequence[Moments]) -> Self:
        """Of all items of the parts."""
        return cls(*(sum(each[1:], each[0]) for each in zip(*parts, strict=True)))

    def solve(self, penalty: float) -> tuple[Array, Array]:
        """([F, D], [D]) W and b."""
        x, v = self.x / self.total, self.v / self.total
        gram = self.xx - self.total * np.outer(x, x)
        gram[np.diag_indices_from(gram)] += penalty
        weights: Array = cho_solve(cho_factor(gram, overwrite_a=True), self.xv - self.total * np.outer(x, v))
        return weights, v - x @ weights


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map for items of which some are trained.

    features:  [items, F]
    own:       [items] from 0 to 1, the share of an item's own vector in the one that it gets: 0 for new items
    trust:     [items] how far its own vector counts in the regression: 0 for new items
    penalty:   of the regression
    explained: share of the variance of held-out items' vectors that the map explains
    """

    features: csr_array
    own: Array
    trust: Array
    penalty: float
    explained: float

    @classmethod
    def learn(cls, features: csr_array, own: Array, trust: Array, heads: Sequence[Array]) -> Self | None:
        """With the penalty that predicts held-out items best; None if none does clearly better than their mean.

        heads: [trained items, d] the vectors of each; every head counts the same. Features, own, trust: see the class;
        the trained items come first
        """
        rows = np.flatnonzero(trust)
        if features.shape[1] == 0 or len(rows) < 2 * FOLDS:
            return None
        vectors = np.concatenate([_scaled(each[rows], trust[rows]) for each in heads], axis=1)
        gains, error = _held_out(features[rows], vectors, trust[rows])
        best = int(gains.mean(1).argmax())
        mean, deviation = gains[best].mean(), gains[best].std() / np.sqrt(len(rows))
        if mean <= CLEARLY * deviation:
            return None
        return cls(features, own, trust, PENALTIES[best], float(mean / error.mean()))

    def vectors(self, trained: Array) -> Array:
        """[items, D] what the features say, from the vectors [trained items, D] of the items that come first."""
        rows = np.flatnonzero(self.trust)
        weights, intercept = Moments.of(self.features[rows], trained[rows], self.trust[rows]).solve(self.penalty)
        predicted: Array = self.features @ weights + intercept
        return predicted

    def filled(self, factors: Factors) -> Factors:
        """The vectors of a head for all items: own v_i + (1 - own) (b + x_i W)."""
        trained = factors.item if factors.bias is None else torch.cat([factors.item, factors.bias[:, None]], 1)
        vectors = trained.double().numpy()
        predicted, own = self.vectors(vectors), self.own[:, None]
        predicted *= 1 - own
        predicted[: len(vectors)] += own[: len(vectors)] * vectors
        item = torch.from_numpy(predicted).to(factors.item.dtype)
        if factors.bias is None:
            return Factors(factors.user, item)
        return Factors(factors.user, item[:, :-1].contiguous(), item[:, -1].contiguous())


def _scaled(vectors: Array, trust: Array) -> Array:
    """Vectors [n, d] of variance 1, all dimensions together."""
    mean = trust @ vectors / trust.sum()
    variance = (trust @ ((vectors - mean) ** 2)).sum() / trust.sum()
    return np.asarray(vectors / np.sqrt(max(variance, np.finfo(np.float64).tiny)))


def _held_out(features: csr_array, vectors: Array, trust: Array) -> tuple[Array, Array]:
    """([penalties, n], [n]) by how much a map learned without an item beats the mean on it; the error of the mean."""
    fold = np.random.default_rng(0).permutation(len(trust)) % FOLDS
    parts = [Moments.of(features[fold == f], vectors[fold == f], trust[fold == f]) for f in range(FOLDS)]
    gains, error = np.empty((len(PENALTIES), len(trust))), np.empty(len(trust))
    for f in range(FOLDS):
        others, rows = Moments.sum([part for g, part in enumerate(parts) if g != f]), fold == f
        error[rows] = trust[rows] * ((vectors[rows] - others.v / others.total) ** 2).sum(1)
        for row, penalty in enumerate(PENALTIES):
            weights, intercept = others.solve(penalty)
            misses = vectors[rows] - features[rows] @ weights - intercept
            gains[row, rows] = error[rows] - trust[rows] * (misses**2).sum(1)
    return gains, error


def features_of(attributes: pl.DataFrame, trained: NDArray[np.bool_]) -> csr_array:
    """[items, F] of the columns [items]; what is missing says nothing. trained: [items] who sets scales and words.

    Text is a category as a whole, and each of its words is one; an element of a list is one; integers of which there
    are few are both numbers and categories. A value of several categories counts 1 / sqrt(their number) for each.
    """
    import polars as pl

    numbers, words = [], []
    for column in attributes:
        kind = column.dtype
        if kind.is_numeric() or kind.is_temporal() or kind == pl.Boolean:
            numbers.append(_standardised(column, trained))
        if (texts := _texts(column)) is not None:
            words.append(texts)
    dense = np.column_stack([np.empty((len(trained), 0)), *(each for each in numbers if each is not None)])
    return csr_array(hstack([csr_array(dense), _categories(words, trained)]))


def _standardised(column: pl.Series, trained: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    """[items] with mean 0 and deviation 1 over the trained, 0 where a value is missing; None if all are the same."""
    import polars as pl

    values = column.to_physical().cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()
    values[~np.isfinite(values)] = np.nan
    known = values[trained & ~np.isnan(values)]
    if not len(known) or known.std() == 0:
        return None
    scaled: NDArray[np.float64] = ((values - known.mean()) / known.std()).clip(-FURTHEST, FURTHEST)
    return np.nan_to_num(scaled)


def _texts(column: pl.Series) -> pl.DataFrame | None:
    """(row, word) of every category and word of a column; None if it has none."""
    import polars as pl

    kind = column.dtype
    if kind.is_integer() and column.n_unique() > FEW:
        return None
    if isinstance(kind, pl.List | pl.Array):
        if kind.inner.is_nested():
            return None
        values = pl.DataFrame({"row": np.arange(len(column)), "word": column}).explode("word")
    elif kind.is_integer() or kind in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
        values = pl.DataFrame({"row": np.arange(len(column)), "word": column})
    else:
        return None
    values = values.with_columns(pl.col("word").cast(pl.String).str.to_lowercase().str.strip_chars())
    split = values.with_columns(pl.col("word").str.extract_all(r"[^\W_]+")).explode("word")
    return pl.concat([values, split]).drop_nulls().filter(pl.col("word") != "").unique(maintain_order=True)


def _categories(columns: list[pl.DataFrame], trained: NDArray[np.bool_]) -> csr_array:
    """[items, F] of the words of each column that at least two trained items have."""
    import polars as pl

    known, tables = pl.Series(np.flatnonzero(trained)), []
    for number, words in enumerate(columns):
        counts = (
            words.filter(pl.col("row").is_in(known.implode())).group_by("word").len().filter(pl.col("len") >= TWICE)
        )
        kept = words.join(counts, on="word", how="semi", maintain_order="left")
        value = pl.len().over("row").cast(pl.Float64) ** -0.5
        tables.append(kept.with_columns(value=value, word=pl.format("{} {}", pl.lit(number), "word")))
    if not tables:
        return csr_array((len(trained), 0))
    table = pl.concat(tables)
    names = table["word"].unique().sort().to_list()
    places = range(len(names)) if len(names) <= WIDTH else [crc32(name.encode()) % WIDTH for name in names]
    at = dict(zip(names, places, strict=True))
    columns_of = np.array([at[name] for name in table["word"].to_list()], np.int64)
    shape = (len(trained), min(len(names), WIDTH))
    matrix = csr_array((table["value"].to_numpy(), (table["row"].to_numpy(), columns_of)), shape=shape)
    matrix.sum_duplicates()
    return matrix


@dataclass(frozen=True, eq=False)
class JoinedItems:
    """The items of a run and, behind them, those of a catalogue that the log does not have.

    ids:    of all of them
    map:    from their attributes to the vectors of a head
    new:    [items] whether an item has no vectors but by its attributes
    unused: those of them that the log has, all the same: a list may hold them
    """

    ids: Ids
    map: FeatureMap
    new: NDArray[np.bool_]
    unused: tuple[int, ...]

    def woven(self, agreed: Short, ranked: Short, k: int) -> Short:
        """The first k of a consensus list without new items, and these, each at the rank that a head gives it.

        agreed, ranked: item positions and scores. A new item has no votes: its score is that of the item behind it
        """
        (items, scores), (best, _) = agreed, ranked
        at = np.flatnonzero(self.new[best])
        before = np.minimum(at - np.arange(len(at)), len(items))
        behind = np.append(scores, scores[-1:] if len(scores) else np.float32(0))[before]
        return np.insert(items, before, best[at])[:k], np.insert(scores, before, behind)[:k]


def joined(run: Run, heads: Sequence[Factors], catalogue: Catalogue) -> JoinedItems | None:
    """The items of a catalogue, added to those of a run; None, with a note, if attributes say nothing about vectors.

    heads: the vectors of each head of the run
    """
    ids = run.data.interactions.item_ids
    others = catalogue.others(ids)
    both = JoinedIds(ids, Ids(np.array(others, ids.values.dtype)))
    described = catalogue.described(both)
    known = int(described[: len(ids)].sum())
    if not known:
        raise DataError(
            f"{catalogue.path}: none of its items is in the log, whose ids are such as {ids.values[0]!s}. What "
            "attributes say is learned from items of the log: give their rows too, with ids as in the log"
        )
    if known < len(ids):
        note(f"{catalogue.path}: attributes for {known:,} of the {len(ids):,} items of the log")
    attributes = catalogue.attributes(both, say=lambda _: None)
    uses = np.zeros(len(both))
    uses[: len(ids)] = np.bincount(run.log.indices, minlength=len(ids))
    own = np.where(described, uses / (uses + SHRINKAGE), 1.0)
    trust = np.sqrt(np.where(described, uses, 0.0))
    trust /= max(trust[trust > 0].mean(), 1.0) if trust.any() else 1.0
    vectors = [head.item.double().numpy() for head in heads]
    learned = FeatureMap.learn(features_of(attributes[:, 1:], trust > 0), own, trust, vectors)
    if learned is None:
        note(
            f"{catalogue.path}: the attributes say nothing about what the run has learned of its items; the "
            f"{len(others):,} new items are left out, and nothing changes"
        )
        return None
    new = own == 0
    return JoinedItems(both, learned, new, tuple(np.flatnonzero(new[: len(ids)]).tolist()))
