"""Tune and test the baselines on the public data sets and write their table in docs/strong.md.

    make baselines

Every measurement is a line of benchmarks/results/baselines-*.jsonl; one that is there already is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from sources import DOCS, lines, render

from concf.baselines.table import BASELINES
from concf.comparison.compare import Comparison, compare, comparison_rows
from concf.data.split import Split
from concf.runtime.text_tables import markdown

ROOT = Path(__file__).parent.parent
RUNS = ["citeulike-released", "citeulike-paper", "ciao-released", "foursquare-released"]
FIGURES = ("recall@50", "ndcg@50")


def section(comparison: Comparison) -> str:
    title = f"\n## {comparison.source}, protocol `{comparison.protocol}`\n\n"
    return title + markdown(*comparison_rows(comparison))


def pages() -> dict[Path, dict[str, str]]:
    """Mean test Recall@50 and NDCG@50 of each baseline on each data set, from the lines alone, and the splits."""
    tests = {run: [each for each in lines(f"baselines-{run}") if each["key"]["on"] == "test"] for run in RUNS}
    rows = []
    for model in dict.fromkeys(line["key"]["model"] for each in tests.values() for line in each):
        found = [[line["mean"] for line in each if line["key"]["model"] == model] for each in tests.values()]
        cells = [" / ".join(f"{mean(one[figure] for one in each):.4f}" for figure in FIGURES) for each in found]
        rows.append([model, *cells])
    hashes = [dict.fromkeys(line["key"]["split"][:8] for line in each) for each in tests.values()]
    rows.append(["splits", *(", ".join(each) for each in hashes)])
    titles = [run.replace("-", " `") + "`" for run in RUNS]
    return {DOCS / "strong.md": {"baselines": markdown(["R@50 / N@50", *titles], rows)}}


def data_set(run: str, folder: Path) -> Split:
    """The prepared folder, made if it is not there."""
    if not (folder / run).exists():
        from concf.data.prepare import prepare

        name, _, protocol = run.partition("-")
        prepare(name, protocol=protocol, out=folder / run)
    return Split.load(folder / run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="prepared folders, made if need be")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--only", choices=RUNS, help="one data set, and no document")
    options = parser.parse_args()
    for run in [options.only] if options.only else RUNS:
        log = options.results / f"baselines-{run}.jsonl"
        models = [name for name, each in BASELINES.items() if not each.timed]
        print(section(compare(data_set(run, options.data), models, log=log)), flush=True)
    if not options.only:
        render("compare_baselines", pages())


if __name__ == "__main__":
    main()
