"""The standing rule of a service: a blocklist and a condition in a file, which is read again when it changes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from concf.errors import ConcfError, DataError
from concf.inference.lookup import position_of
from concf.inference.ranker import Ranker
from concf.inference.rules import AppliedRules, Rules, catalogue_of, matching
from concf.service.loading import LOG, Served

Mask = NDArray[np.bool_]


def changed_at(path: Path | None) -> int:
    """When a file was last changed, in nanoseconds; 0 if there is none."""
    try:
        return 0 if path is None else path.stat().st_mtime_ns
    except OSError:
        return 0


class Standing:
    """The items that may be shown to anyone.

    path: a TOML file with `exclude`, a list of item ids, and `where`, a condition on the catalogue; both are optional
    """

    def __init__(self, path: Path | None, served: Served) -> None:
        self.path, self.served, self.changed = path, served, changed_at(path)
        self._allowed = self._read()

    def allowed(self) -> Mask | None:
        """[items] whether an item may be shown; None: all may. A file that cannot be applied changes nothing."""
        changed = changed_at(self.path)
        if changed != self.changed:
            self.changed = changed
            try:
                self._allowed = self._read()
            except ConcfError as error:
                LOG.error("the rules stay as they were: %s", error)
        return self._allowed

    def _read(self) -> Mask | None:
        if self.path is None:
            return None
        try:
            rule = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path}: cannot be read as TOML ({error})") from None
        exclude, where = rule.pop("exclude", []), rule.pop("where", None)
        if rule or not isinstance(exclude, list):
            raise DataError(f"{self.path}: expected exclude = [item ids] and where = 'condition', found {[*rule]}")
        ids = self.served.recommender.item_ids
        mask = np.ones(len(ids), bool)
        if where is not None:
            mask = matching(catalogue_of(self.served.attributes).attributes(ids), where).copy()
        places = [position_of(ids, item) for item in exclude]
        mask[[place for place in places if place >= 0]] = False
        if not mask.any():
            raise DataError(f"{self.path}: no item is left to show")
        return mask


@dataclass(frozen=True)
class ServedRules(Rules):
    """The rules of a request and the standing one. allowed: [items] whether an item may be shown; None: all may"""

    allowed: Mask | None = None

    def applied(self, ranker: Ranker, head: str) -> AppliedRules | None:
        """Apply both to a ranker's items."""
        applied = super().applied(ranker, head)
        if self.allowed is None:
            return applied
        if applied is None:
            applied = AppliedRules(None, [], ranker.directions(head), ranker.popularity.astype(np.float64))
        return replace(applied, shown=self.allowed if applied.shown is None else applied.shown & self.allowed)
