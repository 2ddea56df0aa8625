"""What the catalogue says of items, for the explorer: attributes, pictures, and conditions on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from concf.errors import ConfigError
from concf.inference.ranker import Positions, Short
from concf.inference.rules import Draw, Rules, rules_of
from concf.service.loading import Served
from concf.service.problems import Problem

LONGEST = 300  # characters of an attribute that are shown


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
        """Column -> the value of an item, as text; without those that it does not have."""
        row = {} if self.frame is None else self.frame.row(index, named=True)
        known = {name: row[name] for name in self.columns if row[name] is not None}
        return {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)[:LONGEST] for name, value in known.items()
        }

    def picture(self, index: int) -> str | None:
        """The address of an item's picture, if it is one that the operator allows."""
        if self.frame is None or self.catalogue is None or self.catalogue.image is None:
            return None
        address = self.frame[self.catalogue.image][index]
        return address if isinstance(address, str) and allowed(address, self.catalogue.image_sources) else None

    def rules(self, where: str | None) -> Rules | None:
        """The rule that a condition is; None without one."""
        try:
            head = self.ranker.run.best_head()
            return rules_of(self.ranker, self.ranker.item_ids, head, catalogue=self.catalogue, where=where or None)
        except ConfigError as error:
            raise Problem(409, "refused_rule", str(error), "where") from None


def listed(rules: Rules | None, draw: Draw, k: int, hidden: Positions, kept: int) -> Short:
    """The list of one user by rules. kept: see `Rules.lists`"""
    if rules is None:
        return draw(np.array([0]), k, [hidden], None)[0]
    return rules.lists(draw, np.array([0]), k, [hidden], None, kept)[0]


def allowed(address: str, sources: Sequence[str]) -> bool:
    """Whether a picture may be loaded: one of this site, or of an origin that the operator names."""
    own = address.startswith("/") and not address.startswith(("//", "/\\"))
    return own or any(address.startswith(f"{source}/") for source in sources)
