"""Minimum counts per user and item."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from concf.data.interactions import Interactions
from concf.errors import DataError
from concf.runtime.settings import Settings


class Filter(Settings):
    """Keep a pair if its user and its item both have enough interactions.

    Both counts are taken on the same data, before either removes anything ("one pass"). With `core` the pass
    is repeated until nothing changes, which leaves the k-core.
    """

    min_user: int = Field(0, ge=0)  # a user with fewer interactions goes
    min_item: int = Field(0, ge=0)  # an item with fewer interactions goes
    counts: Literal["raw", "distinct"] = "distinct"  # all events, or each pair once
    core: bool = False  # repeat until nothing changes

    def apply(self, interactions: Interactions) -> Interactions:
        """The interactions that stay; a filter that leaves none is refused."""
        stays = self._once(interactions, None)
        while self.core:
            before, stays = stays, self._once(interactions, stays)
            if np.array_equal(before, stays):
                break
        return interactions if np.all(stays) else interactions.keep(stays)

    def _once(self, interactions: Interactions, before: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """[n] the pairs that stay, of those that stayed before."""
        raw = self.counts == "raw"
        per_user, per_item = interactions.per_user(raw=raw, rows=before), interactions.per_item(raw=raw, rows=before)
        stays = (per_user >= self.min_user)[interactions.user] & (per_item >= self.min_item)[interactions.item]
        stays = stays if before is None else stays & before
        if not stays.any():
            raise DataError(
                f"the filter ({self.describe()}) leaves nothing: the most active user has {per_user.max():g} and the "
                f"most popular item {per_item.max():g} interactions. Lower the minimum counts"
            )
        return stays

    def describe(self) -> str:
        """The filter in words."""
        passes = "k-core" if self.core else "one pass"
        return f"user >= {self.min_user}, item >= {self.min_item}, {self.counts} counts, {passes}"
