"""Items that nobody, or hardly anybody, has used: their vectors follow from their attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from concf.data.ids import Ids, JoinedIds
from concf.errors import DataError, note
from concf.inference.new_items.features import features_of
from concf.model.feature_map import FeatureMap
from concf.model.scorers import Factors
from concf.training.run import Run

if TYPE_CHECKING:
    from concf.inference.titles import Catalogue

Short = tuple[NDArray[Any], NDArray[np.float32]]
SHRINKAGE = 3.0  # users of an item with whom its own vector counts as much as its attributes (docs/new-items.md)


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
