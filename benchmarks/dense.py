"""How much of the consensus the student keeps on dense simulated logs: the table of docs/strong.md.

python benchmarks/dense.py measure
python benchmarks/dense.py render
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measuring import RESULTS
from sources import DOCS, lines, render

from concf.comparison.results_log import ResultsLog
from concf.data.prepare import prepare
from concf.data.simulate import Simulation
from concf.models import choose_settings, train
from concf.runtime.text_tables import markdown

EVENTS = (50, 100, 300)  # of a user, of which some repeat
METRICS = ("recall@20", "ndcg@20", "recall@50", "ndcg@50")
SHOWN = {"als-a": "one ALS", "consensus": "consensus", "student": "the head"}


def measure(results: Path) -> None:
    """Train the default on each log that has no line yet."""
    log = ResultsLog(results)
    for events in EVENTS:
        size = {"users": 2500, "items": 3000 if events < 300 else 4000, "events": int(2500 * events * 1.45)}
        key = {"simulation": size | {"tastes": 48, "popularity": 0.7}, "seed": 3}
        if log.find(key) is None:
            data = prepare(Simulation(**key["simulation"]).draw(3), protocol="random", seed=0)
            run = train(data, choose_settings("strong"), seed=0)
            found = run.evaluate(on="test", at=[20, 50], metrics=["recall", "ndcg"])
            test = {name: {metric: found[name].means()[metric] for metric in METRICS} for name in SHOWN}
            of_user = round(data.train.nnz / data.train.shape[0], 1)
            print(log.add(key, {"pairs_of_a_user": of_user, "test": test, "chosen": run.chosen["student"]}), flush=True)


def pages() -> dict[Path, dict[str, str]]:
    """The table of docs/strong.md."""
    rows = []
    for line in lines("dense"):
        figures = [" / ".join(f"{line['test'][name][metric]:.4f}" for metric in METRICS[1:3]) for name in SHOWN]
        kept = (line["test"]["student"][metric] / line["test"]["consensus"][metric] for metric in METRICS[1:3])
        rows.append([f"{line['pairs_of_a_user']:.0f}", *figures, ", ".join(f"{100 * share:.1f} %" for share in kept)])
    header = ["training pairs of a user", *(f"{name}, N@20 / R@50" for name in SHOWN.values()), "head of consensus"]
    return {DOCS / "strong.md": {"dense": markdown(header, rows)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "render"))
    parser.add_argument("--results", type=Path, default=RESULTS / "dense.jsonl")
    options = parser.parse_args()
    if options.step == "measure":
        measure(options.results)
    else:
        render("dense", pages())


if __name__ == "__main__":
    main()
