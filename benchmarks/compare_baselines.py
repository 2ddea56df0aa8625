"""Tune and test the baselines on the public data sets and write docs/baselines.md.

    make baselines

Every measurement is a line of benchmarks/results/baselines-*.jsonl; one that is there already is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sources import TITLE, commits_table, lines

from concf.baselines.table import BASELINES
from concf.comparison.compare import Comparison, compare, comparison_rows
from concf.data.split import Split
from concf.runtime.text_tables import markdown

ROOT = Path(__file__).parent.parent
RUNS = ["citeulike-released", "citeulike-paper", "ciao-released", "foursquare-released"]
HEAD = """# The baselines, tuned and tested

Rebuilt by `make baselines`; the raw measurements in
`benchmarks/results/baselines-*.jsonl` are reused, so remove them to measure again. One table by hand:

```
concf prepare citeulike --protocol paper --out data/citeulike-paper
concf compare data/citeulike-paper --models {models} --seeds 5 --markdown table.md
```

A [baseline](glossary.md#baseline) is tuned and tested in three steps:

1. **Search.** The validation part of the first [split](glossary.md#split) chooses the settings, over the grids of
   `model/baselines/table.py`. A grid of at most 60 points is measured whole. In a larger one the search starts in the
   middle and moves one setting, or two at once, to better neighbouring values, until no such neighbour is better; each
   point is measured once. * marks a chosen value at the edge of its grid: a wider grid may hold a better one.
2. **Refit.** With these settings the model is fitted anew on the training *and* validation pairs of every split, since
   that is what one would put into service. `--no-refit` tests what was validated, fitted on the training pairs alone.
   `strong` refits itself; the other presets of ConCF are tested as they were validated.
3. **Test.** Lists leave out a user's training and validation items, refitted or not.

`ials` is iALS by the library `implicit`; `als` is iALS by concf's own solver, which needs no further library, runs on a
GPU too, and whose penalty grows with the number of a user's or an item's pairs (Rendle et al., 2022).

Mean ± standard deviation of the test figures over five splits (seeds 0 to 4), chosen by validation recall@50 on that of
seed 0. p: paired t-test over the splits against the first row, Holm-corrected. R is recall, N is NDCG; full ranking,
ties to the lower item id. Seconds to fit come from several machines under different loads (each raw line names its
own): take them for an order of magnitude.
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
