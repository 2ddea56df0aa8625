"""Tune and test the baselines on the public data sets and write docs/baselines.md.

    make baselines

Every measurement is a line of benchmarks/results/baselines-*.jsonl; one that is there already is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sources import TITLE, commits_table, lines

from concf.data.split import Split
from concf.experiments.compare import Comparison, compare, comparison_rows
from concf.model.baselines.table import BASELINES
from concf.runtime.text_tables import markdown

ROOT = Path(__file__).parent.parent
RUNS = ["citeulike-released", "citeulike-paper", "ciao-released", "foursquare-released"]
HEAD = """# The baselines, tuned and tested

Rebuilt by `make baselines`, which takes about an hour on two cores; the raw measurements in
`benchmarks/results/baselines-*.jsonl` are reused, so remove them to measure again. One table by hand:

```
concf prepare citeulike --protocol paper --out data/citeulike-paper
concf compare data/citeulike-paper --models {models} --seeds 5 --markdown table.md
```

Mean ± standard deviation of the test figures over five [splits](glossary.md#split) (seeds 0 to 4). The settings of each
[baseline](glossary.md#baseline) were chosen by validation recall@50 on the split of seed 0, over the grids of
`model/baselines/table.py`, and then kept; * marks a value at the edge of its grid. p: paired t-test over the splits
against the first row, Holm-corrected. R is recall, N is NDCG; full ranking, ties to the lower item id. Seconds to fit
come from several machines under different loads (each raw line names its own): take them for an order of magnitude.
"""


def section(comparison: Comparison) -> str:
    title = f"\n## {comparison.source}, protocol `{comparison.protocol}`\n\n"
    hashes = ", ".join(split[:8] for split in comparison.split_hashes)
    return title + markdown(*comparison_rows(comparison)) + f"\nSplit hashes: {hashes}.\n"


def page(sections: list[str], results: Path) -> str:
    """docs/baselines.md."""
    names = [f"baselines-{run}" for run in RUNS]
    commits = commits_table({name: lines(name, results) for name in names})
    return HEAD.format(models=",".join(BASELINES)) + "".join(sections) + f"\n## {TITLE}\n\n{commits}"


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
    sections = []
    for run in [options.only] if options.only else RUNS:
        log = options.results / f"baselines-{run}.jsonl"
        sections.append(section(compare(data_set(run, options.data), list(BASELINES), log=log)))
        print(sections[-1], flush=True)
    if not options.only:
        (ROOT / "docs" / "baselines.md").write_text(page(sections, options.results), encoding="utf-8")


if __name__ == "__main__":
    main()
