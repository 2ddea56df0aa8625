"""Models of other libraries, their plain fusions, and what concf makes of the same: the lines of docs/combine.md.

    python benchmarks/combine.py                          # seeds 10 to 14
    python benchmarks/combine.py --way easy --seeds 10 11     # students taught along the voters' way
    python benchmarks/combine.py --only gowalla-released --device cuda --way tune --processes 14   # then without --way
    python benchmarks/render_combine.py

Voters are fitted on the training part and tested as they are: nothing is refitted. Their settings are those of
results/combine-settings.jsonl, the best of the grids of version 0.2.0 on the validation part of the split of seed 0; of
BM25 and logistic factorisation, and of every voter on Gowalla, which are not there, the best of a small grid. --data: a
folder of prepared splits NAME-PROTOCOL-SEED, made if need be. What is in the results is not run again. One thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from implicit.bpr import BayesianPersonalizedRanking
from implicit.lmf import LogisticMatrixFactorization
from implicit.nearest_neighbours import BM25Recommender
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from sources import lines
from strong import split_of
from torch import Tensor

from concf.baselines.als import ALS, Pairs
from concf.baselines.table import BASELINES
from concf.comparison.results_log import ResultsLog
from concf.consensus.fusion import Fusions
from concf.consensus.voters import Voter, by_factors, by_lists
from concf.data.split import Split
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.metrics import hits
from concf.evaluation.scorers import Factors, ListFunction, ScoreFunction
from concf.evaluation.validation import Validation, sample
from concf.runs.settings import CONSENSUS
from concf.strong import students
from concf.strong.combine import combine
from concf.strong.combine_stages import GivenLists
from concf.strong.given_voters import as_voter, vectors_of_implicit
from concf.strong.search import PLANS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = ("citeulike-released", "ciao-released", "foursquare-released")
SEEDS, TUNED = range(10, 15), 0
AT, METRICS = (20, 50), ("recall", "ndcg", "coverage", "gini")
MOST_FACTORS = 256
OURS = {"ials": "als", "bpr": "bpr", "ease": "ease", "rp3beta": "rp3beta", "popularity": "popularity"}
VOTES = 200  # length of a voter's list, unless longer lists are evaluated
USERS, BLOCK = 2048, 1024  # users that weights of fusions are chosen on; users that are fused at a time
STEPWISE = {"als": 15, "bpr": 200}  # trained step by step, and how many by default
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "bm25": {"K": (20, 100, 500), "K1": (0.5, 1.2), "B": (0.2, 0.8)},
    "lmf": {"factors": (16, 32, 64), "regularization": (0.6, 2.0), "neg_prop": (10, 30)},
}
ELSEWHERE: dict[str, dict[str, tuple[Any, ...]]] = {  # of data sets without lines of settings
    "als": {"factors": (MOST_FACTORS,), "alpha": (20.0, 40.0, 80.0, 160.0, 320.0),
            "regularisation": (30.0, 60.0, 120.0, 250.0, 500.0), "iterations": (15,)},
    "bpr": {"learning_rate": (0.01, 0.03, 0.1), "regularisation": (0.005, 0.02, 0.05, 0.1)},
    "ease": BASELINES["ease"].grid,
    "rp3beta": {"alpha": (0.3, 0.5, 0.7, 0.9), "beta": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), "neighbours": (1000,)},
    "popularity": {},
}  # fmt: skip
ON_DEVICE = ("ease", "rp3beta")  # what a GPU computes
Model = Any
Point = dict[str, Any]


class Voters:
    """Models fitted on a log of the split, each by its first k unseen items."""

    def __init__(
        self, models: Mapping[str, Any], split: Split, log: csr_array, k: int = VOTES,
        device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        self.split, self.k = split, min(k, log.shape[1])
        self.seen = log if split.disliked is None else csr_array(log + split.disliked)
        self.longest = self.k + int(np.diff(split.valid.indptr).max())  # validation items may be taken out of a list
        self.device = torch.device(device)
        self.made = {name: as_voter(name, each, split, self.seen, self.k, self.device) for name, each in models.items()}

    def lists(self, users: Tensor) -> list[Voter]:
        """Lists and scores of each model for users [n]."""
        return [
            by_lists(name, made.lists[users], made.scores[users], made.of_items)
            if isinstance(made, GivenLists)
            else by_factors(name, Factors(*made), self.seen, users, self.k)
            for name, made in self.made.items()
        ]

    def weights(self, metric: str) -> dict[str, Tensor]:
        """Fusion -> its weights [voters], chosen on a sample of the validated users."""
        sampled = sample(self.split.validated, USERS, self.split.recipe.seed)
        validation = Validation(self.split, metric, self.device, validated=sampled)
        voters, measure = self.lists(validation.users), validation.of_its_users
        fusions = Fusions(voters, validation.users, self.k, self.seen.shape[1])
        return fusions.fit([measure(voter.lists) for voter in voters], measure, validation.depth)

    def fused(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fusion -> the lists [users, L] of all users."""
        users = torch.arange(self.seen.shape[0], device=self.device)
        blocks = [
            Fusions(self.lists(block), block, self.k, self.seen.shape[1]).lists(weights, self.longest)
            for block in torch.split(users, BLOCK)
        ]
        return {name: torch.cat([block[name] for block in blocks]).cpu() for name in blocks[0]}


def listed(lists: Tensor) -> ListFunction:
    """Recommender that returns stored lists [users, L]."""
    stored = lists.numpy()
    return ListFunction(lambda users, _length: stored[users])


def best_settings(name: str, model: str) -> dict[str, Any]:
    """Settings of a voter for a data set, from results/combine-settings.jsonl."""
    keys = [line["key"] for line in lines("combine-settings")]
    (chosen,) = (key["settings"] for key in keys if (key["data"], key["model"]) == (name, model))
    return dict(chosen)


def of_implicit(voter: str, settings: dict[str, Any], train: csr_array, seed: int) -> Model:
    """A model of implicit, fitted."""
    if voter == "bm25":
        model = BM25Recommender(num_threads=1, **settings)
    else:
        model = LogisticMatrixFactorization(iterations=30, random_state=seed, num_threads=1, **settings)
    model.fit(csr_matrix(train), show_progress=False)
    return model


def scorer(voter: str, model: Model, train: csr_array) -> Any:
    """What evaluates a model: its vectors, or the sums of similarities that its lists are by."""
    if voter != "bm25":
        return vectors_of_implicit(model)
    similar, rows = csr_array(model.similarity), csr_array(train)
    return ScoreFunction(lambda users: (rows[users] @ similar).toarray())


def fit(voter: str, point: Point, data: Split, seed: int, device: str) -> Model:
    """A voter, fitted on the training part."""
    if voter in GRIDS:
        return of_implicit(voter, point, data.train, seed)
    if voter == "bpr":
        model = BayesianPersonalizedRanking(
            factors=point.get("factors", 64), learning_rate=point["learning_rate"],
            regularization=point["regularisation"], iterations=point.get("iterations", STEPWISE[voter]),
            use_gpu=False, random_state=seed, num_threads=1,
        )  # fmt: skip
        model.fit(csr_matrix(data.train), show_progress=False)
        return vectors_of_implicit(model)
    model = next(model for model, name in OURS.items() if name == voter)
    return BASELINES[model].make(**point).fit(data.train, seed=seed, device=device)


def validated(voter: str, point: Point, path: Path, device: str) -> float:
    """The validation of one point of a grid, on the prepared split at `path`."""
    torch.set_num_threads(1)
    data = Split.load(path)
    model = fit(voter, point, data, TUNED, device)
    model = scorer(voter, model, data.train) if voter in GRIDS else model
    return evaluate(model, data, on="valid", at=50, metrics=["recall"], device=device).means()["recall@50"]


def tune(name: str, voters: dict[str, dict[str, tuple[Any, ...]]], log: ResultsLog, folder: Path, device: str,
         processes: int) -> None:  # fmt: skip
    """A line for each voter: the best point of its grid on the split of seed 0, and its values at an edge of it."""
    split_of(name, TUNED, folder)
    left = {
        voter: grid for voter, grid in voters.items() if log.find({"data": name, "seed": TUNED, "voter": voter}) is None
    }
    points = {voter: [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
              for voter, grid in left.items()}  # fmt: skip
    measured = partial(validated, path=folder / f"{name}-{TUNED}", device=device)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        elsewhere = {voter: [pool.submit(measured, voter, point) for point in grid]
                     for voter, grid in points.items() if voter not in ON_DEVICE}  # fmt: skip
        here = {voter: [measured(voter, point) for point in points[voter]] for voter in ON_DEVICE if voter in points}
        figures = here | {voter: [each.result() for each in found] for voter, found in elsewhere.items()}
    for voter, found in figures.items():
        best = int(np.argmax(found))
        chosen = points[voter][best]
        edge = [
            each for each, values in left[voter].items() if len(values) > 1 and chosen[each] in (values[0], values[-1])
        ]
        line = {"settings": chosen, "validation": round(found[best], 6), "edge": edge, "points": len(found)}
        log.add({"data": name, "seed": TUNED, "voter": voter}, line)
        print(name, voter, line, flush=True)


def chosen_settings(
    name: str, log: ResultsLog, folder: Path, device: str = "cpu", processes: int = 1
) -> dict[str, Point]:
    """Voter -> its settings."""
    known = any(line["key"]["data"] == name for line in lines("combine-settings"))
    grids = GRIDS if known else ELSEWHERE | GRIDS
    tune(name, grids, log, folder, device, processes)
    found = {voter: best_settings(name, model) for model, voter in OURS.items()} if known else {}
    cells = {voter: log.find({"data": name, "seed": TUNED, "voter": voter}) for voter in grids}
    return found | {voter: cell["settings"] for voter, cell in cells.items() if cell is not None}


def fitted(settings: dict[str, Point], data: Split, seed: int, device: str = "cpu") -> dict[str, Model]:
    """Voter -> the model."""
    return {voter: fit(voter, settings[voter], data, seed, device) for voter in (*OURS.values(), *GRIDS)}


def over_time(settings: dict[str, dict[str, Any]], data: Split, seed: int) -> dict[str, Model]:
    """The same voters, those that are trained step by step after a third, two thirds and all of their steps."""
    models = fitted(settings, data, seed)
    for name, default in STEPWISE.items():
        del models[name]
        steps = settings[name].get("iterations", default)
        for third in (1, 2, 3):
            point = settings[name] | {"iterations": max(1, steps * third // 3)}
            models[f"{name}@{third}"] = fit(name, point, data, seed, "cpu")
    return models


def measure_easy(name: str, seed: int, log: ResultsLog, folder: Path) -> None:
    """A line: students of the last consensus at once, and along those of the voters at three times, earliest first.

    All are solved by least squares, and then learn by the consensus loss for as many epochs.
    """
    key = {"data": name, "seed": seed, "way": "easy to hard"}
    if log.find(key) is not None:
        return
    data = split_of(name, seed, folder)
    models = over_time(chosen_settings(name, log, folder), data, seed)
    lists = []
    for third in ("1", "2", "3"):
        now = {word.partition("@")[0]: model for word, model in models.items() if word.partition("@")[2] in ("", third)}
        best = combine(data, now, seed=seed).best[CONSENSUS].lists
        assert best is not None
        lists.append(best)
    sweeps, _ = PLANS["default"].student
    regressed, taught = students.LENGTH, PLANS["default"].depth
    observed, users = Pairs.observed(data.train, lists[0].device), torch.arange(data.train.shape[0])
    als = ALS(observed, data.train.shape, MOST_FACTORS)
    start = als.fit(als.start(seed), **students.SOLVED_BY, sweeps=sweeps)
    rows = {}
    for way, solved, lessons in (
        ("at once", lists[2], [lists[2]] * 3),
        ("taught easy to hard", lists[2], lists),
        ("solved and taught easy to hard", lists[0], lists),
    ):
        user, item = students.solve_student(observed, users, solved[:, :regressed], start, sweeps)
        for epoch, lesson in enumerate(lessons):
            user, item = students.teach_student(user, item, users, lesson[:, :taught], 1, seed + epoch)
        rows[way] = figures((user, item), data)
    log.add(key, {"split": data.hash, "ours": rows})
    print(name, seed, {way: (row["recall@50"], row["ndcg@50"]) for way, row in rows.items()}, flush=True)


def popularity_groups(train: csr_array, groups: int) -> NDArray[np.int64]:
    """[items] the group of each by popularity, 0 that of the most popular.

    Items sorted by interactions, descending, ties by position, are cut into groups of about equally many interactions.
    """
    popularity = np.bincount(train.indices, minlength=train.shape[1])
    order = np.argsort(-popularity, kind="stable")
    before = np.cumsum(popularity[order]) - popularity[order]
    group = np.empty(len(order), np.int64)
    group[order] = np.minimum(before * groups // max(popularity.sum(), 1), groups - 1)
    return group


def by_popularity(evaluation: Evaluation, split: Split, at: int = 50, groups: int = 3) -> list[float]:
    """Recall by popularity of the test items, the most popular first: means over the users with items of a group."""
    group = popularity_groups(split.train, groups)
    relevant = split.test[evaluation.users]
    hit, listed = hits(evaluation.lists[:, :at], relevant), group[evaluation.lists[:, :at]]
    user = np.repeat(np.arange(len(evaluation.users)), np.diff(relevant.indptr))
    recalls = []
    for number in range(groups):
        total = np.bincount(user[group[relevant.indices] == number], minlength=len(hit))
        recall = (hit & (listed == number)).sum(1)[total > 0] / total[total > 0]
        recalls.append(float(recall.mean()) if len(recall) else 0.0)
    return recalls


def figures(model: Any, data: Split, device: str = "cpu") -> dict[str, Any]:
    """The test figures, and recall by popularity."""
    evaluation = evaluate(model, data, on="test", at=AT, metrics=METRICS, device=device)
    strata = [round(recall, 6) for recall in by_popularity(evaluation, data)]
    return {name: round(value, 6) for name, value in evaluation.means().items()} | {"strata": strata}


def fusions(models: dict[str, Model], metric: str, data: Split, device: str) -> dict[str, ListFunction]:
    """Fusion -> its lists of everyone, by weights from the validation part."""
    voters = Voters(models, data, data.train, device=device)
    return {name: listed(each) for name, each in voters.fused(voters.weights(metric)).items()}


def measure(name: str, seed: int, log: ResultsLog, folder: Path, device: str = "cpu") -> None:
    """A line: voters, fusions, consensus and student on one split."""
    key = {"data": name, "seed": seed}
    if log.find(key) is not None:
        return
    settings, data = chosen_settings(name, log, folder, device), split_of(name, seed, folder)
    begin = time.process_time()
    models = fitted(settings, data, seed, device)
    fitting = time.process_time() - begin
    begin = time.process_time()
    run = combine(data, models, seed=seed, device=device)
    seconds = time.process_time() - begin
    own = run.history[0]["validation"]
    fused = fusions(models, run.metric, data, device)
    rows = {
        "voters": {voter: figures(scorer(voter, each, data.train) if voter in GRIDS else each, data, device)
                   for voter, each in models.items()},
        "fusions": {each: figures(model, data) for each, model in fused.items()},
        "ours": {each: figures(run.recommender(each), data) for each in ("R-consensus", CONSENSUS, "student")},
    }  # fmt: skip
    line = {"split": data.hash, "settings": settings, "rows": rows, "validation": own, "device": device,
            "fitting": round(fitting, 1), "seconds": round(seconds, 1)}  # fmt: skip
    log.add(key, line)
    best = {kind: max(each["recall@50"] for each in found.values()) for kind, found in rows.items()}
    print(name, seed, best, rows["ours"][CONSENSUS], rows["ours"]["student"], line["seconds"], flush=True)


WAYS = {"easy": measure_easy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="prepared splits, made if need be")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=list(DATA), help="names of data sets")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument(
        "--way", choices=["tune", "plain", *WAYS], default="plain", help="of combining; tune: only that"
    )
    parser.add_argument("--device", default="cpu", help="for the settings, and for the plain way")
    parser.add_argument("--processes", type=int, default=1, help="that share the tuning")
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = ResultsLog(options.results / "combine.jsonl")
    if options.way == "tune":
        for name in options.only:
            chosen_settings(name, log, options.data, options.device, options.processes)
    for seed, name in product(options.seeds if options.way != "tune" else (), options.only):
        if options.way == "plain":
            measure(name, seed, log, options.data, options.device)
        else:
            WAYS[options.way](name, seed, log, options.data)


if __name__ == "__main__":
    main()
