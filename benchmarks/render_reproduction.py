"""Write docs/reproduction.md with its figures, and results/tables/, from the lines of results/reproduction.jsonl.

python benchmarks/render_reproduction.py     (`make reproduction`; `concf reproduce` measures the lines)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reproduction.page import render

from concf.experiments.results_log import ResultsLog

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="has reproduction.jsonl; gets tables/")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page and its figures are written")
    chosen = parser.parse_args()
    log = ResultsLog(chosen.results / "reproduction.jsonl", option="--results")
    if not log.cells:
        parser.error(f"{log.path}: no lines; measure them with concf reproduce, or choose another --results")
    for path in render(log.cells.values(), chosen.docs, chosen.results):
        print(path)


if __name__ == "__main__":
    main()
