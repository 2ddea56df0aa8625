"""What a half-life brings when the future is predicted: the lines of docs/weights.md.

    python benchmarks/half_life.py         # Ciao, and three draws of a log that drifts, both split by time
    python benchmarks/render_weights.py

Every run is the default preset with fewer factors, which chooses the settings of its voters anew for every half-life.
Beside its own heads RP3beta with the settings that the run chose, and popularity, are fitted to the same weights. What
is in the results is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from concf.data.drift import DRIFTING
from concf.data.prepare import prepare
from concf.data.split import Split
from concf.evaluation.evaluate import evaluate
from concf.experiments.results_log import ResultsLog
from concf.model.baselines.neighbours import RP3beta
from concf.model.baselines.popularity import Popularity
from concf.training.train import train

RESULTS = Path(__file__).parent / "results" / "half_life.jsonl"
SEEDS = range(3)
HALF_LIVES = {"drifting": (None, "180d", "90d", "30d"), "ciao": (None, "4y", "2y", "1y")}
FACTORS = 64  # a quarter of the default's, for the sake of time
AT, METRICS = (20, 50), ("recall", "ndcg")
OWN = ("consensus", "student", "als-a")


def split_of(name: str, seed: int) -> Split:
    """The last tenth of the log is the test part, the tenth before it the validation part."""
    return prepare(DRIFTING.draw(seed) if name == "drifting" else name, protocol="time", min_item=5)


def figures(model: Any, data: Split, on: Any) -> dict[str, float]:
    """Rounded means."""
    means = evaluate(model, data, on=on, at=AT, metrics=METRICS).means()
    return {figure: round(value, 6) for figure, value in means.items()}


def measured(data: Split, half_life: str | None, seed: int) -> Mapping[str, Any]:
    """Validation before the refit, and test after it, of the run and of the baselines beside it."""
    begin = time.process_time()
    changes = {"weights": {"half_life": half_life}, "model": {"dimensions": FACTORS}}
    run = train(data, changes, seed=seed, device="cpu")
    seconds = time.process_time() - begin
    rows = {
        name: {
            run.metric: round(run.best[name].validation, 6),
            "test": figures(run.recommender(name), run.data, "test"),
        }
        for name in OWN
    }
    for name, baseline in (("rp3beta", RP3beta(**run.chosen["rp3beta"])), ("popularity", Popularity())):
        valid = figures(baseline.fit(run.data.train), run.data, "valid")
        rows[name] = {run.metric: valid[run.metric], "test": figures(baseline.fit(run.log), run.data, "test")}
    return {"users": len(data.evaluated), "metric": run.metric, "rows": rows, "processor_seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", choices=list(HALF_LIVES), default=list(HALF_LIVES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    options = parser.parse_args()
    log = ResultsLog(options.results)
    for seed in options.seeds:
        for name in options.only:
            data = split_of(name, seed)
            for half_life in HALF_LIVES[name]:
                key = {"data": name, "seed": seed, "half_life": half_life}
                if log.find(key) is None:
                    line = log.add(key, dict(measured(data, half_life, seed)))
                    print(key, line["rows"]["consensus"], line["processor_seconds"], flush=True)


if __name__ == "__main__":
    main()
