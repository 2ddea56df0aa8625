"""What a full evaluation costs, beside the bare matrix product with top-k and beside implicit's evaluation.

    python benchmarks/bench_evaluation.py

Random vectors in the size of CiteULike. Goals: at most 2.5 times the bare work, and faster than implicit. Lines with
one thread stand beside those with all: where other work holds the cores, threads wait for each other, and only
one thread compares the work itself.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from implicit.cpu.als import AlternatingLeastSquares
from implicit.evaluation import ranking_metrics_at_k
from measuring import fastest, in_turns, medians, write
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from threadpoolctl import threadpool_limits

from concf.evaluation.evaluate import Evaluation, score_lists
from concf.evaluation.ranking import CPU_MEMORY, rank
from concf.evaluation.scorers import Factors

CUTS = (20, 50)
LONGEST = max(CUTS)
METRICS = ("recall", "ndcg", "precision", "map")
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class TrainingSet:
    """Random vectors, and random pairs to leave out and to find.

    user, item: [users, d], [items, d] float32
    seen, held_out: [users, items], no pair in both
    evaluated: [e] the users with held-out pairs
    """

    user: NDArray[np.float32]
    item: NDArray[np.float32]
    seen: csr_array
    held_out: csr_array
    evaluated: NDArray[np.int64]

    @classmethod
    def draw(cls, options: argparse.Namespace, n_evaluated: int) -> TrainingSet:
        rng = np.random.default_rng(options.seed)
        shape = (options.users, options.items)
        user, item = (rng.standard_normal((n, options.dimensions), np.float32) for n in shape)
        seen = rng.choice(options.users * options.items, options.seen, replace=False)
        evaluated = np.sort(rng.choice(options.users, n_evaluated, replace=False))
        more = rng.choice(evaluated, round((options.held_out - 1) * n_evaluated))
        who = np.r_[evaluated, more]
        held_out = np.setdiff1d(who * options.items + rng.integers(options.items, size=len(who)), seen)
        found = np.unique(held_out // options.items)
        return cls(user, item, _matrix(seen, shape), _matrix(held_out, shape), found)


def _matrix(cells: NDArray[np.int64], shape: tuple[int, int]) -> csr_array:
    """[users, items] ones at the given cells, counted row by row."""
    rows, columns = np.divmod(cells, shape[1])
    rows, columns = rows.astype(np.int32), columns.astype(np.int32)  # implicit takes no others
    return csr_array((np.ones(len(cells), np.float32), (rows, columns)), shape=shape)


def bare(case: TrainingSet) -> None:
    """The matrix product and torch's top-k, block by block as concf has them; nothing left out, nothing scored."""
    user, item = torch.from_numpy(case.user[case.evaluated]), torch.from_numpy(case.item)
    size = CPU_MEMORY // (4 * len(item))
    out = torch.empty(size, len(item))
    with torch.inference_mode():
        for block in user.split(size):  # type: ignore[no-untyped-call]
            torch.mm(block, item.T, out=out[: len(block)]).topk(LONGEST)


def full(case: TrainingSet) -> Evaluation:
    """concf: rank, leave out what was seen, order ties, score four metrics at two cuts, user by user."""
    lists = rank(Factors.of(case.user, case.item), case.evaluated, LONGEST, seen=case.seen)
    return score_lists(lists, case.evaluated, case.held_out, case.seen, at=CUTS, metrics=METRICS)


class Rival:
    """implicit with the same vectors; its figures are means at the longest cut."""

    def __init__(self, case: TrainingSet, threads: int) -> None:
        self.seen, self.held_out = csr_matrix(case.seen), csr_matrix(case.held_out)
        self.evaluated, self.threads = case.evaluated, threads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about BLAS threads; both settings are measured
            self.model = AlternatingLeastSquares(factors=case.user.shape[1], num_threads=threads)
        self.model.user_factors, self.model.item_factors = case.user, case.item

    def evaluate(self) -> dict[str, float]:
        found: dict[str, float] = ranking_metrics_at_k(
            self.model, self.seen, self.held_out, K=LONGEST, show_progress=False, num_threads=self.threads
        )
        return found

    def evaluate_with_one_blas_thread(self) -> dict[str, float]:
        with threadpool_limits(1, "blas"):
            return self.evaluate()

    def lists(self) -> NDArray[np.int32]:
        return np.asarray(self.model.recommend(self.evaluated, self.seen[self.evaluated], N=LONGEST)[0])


def measure(case: TrainingSet, threads: int, rounds: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    rival = Rival(case, threads)
    ours, theirs = full(case), rival.evaluate()
    works: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(case),
        "concf": lambda: full(case),
        "implicit": rival.evaluate,
        "implicit, one BLAS thread": rival.evaluate_with_one_blas_thread,
    }
    times = in_turns(works, rounds)
    middle, best = medians(times), fastest(times)
    return {
        "users": case.seen.shape[0],
        "items": case.seen.shape[1],
        "dimensions": case.user.shape[1],
        "evaluated_users": len(case.evaluated),
        "seen_pairs": case.seen.nnz,
        "held_out_pairs": case.held_out.nnz,
        "metrics": [f"{name}@{n}" for n in CUTS for name in METRICS],
        "threads": threads,
        "median_seconds": middle,
        "concf_over_bare": middle["concf"] / middle["bare"],
        "concf_over_implicit": middle["concf"] / _better(middle),
        "concf_over_bare_fastest": best["concf"] / best["bare"],
        "concf_over_implicit_fastest": best["concf"] / _better(best),
        "equal_lists": float((ours.lists == rival.lists()).all(1).mean()),
        "ndcg_difference": abs(ours.means()[f"ndcg@{LONGEST}"] - theirs["ndcg"]),
        "seconds": times,
    }


def _better(times: dict[str, float]) -> float:
    return min(time for name, time in times.items() if name.startswith("implicit"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=5219)
    parser.add_argument("--items", type=int, default=25181)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--seen", type=int, default=107_638, help="pairs that are left out of the lists")
    parser.add_argument("--held-out", type=float, default=4.2, help="held-out pairs of an evaluated user, on average")
    parser.add_argument("--evaluated", type=int, nargs="+", default=[5219, 2139], help="users, one line each")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({CORES, 1}, reverse=True), help="as above")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for n_evaluated in options.evaluated:
        case = TrainingSet.draw(options, n_evaluated)
        for threads in options.threads:
            write("evaluation", measure(case, threads, options.rounds))


if __name__ == "__main__":
    main()
