"""Vectors of new and rare items, by a linear map from their attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, hstack

from concf.data.ids import Ids, JoinedIds
from concf.errors import DataError, note
from concf.evaluation.scorers import Factors
from concf.inference.lookup import Short
from concf.runs.run import Run

if TYPE_CHECKING:
    import polars as pl

    from concf.inference.titles import Catalogue

SHRINKAGE = 3.0  # users at which an item's own vector counts as much as its attributes (docs/new-data.md)
WIDTH = 2048  # most columns of categories and words; if there are more, they are hashed
FEW = 100  # distinct values up to which integers are also categories
TWICE = 2  # fewest trained items of a category or word: one item says nothing about another
FURTHEST = 5.0  # standard deviations at which numbers are clipped
PENALTIES = tuple(4.0**power for power in range(-2, 7))
FOLDS = 5
CLEARLY = 3.0  # least decrease of the held-out error, in standard errors, for which features are used
Array = NDArray[np.float64]


class Moments(NamedTuple):
    """Sums over items, weighted by trust: of 1, x [F], v [D], x'x [F, F] and x'v [F, D]."""

    total: float
    x: Array
    v: Array
    xx: Array
    xv: Array

    @classmethod
    def of(cls, features: csr_array, vectors: Array, trust: Array) -> Self:
        """Add up the items. features: [n, F]; vectors: [n, D]; trust: [n]"""
        weighted = csr_array((diags_array(trust) @ features).T)
        xx = np.asarray((weighted @ features).todense())
        return cls(float(trust.sum()), np.asarray(features.T @ trust), trust @ vectors, xx, weighted @ vectors)

    def solve(self, penalty: float) -> tuple[Array, Array]:
        """Return the ridge regression's W [F, D] and b [D]."""
        from scipy.linalg import cho_factor, cho_solve

        x, v = self.x / self.total, self.v / self.total
        gram = self.xx - self.total * np.outer(x, x)
        gram[np.diag_indices_from(gram)] += penalty
        weights: Array = cho_solve(cho_factor(gram, overwrite_a=True), self.xv - self.total * np.outer(x, v))
        return weights, v - x @ weights


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A linear map from features to vectors, for trained and new items.

    features:  [items, F]
    own:       [items] share of an item's own vector in its final one, 0 for new items
    trust:     [items] weight of an item in the regression, 0 for new items
    penalty:   of the regression
    explained: explained variance of held-out items' vectors
    """

    features: csr_array
    own: Array
    trust: Array
    penalty: float
    explained: float

    @classmethod
    def learn(cls, features: csr_array, own: Array, trust: Array, heads: Sequence[Array]) -> Self | None:
        """Fit with the penalty that predicts held-out items best; None if none is clearly better than the mean.

        heads: [trained items, d] vectors of each head; all heads have the same weight. Others: see the class; trained
        items come first
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
        """[items, D] predict the vectors of all items from those [trained items, D] of the items that come first."""
        rows = np.flatnonzero(self.trust)
        weights, intercept = Moments.of(self.features[rows], trained[rows], self.trust[rows]).solve(self.penalty)
        return np.asarray(self.features @ weights + intercept)

    def filled(self, factors: Factors) -> Factors:
        """Return the vectors of a head for all items: own v_i + (1 - own) (b + x_i W)."""
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
    """Scale vectors [n, d] to a total variance of 1."""
    mean = trust @ vectors / trust.sum()
    variance = (trust @ ((vectors - mean) ** 2)).sum() / trust.sum()
    return np.asarray(vectors / np.sqrt(max(variance, np.finfo(np.float64).tiny)))


def _held_out(features: csr_array, vectors: Array, trust: Array) -> tuple[Array, Array]:
    """Cross-validate: [penalties, n] error of the mean minus the error of the map; [n] error of the mean."""
    fold = np.random.default_rng(0).permutation(len(trust)) % FOLDS
    parts = [Moments.of(features[fold == f], vectors[fold == f], trust[fold == f]) for f in range(FOLDS)]
    gains, error = np.empty((len(PENALTIES), len(trust))), np.empty(len(trust))
    for f in range(FOLDS):
        others = Moments(*(sum(each[1:], each[0]) for each in zip(*parts[:f], *parts[f + 1 :], strict=True)))
        rows = fold == f
        error[rows] = trust[rows] * ((vectors[rows] - others.v / others.total) ** 2).sum(1)
        for row, penalty in enumerate(PENALTIES):
            weights, intercept = others.solve(penalty)
            misses = vectors[rows] - features[rows] @ weights - intercept
            gains[row, rows] = error[rows] - trust[rows] * (misses**2).sum(1)
    return gains, error


def features_of(attributes: pl.DataFrame, trained: NDArray[np.bool_]) -> csr_array:
    """[items, F] features of the columns; missing values are 0. trained: [items] items that set scales and words.

    Numbers are standardised over trained items. A text is a category as a whole, and so is each of its words and each
    element of a list; integers with few distinct values are both. Each of n categories of a value counts 1 / sqrt(n).
    """
    import polars as pl

    numbers, words = [], []
    for column in attributes:
        kind = column.dtype
        if kind.is_numeric() or kind.is_temporal() or kind == pl.Boolean:
            values = column.to_physical().cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy().copy()
            values[~np.isfinite(values)] = np.nan
            known = values[trained & ~np.isnan(values)]
            if len(known) and known.std() > 0:
                numbers.append(np.nan_to_num(((values - known.mean()) / known.std()).clip(-FURTHEST, FURTHEST)))
        texts = pl.DataFrame({"row": np.arange(len(column)), "word": column})
        if isinstance(kind, pl.List | pl.Array):
            texts, kind = texts.explode("word"), pl.String() if not kind.inner.is_nested() else kind
        few = kind.is_integer() and column.n_unique() <= FEW
        if few or kind in (pl.String, pl.Boolean, pl.Categorical, pl.Enum):
            texts = texts.with_columns(pl.col("word").cast(pl.String).str.to_lowercase().str.strip_chars())
            split = texts.with_columns(pl.col("word").str.extract_all(r"[^\W_]+")).explode("word")
            both = pl.concat([texts, split]).drop_nulls().filter(pl.col("word") != "")
            words.append(both.unique(maintain_order=True))
    dense = np.column_stack([np.empty((len(trained), 0)), *numbers])
    return csr_array(hstack([csr_array(dense), _categories(words, trained)]))


def _categories(columns: list[pl.DataFrame], trained: NDArray[np.bool_]) -> csr_array:
    """[items, F] the words of each column that at least two trained items have."""
    import polars as pl

    known, tables = pl.Series(np.flatnonzero(trained)), []
    for number, words in enumerate(columns):
        of_trained = words.filter(pl.col("row").is_in(known.implode()))
        counts = of_trained.group_by("word").len().filter(pl.col("len") >= TWICE)
        kept = words.join(counts, on="word", how="semi", maintain_order="left")
        value = pl.len().over("row").cast(pl.Float64) ** -0.5
        tables.append(kept.with_columns(value=value, word=pl.format("{} {}", pl.lit(number), "word")))
    if not tables:
        return csr_array((len(trained), 0))
    table = pl.concat(tables)
    names = table["word"].unique().sort().to_list()
    positions = range(len(names)) if len(names) <= WIDTH else [crc32(name.encode()) % WIDTH for name in names]
    at = dict(zip(names, positions, strict=True))
    columns_of = np.array([at[name] for name in table["word"].to_list()], np.int64)
    shape = (len(trained), min(len(names), WIDTH))
    matrix = csr_array((table["value"].to_numpy(), (table["row"].to_numpy(), columns_of)), shape=shape)
    matrix.sum_duplicates()
    return matrix


@dataclass(frozen=True, eq=False)
class JoinedItems:
    """Items of a run, followed by new items of a catalogue.

    ids:    of all items
    map:    from attributes to the vectors of a head
    new:    [items] whether an item has vectors by its attributes alone
    unused: positions of new items that are in the log, without training pairs: stored lists may have them
    """

    ids: Ids
    map: FeatureMap
    new: NDArray[np.bool_]
    unused: tuple[int, ...]

    def woven(self, agreed: Short, ranked: Short, k: int) -> Short:
        """Insert new items into a consensus list, each at its rank in a head's list; keep the first k.

        agreed, ranked: item positions and scores. A new item has no votes: its score is that of the item behind it
        """
        (items, scores), (best, _) = agreed, ranked
        at = np.flatnonzero(self.new[best])
        before = np.minimum(at - np.arange(len(at)), len(items))
        behind = np.append(scores, scores[-1:] if len(scores) else np.float32(0))[before]
        return np.insert(items, before, best[at])[:k], np.insert(scores, before, behind)[:k]


def joined(run: Run, heads: Sequence[Factors], catalogue: Catalogue) -> JoinedItems | None:
    """Add a catalogue's items to those of a run; None, with a note, if attributes do not predict vectors.

    heads: vectors of each head of the run
    """
    ids = run.data.interactions.item_ids
    others, described = catalogue.others(ids)
    both = JoinedIds(ids, Ids(np.array(others, ids.values.dtype)))
    known, described = int(described.sum()), np.pad(described, (0, len(others)), constant_values=True)
    if not known:
        fix = f"Give rows of the log's items too, from which the map is learned; an id is {ids.values[0]!s}"
        raise DataError(f"{catalogue.path}: none of its items is in the log. {fix}")
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
        note(f"{catalogue.path}: attributes do not predict vectors; the {len(others):,} new items are left out")
        return None
    new = own == 0
    return JoinedItems(both, learned, new, tuple(np.flatnonzero(new[: len(ids)]).tolist()))
