"""New items by their attributes, beside popularity within a category and chance.

python benchmarks/new_items.py [--seeds 3] [--what accuracy few-users all-items]

All pairs of a tenth of the items are held out (protocol `new-items`). The heads of preset `strong` (budget `fast`) rank
them by attributes: Ciao's categories, or category, title and price of a simulated log. Beside them a score for each
category: how often its items are used (popularity), how often the user has used them (own categories), both together;
and chance. Then the held-out items get a few of their users back, to see how their own vectors take over.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from measuring import write
from numpy.typing import NDArray

from concf.data.catalogue import fetch
from concf.data.prepare import prepare
from concf.data.protocols import TEST, TRAIN
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate, score_lists
from concf.evaluation.ranking import rank
from concf.evaluation.scorers import Factors
from concf.inference.ranker import evaluate_new
from concf.inference.recommender import Recommender
from concf.models import choose_settings, train
from concf.runs.run import Run

AT, METRICS = (20, 50), ("recall", "ndcg")
USERS, ITEMS, KINDS, PAIRS, WORDS = 2000, 1500, 40, 30, 200
STYLES = {"simulated, categories": 1, "simulated, categories and styles": 20}
WHAT = ("accuracy", "few-users", "all-items")
GIVEN = (1, 3, 10)  # users that a held-out item gets back
SHRINKAGES = (0.0, 1.0, 3.0, 10.0, 30.0)


def simulated(seed: int, styles: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A log, and a catalogue of its items: category, title and price.

    With one style, users choose by category alone; with more, by category and style, which only the title tells, among
    words that say nothing. The price follows the category.
    """
    rng = np.random.default_rng(seed)
    kind, style = rng.integers(0, KINDS, ITEMS), rng.integers(0, styles, ITEMS)
    popularity = rng.zipf(1.8, ITEMS).clip(max=50)
    tastes = rng.dirichlet(np.full(KINDS, 0.1), USERS)[:, kind] * rng.dirichlet(np.full(styles, 0.2), USERS)[:, style]
    odds = tastes * popularity + 1e-3 / styles
    odds /= odds.sum(1, keepdims=True)
    items = np.concatenate([rng.choice(ITEMS, PAIRS, replace=False, p=row) for row in odds])
    frame = pl.DataFrame({"user_id": np.repeat(np.arange(USERS), PAIRS), "item_id": items})
    other = rng.integers(0, WORDS, (ITEMS, 3)).tolist()
    title = [
        f"style{own} " + " ".join(f"w{word}" for word in row) for own, row in zip(style.tolist(), other, strict=True)
    ]
    price = np.exp(rng.normal(size=KINDS)[kind] + 0.3 * rng.normal(size=ITEMS))
    return frame, pl.DataFrame({"item_id": np.arange(ITEMS), "category": kind, "title": title, "price": price})


def source(name: str, seed: int) -> tuple[Split, pl.DataFrame]:
    """A data set whose test part is of new items, and its catalogue."""
    if name in STYLES:
        frame, catalogue = simulated(seed, STYLES[name])
        split = prepare(frame, protocol="new-items", seed=seed, min_item=5)
        return split, catalogue.filter(pl.col("item_id").is_in(split.interactions.item_ids.values.tolist()))
    split = prepare("ciao", protocol="new-items", seed=seed, min_user=10, min_item=10)
    return split, categories(split)


def categories(data: Split) -> pl.DataFrame:
    """The category of each item of Ciao."""
    ratings = pl.read_csv(next(path for path in fetch("ciao") if path.suffix == ".csv"))
    known = ratings.filter(pl.col("item_id").is_in(data.interactions.item_ids.values.tolist()))
    return known.group_by("item_id").agg(pl.col("category").first())


def trained(data: Split, seed: int) -> Run:
    """The default with a small budget."""
    return train(data, choose_settings("strong", {"budget": "fast", "dimensions": 64}), seed=seed)


def by_category(data: Split, catalogue: pl.DataFrame, seed: int) -> dict[str, Any]:
    """Scores [b, items] of users [b] that need no model. Ties are broken at random."""
    category = dict(catalogue.select("item_id", "category").iter_rows())
    own = np.array([category[item] for item in data.interactions.item_ids.values.tolist()])
    member = (own[:, None] == np.unique(own)).astype(np.float32)  # [items, categories]
    seen, trained_items = data.seen("test"), member[~np.asarray(data.candidates("test"))].sum(0)
    popularity = np.asarray(seen.sum(0)) @ member / trained_items.clip(min=1)
    share, rng = np.asarray(seen @ member), np.random.default_rng(seed)
    tie = 1e-6 * rng.random(len(own))
    return {
        "chance": lambda users: rng.random((len(users), len(own))),
        "popularity of the category": lambda users: np.tile(member @ popularity + tie, (len(users), 1)),
        "own categories": lambda users: share[users] @ member.T + tie,
        "own categories x popularity": lambda users: (share[users] * popularity) @ member.T + tie,
    }


def share_of_new(model: Recommender, data: Split) -> float:
    """How many of 50 places new items have in lists of all items, by the best head."""
    ids, _ = model.recommend(k=50, by=model.run.best_head(), frame="arrays")
    new = set(data.interactions.item_ids.values[np.flatnonzero(np.asarray(data.candidates("test")))].tolist())
    return float(np.isin(ids, list(new)).mean())


def accuracy(name: str, seed: int) -> None:
    """A line: every head and every score by category."""
    data, catalogue = source(name, seed)
    run, begin = trained(data, seed), time.process_time()
    model = Recommender(run).add_items(catalogue)
    took, new = time.process_time() - begin, model.ranker.new
    assert new is not None
    figures = {who: each.means() for who, each in evaluate_new(model.ranker, at=AT, metrics=METRICS).items()}
    others = by_category(data, catalogue, seed)
    figures |= {who: evaluate(scores, data, at=AT, metrics=METRICS).means() for who, scores in others.items()}
    write(
        "new_items",
        {
            "what": "accuracy", "data": name, "seed": seed, "preset": "strong", "budget": "fast",
            "users": len(data.evaluated), "items": data.interactions.n_items, "new_items": int(new.new.sum()),
            "features": new.map.features.shape[1], "penalty": new.map.penalty, "explained": new.map.explained,
            "seconds": took, "places": share_of_new(model, data), "best_head": run.best_head(), "test": figures,
        },
    )  # fmt: skip


def few_users(name: str, seed: int) -> None:
    """Lines: the best head's recall when held-out items get some of their users back, by the constant of shrinkage."""
    data, catalogue = source(name, seed)
    rng = np.random.default_rng(seed)
    for n in GIVEN:
        split = Split(data.interactions, given_back(data, n, rng), data.recipe)
        run = trained(split, seed)
        figures = {}
        for shrinkage in SHRINKAGES:
            with patch("concf.inference.new_items.SHRINKAGE", max(shrinkage, 1e-9)):
                ranker = Recommender(run).add_items(catalogue).ranker
            figures[f"{shrinkage:g}"] = recall(ranker.factors(run.best_head()), data, split)
        write("new_items", {"what": "few users", "data": name, "seed": seed, "given": n, "recall@20": figures})


def all_items(seed: int) -> None:
    """A line: what shrinkage does to lists of all items, by the best head, where no item is new."""
    data = prepare("ciao", protocol="random", seed=seed, min_user=10, min_item=5)
    run, catalogue = trained(data, seed), categories(data)
    figures = {"none": run.evaluate(at=50)[run.best_head()].means()}
    for shrinkage in SHRINKAGES[1:]:
        with patch("concf.inference.new_items.SHRINKAGE", shrinkage):
            factors = Recommender(run).add_items(catalogue).ranker.factors(run.best_head())
        figures[f"{shrinkage:g}"] = evaluate(factors, data, at=50, metrics=METRICS).means()
    write(
        "new_items", {"what": "all items", "data": "ciao", "seed": seed, "users": len(data.evaluated), "test": figures}
    )


def given_back(data: Split, n: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """[pairs] the parts, with n pairs of each test item, or half of them, in training."""
    parts = np.array(data.parts)
    for item in np.flatnonzero(np.asarray(data.candidates("test"))).tolist():
        pairs = np.flatnonzero((data.interactions.item == item) & (parts == TEST))
        parts[rng.permutation(pairs)[: min(n, len(pairs) // 2)]] = TRAIN
    return parts


def recall(factors: Factors, data: Split, split: Split) -> float:
    """At 20 among the items that were held out, of the pairs that still are."""
    others = ~np.asarray(data.candidates("test"))

    def scores(users: NDArray[np.int64]) -> NDArray[np.float32]:
        found = (factors.user[users] @ factors.item.T).numpy()
        found[:, others] = -np.inf
        return found

    lists = rank(scores, split.evaluated, 20, seen=split.seen("test"))
    return score_lists(lists, split.evaluated, split.test, split.train, at=20, metrics=["recall"]).means()["recall@20"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--what", nargs="*", default=WHAT, choices=WHAT)
    chosen = parser.parse_args()
    for seed in range(chosen.seeds if "accuracy" in chosen.what else 0):
        for name in ("ciao", *STYLES):
            accuracy(name, seed)
    for name in ("ciao", list(STYLES)[1]) if "few-users" in chosen.what else ():
        few_users(name, 0)
    if "all-items" in chosen.what:
        all_items(0)


if __name__ == "__main__":
    main()
