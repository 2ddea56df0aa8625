"""Write README.md, pictures/ and tables/ of this folder, and figures of docs/paper.md, from results.jsonl.

python -m reproduction.render     (`make reproduction`; `python -m reproduction` measures the lines)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from concf.comparison.results_log import ResultsLog
from reproduction import paper_page
from reproduction.lines import Lines
from reproduction.page import render

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="the measured lines")
    parser.add_argument("--out", type=Path, default=HERE, help="where the page, its pictures and tables are written")
    chosen = parser.parse_args()
    log = ResultsLog(chosen.results, option="--results")
    if not log.cells:
        parser.error(f"{log.path}: no lines; measure them with python -m reproduction, or choose another --results")
    for path in render(log.cells.values(), chosen.out):
        print(path)
    if chosen.out == HERE:
        text = paper_page.PAGE.read_text(encoding="utf-8")
        paper_page.PAGE.write_text(paper_page.filled(text, Lines(log.cells.values())), encoding="utf-8")
        print(paper_page.PAGE)


if __name__ == "__main__":
    main()
