"""The main job on embedded data, in under a minute."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from concf.baselines.ease import EASE
from concf.baselines.factorisation import IALS, PureSVD
from concf.baselines.neighbours import ItemKNN, RP3beta
from concf.baselines.popularity import Popularity
from concf.baselines.table import Candidate
from concf.comparison import Comparison, compare
from concf.data.prepare import prepare
from concf.evaluation.ranking import rank

SMALL_GRIDS = {
    "popularity": Candidate(Popularity),
    "itemknn": Candidate(ItemKNN, {"neighbours": (20, 50, 200), "shrink": (10.0, 50.0)}),
    "ease": Candidate(EASE, {"regularisation": (50.0, 150.0, 250.0, 500.0)}),
    "rp3beta": Candidate(RP3beta, {"alpha": (0.5, 0.7), "beta": (0.0, 0.2), "neighbours": (50, 200)}),
    "puresvd": Candidate(PureSVD, {"factors": (8, 16, 32)}),
    "ials": Candidate(IALS, {"factors": (64,), "alpha": (5.0, 10.0), "regularisation": (30.0, 60.0)}),
}


def run(seeds: int = 3) -> tuple[Comparison, dict[str, Any]]:
    """Prepare the simulated log, compare the baselines, and recommend to one user by the best of them."""
    data = prepare("demo", protocol="random")
    models = {name: model for name, model in SMALL_GRIDS.items() if name != "ials" or find_spec("implicit")}
    comparison = compare(data, models, seeds=seeds)
    best = comparison.entrants[0]
    fitted = models[best.name].make(**best.settings).fit(data.train)
    user = data.evaluated[:1]
    items = rank(fitted, user, 10, seen=data.seen("test"))[0]
    held_out, names = set(data.test[user].indices.tolist()), data.interactions.item_ids.values
    example = {
        "model": best.name,
        "user": data.interactions.user_ids.values[user].tolist()[0],
        "history": names[data.train[user].indices[:8]].tolist(),
        "items": [
            {"rank": place + 1, "item": names[item].item(), "was": "held out" if item in held_out else ""}
            for place, item in enumerate(items.tolist())
        ],
    }
    return comparison, example
