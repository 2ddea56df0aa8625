"""What a half-life brings when the future is predicted: the lines of docs/new-data.md.

    python benchmarks/half_life.py baselines    # RP3beta, ALS and popularity, tuned for every half-life
    python benchmarks/half_life.py strong       # the default preset, which searches its settings itself
    python benchmarks/render_weights.py

On Ciao, and on three draws of a simulated log that drifts, both split by time. What is in the results is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from concf.baselines.factorisation import ALS, Popularity
from concf.baselines.neighbours import RP3beta
from concf.comparison.results_log import ResultsLog
from concf.data.prepare import prepare
from concf.data.simulate import DRIFTING
from concf.data.split import Split
from concf.data.weights import Weighting
from concf.evaluation.evaluate import evaluate
from concf.models import choose_settings, train

RESULTS = Path(__file__).parent / "results" / "half_life.jsonl"
SEEDS = range(3)
HALF_LIVES = {"drifting": (None, "180d", "90d", "30d"), "ciao": (None, "4y", "2y", "1y")}
AT, METRICS, CHOSEN_BY = (20, 50), ("recall", "ndcg"), "recall@50"
CANDIDATES: dict[str, list[Any]] = {
    "popularity": [Popularity()],
    "rp3beta": [RP3beta(beta=beta, neighbours=500) for beta in (0.0, 0.2, 0.4)],
    "als": [ALS(factors=128, unobserved=0.03, penalty=penalty) for penalty in (0.01, 0.1)],
}
OWN = ("consensus", "student", "als-a")


def split_of(name: str, seed: int) -> Split:
    """The last tenth of the log is the test part, the tenth before it the validation part."""
    return prepare(DRIFTING.draw(seed) if name == "drifting" else name, protocol="time", min_item=5)


def figures(model: Any, data: Split, on: Literal["valid", "test"]) -> dict[str, float]:
    """Rounded means."""
    means = evaluate(model, data, on=on, at=AT, metrics=METRICS).means()
    return {figure: round(value, 6) for figure, value in means.items()}


def baselines(data: Split, half_life: str | None, seed: int) -> dict[str, Any]:
    """The best of each on validation, fitted anew with the validation part and tested."""
    data, rows = data.weighted(Weighting(half_life=half_life)), {}
    for name, candidates in CANDIDATES.items():
        valid = [figures(each.fit(data.train, seed=seed), data, "valid")[CHOSEN_BY] for each in candidates]
        best = candidates[valid.index(max(valid))]
        tested = figures(best.fit(data.log(("train", "valid")), seed=seed), data, "test")
        rows[name] = {"settings": best.model_dump(), CHOSEN_BY: max(valid), "test": tested}
    return {"metric": CHOSEN_BY, "rows": rows}


def strong(data: Split, half_life: str | None, seed: int) -> dict[str, Any]:
    """Validation before the refit, and test after it."""
    run = train(data, choose_settings("strong", {"weights": {"half_life": half_life}}), seed=seed, device="cpu")
    rows = {}
    for name in OWN:
        tested = figures(run.recommender(name), run.data, "test")
        rows[name] = {run.metric: round(run.best[name].validation, 6), "test": tested}
    return {"metric": run.metric, "rows": rows}


WHATS: Mapping[str, Callable[[Split, str | None, int], dict[str, Any]]] = {"baselines": baselines, "strong": strong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(WHATS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", choices=list(HALF_LIVES), default=list(HALF_LIVES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    options = parser.parse_args()
    log = ResultsLog(options.results)
    for seed in options.seeds:
        for name in options.only:
            data = split_of(name, seed)
            for half_life in HALF_LIVES[name]:
                key = {"what": options.what, "data": name, "seed": seed, "half_life": half_life}
                if log.find(key) is None:
                    begin = time.process_time()
                    found = WHATS[options.what](data, half_life, seed)
                    seconds = round(time.process_time() - begin, 1)
                    log.add(key, {"users": len(data.evaluated), "processor_seconds": seconds} | found)
                    print(key, found["rows"], seconds, flush=True)


if __name__ == "__main__":
    main()
