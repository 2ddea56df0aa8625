"""Write docs/benchmarks.md from the raw lines under benchmarks/results/.

make bench
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from concf.tables import markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HEAD = """# Speed and memory

Rebuilt by `make bench` (about ten minutes; raw lines with machine and commit under `benchmarks/results/`). Times are
medians on two cores of a shared virtual machine: the ratios, measured in turns within one run, are what counts.
"""


def lines(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def evaluation() -> str:
    rows = [
        [f"{line['evaluated_users']:,}", str(line["threads"]), f"{line['median_seconds']['concf']:.3f}",
         f"{line['concf_over_bare']:.2f}", f"{line['concf_over_implicit']:.2f}"]
        for line in lines("evaluation")
    ]  # fmt: skip
    header = ["users", "threads", "concf, s", "over the bare work", "over implicit"]
    text = """
## Evaluation (`benchmarks/bench_evaluation.py`)

Full ranking of 25,181 items by random vectors of 64 dimensions, seen items left out, ties exact, four metrics at 20
and 50. Bare work: the same blocked matrix product with `torch.topk` and nothing else; concf is below it because it
looks for the highest scores only in the groups of columns that can hold them. implicit: `ranking_metrics_at_k` on the
same vectors, with the better of two BLAS settings. Goals: at most 2.5, and below 1.

"""
    return text + markdown(header, rows) + _gpu()


def _gpu() -> str:
    found = lines("evaluation-gpu")
    if not found:
        return ""
    line = found[-1]
    return (
        f"\nOn one {line['device']} (`benchmarks/bench_evaluation_gpu.py`): {line['evaluated_users']:,} users in "
        f"{1000 * line['median_seconds']['concf']:.1f} ms, {line['concf_over_bare']:.1f} times the bare work (the rest "
        f"is the host's masks and metrics), {line['peak_bytes'] / 1e9:.2f} GB; lists with many ties equal the CPU's.\n"
    )


def loading() -> str:
    rows = [
        [line["log"], f"{line['rows']:,}", f"{line['pairs']['concf']:,}", f"{line['median_seconds']['concf']:.1f}",
         f"{line['peak_mb']['concf']:,.0f}",
         *(f"{line[f'median_seconds_over_{r}']:.1f} / {line[f'peak_mb_over_{r}']:.2f}" for r in ("polars", "pandas"))]
        for line in lines("loading") if "peak_mb" in line
    ]  # fmt: skip
    header = ["log", "rows", "distinct pairs", "s", "peak MB", "time / memory over polars", "over pandas"]
    text = """
## Loading (`benchmarks/bench_loading.py`, second half with `--users 20000 --items 500`)

In a fresh process each. What the rivals do is less: Polars reads everything and counts the pairs; pandas reads the ids
and builds a sparse matrix. concf checks every row, orders the ids, merges repeats, keeps counts and first times, and
gives the same result for any order of the rows (checked in the same run on a shuffled copy of 10 million rows). Its
time is spent on going through the file twice. Peak memory contains the pages of the file that the system has mapped.

"""
    return text + markdown(header, rows)


def splitting() -> str:
    rows = [
        [line["protocol"], f"{line['interactions']:,}",
         *(f"{line['median_seconds'][step]:.3f}" for step in ("filter", "split", "save", "load")),
         f"{line['split_over_sort']:.2f}", f"{line['save_over_write']:.1f}", f"{line['load_over_read']:.1f}"]
        for line in lines("splitting")
    ]  # fmt: skip
    header = ["protocol", "pairs", "filter, s", "split, s", "save, s", "load, s", "split over `lexsort`"]
    text = """
## Splitting (`benchmarks/bench_splitting.py`)

Near-linear in the pairs. Floors: `numpy.lexsort` of users and draws, plain `numpy.save` and `numpy.load` of the same
arrays (saving also flushes to the disk and hashes the split, loading checks that hash).

"""
    return text + markdown([*header, "save over `np.save`", "load over `np.load`"], rows)


def main() -> None:
    (ROOT / "docs" / "benchmarks.md").write_text(HEAD + evaluation() + loading() + splitting(), encoding="utf-8")


if __name__ == "__main__":
    main()
