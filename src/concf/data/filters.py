"""Filter interactions by minimum counts per user and per item."""

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

    Both are counted on the same data, before either removes anything ("one pass"). With `core` the pass is repeated
    until nothing changes, which leaves the k-core.
    """

    min_user: int = Field(0, ge=0)  # users with fewer interactions are removed
    min_item: int = Field(0, ge=0)  # items with fewer interactions are removed
    counts: Literal["raw", "distinct"] = "distinct"  # all events, or each pair once
    core: bool = False  # repeat until nothing changes

    def apply(self, interactions: Interactions) -> Interactions:
        """Return the interactions that remain; an error if there are none."""
        rows = self._one_pass(interactions, None)
        while self.core:
            before, rows = rows, self._one_pass(interactions, rows)
            if np.array_equal(before, rows):
                break
        return interactions if np.all(rows) else interactions.keep(rows)

    def _one_pass(self, interactions: Interactions, rows: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """[n] the pairs that remain, of all or of the mask `rows` [n]."""
        raw = self.counts == "raw"
        per_user, per_item = interactions.per_user(raw=raw, rows=rows), interactions.per_item(raw=raw, rows=rows)
        enough = (per_user >= self.min_user)[interactions.user] & (per_item >= self.min_item)[interactions.item]
        remaining = enough if rows is None else enough & rows
        if not remaining.any():
            raise DataError(
                f"the filter ({self.describe()}) leaves nothing: no user has more than {per_user.max():g} and no item "
                f"more than {per_item.max():g} interactions. Lower the minimum counts"
            )
        return remaining

    def describe(self) -> str:
        """The filter in words."""
        passes = "k-core" if self.core else "one pass"
        return f"user >= {self.min_user}, item >= {self.min_item}, {self.counts} counts, {passes}"
