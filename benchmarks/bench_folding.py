"""New users without training: ConCF's folded-in heads and consensus beside popularity, EASE^R and iALS.

python benchmarks/bench_folding.py DATA [--share 0.2] [--device cuda]

DATA: a prepared data set. A share of its users is held out altogether (strong generalisation). Of each, four fifths of
what it used is its history, the rest is to be found: Recall and NDCG at 50 over the whole catalogue. The ridge,
EASE^R's regularisation and iALS' alpha are chosen on one half of the held-out users, the figures are of the other half.
ConCF: preset `reference`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import write
from numpy.typing import NDArray
from scipy.sparse import csr_array

from concf.consensus.settings import CONSENSUS
from concf.data.ids import Ids
from concf.data.protocols import Random
from concf.data.split import Recipe, Split
from concf.evaluation.evaluate import score_lists
from concf.evaluation.ranking import NOTHING, top_k
from concf.inference.frames import as_arrays
from concf.inference.ranker import Ranker
from concf.model.baselines.factorisation import IALS
from concf.model.scorers import Factors
from concf.training.config.presets import choose_settings
from concf.training.train import train

RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0)
REGULARISATIONS = (50.0, 100.0, 200.0, 400.0)
ALPHAS = (10.0, 40.0, 160.0)
PRESET = "reference"


def divided(data: Split, share: float, seed: int) -> tuple[Split, csr_array, csr_array]:
    """A split of the users that stay, and histories and wanted items of the others over the same items."""
    rng = np.random.default_rng(seed)
    log = data.interactions
    out = np.zeros(log.n_users, bool)
    out[rng.permutation(log.n_users)[: int(share * log.n_users)]] = True
    stay = log.keep(~out[log.user])
    recipe = Recipe(source={"name": data.recipe.source["name"]}, protocol=Random(valid=0.1, test=0.1), seed=seed)
    place = {item: at for at, item in enumerate(stay.item_ids.values.tolist())}
    histories: list[list[int]] = []
    wanted: list[list[int]] = []
    everything = log.matrix()
    for user in np.flatnonzero(out):
        items = [place[item] for item in log.item_ids.values[everything[[user]].indices].tolist() if item in place]
        items = rng.permutation(items).astype(int).tolist()
        cut = len(items) // 5
        if cut:
            histories.append(sorted(items[cut:]))
            wanted.append(sorted(items[:cut]))
    return Split.make(stay, recipe), _matrix(histories, stay.n_items), _matrix(wanted, stay.n_items)


def _matrix(rows: list[list[int]], n_items: int) -> csr_array:
    ends = np.cumsum([0, *map(len, rows)])
    columns = np.array([item for row in rows for item in row], np.int32)
    return csr_array((np.ones(len(columns), np.float32), columns, ends), shape=(len(rows), n_items))


def figures(lists: NDArray[np.int32], wanted: csr_array, train: csr_array) -> dict[str, float]:
    return score_lists(lists, np.arange(wanted.shape[0]), wanted, train, at=(50,)).means()


def by_scores(scores: NDArray[np.float32], histories: csr_array) -> NDArray[np.int32]:
    masked = torch.from_numpy(np.asarray(scores, np.float32)).masked_fill(
        torch.from_numpy(histories.toarray() > 0), -torch.inf
    )
    values, places = top_k(masked, 50)
    return places.masked_fill(values == -torch.inf, NOTHING).numpy().astype(np.int32)


def ease_weights(train: csr_array, regularisation: float) -> NDArray[np.float32]:
    """B of EASE^R, [items, items]: a history's scores are x B."""
    gram = (train.T @ train).toarray().astype(np.float64)
    gram[np.diag_indices_from(gram)] += regularisation
    inverse = np.linalg.inv(gram)
    weights = -inverse / inverse.diagonal()
    np.fill_diagonal(weights, 0.0)
    return weights.astype(np.float32)


def ials_scores(model: Factors, histories: csr_array, alpha: float, regularisation: float) -> NDArray[np.float32]:
    """One alternating step for new users: the ridge regression that iALS solves for every user."""
    items = model.item.numpy().astype(np.float64)
    gram = items.T @ items + regularisation * np.eye(items.shape[1])
    found = []
    for row in range(histories.shape[0]):
        used = items[histories[[row]].indices]
        found.append(np.linalg.solve(gram + (alpha - 1) * used.T @ used, alpha * used.sum(0)))
    return (np.array(found) @ items.T).astype(np.float32)


def measure(data: Split, share: float, device: str, seed: int) -> dict[str, Any]:
    split, histories, wanted = divided(data, share, seed)
    half = np.arange(histories.shape[0]) % 2 == 0
    parts = [(histories[mask], wanted[mask]) for mask in (half, ~half)]
    rows: dict[str, Any] = {}

    def best(name: str, settings: Any, lists: Any) -> None:
        """Chosen on the first half, told of the second."""
        tried = [(figures(lists(each, parts[0][0]), parts[0][1], split.train)["recall@50"], each) for each in settings]
        chosen = max(tried, key=lambda pair: pair[0])[1]
        told = figures(lists(chosen, parts[1][0]), parts[1][1], split.train)
        rows[name] = told | {"chosen": chosen, "tried": [list(pair) for pair in tried]}
        print(name, rows[name], flush=True)

    popularity = np.bincount(split.train.indices, minlength=split.train.shape[1]).astype(np.float32)
    best("popularity", [None], lambda _, used: by_scores(np.tile(popularity, (used.shape[0], 1)), used))
    best("ease", REGULARISATIONS, lambda each, used: by_scores(used @ ease_weights(split.train, each), used))
    grid = [(alpha, 100.0) for alpha in ALPHAS]
    ials = {each: IALS(factors=128, alpha=each[0], regularisation=each[1]).fit(split.train) for each in grid}
    best("ials", grid, lambda each, used: by_scores(ials_scores(ials[each], used, *each), used))
    run = train(split, choose_settings(PRESET), seed=seed, device=device)
    for name in (run.best_head(), CONSENSUS):

        def lists(ridge: float, used: csr_array, by: str = name) -> NDArray[np.int32]:
            items = np.split(used.indices.astype(np.int64), used.indptr[1:-1])
            found = Ranker(run, ridge=ridge).of_histories(items, 50, by, hidden=items)
            return as_arrays(found, 50, Ids(np.arange(used.shape[1])))[0]

        best(f"concf {name}", RIDGES, lists)
    return {"users": split.train.shape[0], "held_out": histories.shape[0], "rows": rows, "epochs": run.epoch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    data = Split.load(chosen.data)
    about = {"data": data.recipe.source["name"], "protocol": data.recipe.protocol.name, "seed": chosen.seed}
    write("folding", about | {"preset": PRESET} | measure(data, chosen.share, chosen.device, chosen.seed))


if __name__ == "__main__":
    main()
