"""Write docs/benchmarks.md from the raw lines under benchmarks/results/, and the tables of commits of other pages.

python benchmarks/render.py     (the last step of `make bench`)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sources import TITLE, commits_table, fill_in, lines

from concf.runtime.text_tables import markdown

ROOT = Path(__file__).parent.parent
HEAD = """# Speed and memory

Rebuilt by `make bench`, which takes an hour, most of it for the large memory run; the GPU's line by
`benchmarks/bench_training.py DATA --device cuda`. Raw lines with machine and commit are under `benchmarks/results/`,
and [their commits](#where-the-lines-come-from) are listed at the end. Times are medians on two cores of a shared
virtual machine. The ratios count, which are measured in turns within one run. The [glossary](glossary.md) explains the
words.
"""
NEWEST = ("first_log", "training-gpu", "evaluation-gpu", "service")  # of these the newest line is shown
SHOWN = (
    "first_log", "training", "training-gpu", "memory", "scaling", "evaluation", "evaluation-gpu", "service",
    "loading", "loading-busy", "splitting",
)  # fmt: skip


def first_log() -> str:
    found = lines("first_log")
    if not found:
        return ""
    line = found[-1]
    rows = [[f"`concf {name}`", f"{took:.0f}"] for name, took in line["seconds"].items()]
    log = line["log"]
    text = f"""
## README's first page (`benchmarks/bench_first_log.py`)

Every command on a simulated log of {log["events"]:,} rows ({log["users"]:,} users, {log["items"]:,} items) with the
default preset, each in a process of its own: {line["sum"] / 60:.1f} minutes in all on
{line["provenance"]["machine"]["cores"]} cores.

"""
    return text + markdown(["command", "s"], rows)


def evaluation() -> str:
    rows = [
        [f"{line['evaluated_users']:,}", str(line["threads"]), f"{line['median_seconds']['concf']:.3f}",
         f"{line['concf_over_bare']:.2f}", f"{line['concf_over_implicit']:.2f}"]
        for line in lines("evaluation")
    ]  # fmt: skip
    header = ["users", "threads", "concf, s", "over the bare work", "over implicit"]
    text = """
## Evaluation (`benchmarks/bench_evaluation.py`)

Full ranking of 25,181 items by random vectors of 64 dimensions, without the training items, ties exact, four metrics at
20 and 50. The bare work is the same blocked matrix product with `torch.topk` and nothing else; concf is faster because
it searches for the highest scores only in the groups of columns that can contain them. implicit is
`ranking_metrics_at_k` on the same vectors, with the better of two BLAS settings. The goals were at most 2.5, and below
1.

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

Each in a fresh process. The other libraries do less: Polars reads everything and counts the pairs; pandas reads the ids
and builds a sparse matrix. concf checks every row, orders the ids, merges repeats, keeps counts and first times, and
gives the same result for any order of the rows (checked in the same run on a shuffled copy of 10 million rows). It
spends its time on reading the file twice. Peak memory includes the pages of the file that the system has mapped.

The table is from before the reader took several files. The present reader, which merges pairs in groups of users, was
measured on the first four logs with both cores busy elsewhere (`results/loading-busy.jsonl`), so by its processor time
over that of Polars in the same run: 1.6, 1.0, 0.9 and 1.8 (before: 1.6, 1.0, 1.3 and 2.0), with peaks of 971, 876, 998
and 349 MB.

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

Splitting is almost linear in the pairs. It is compared with `numpy.lexsort` of users and draws, and with plain
`numpy.save` and `numpy.load` of the same arrays (saving also flushes to the disk and hashes the split, loading checks
that hash).

"""
    return text + markdown([*header, "save over `np.save`", "load over `np.load`"], rows)


def training() -> str:
    rows = [
        [f"{line['data']} `{line['protocol']}`", f"{line['users']:,} x {line['items']:,}", str(line["threads"]),
         *(f"{1000 * line['median_seconds'][name]:.1f}" for name in ("bare", "warm_up_step", "step")),
         f"{line['step_over_bare']:.1f}", f"{line['consensus_epoch_seconds']:.1f}",
         f"{line['rank_validate_consensus_seconds']:.2f}"]
        for line in lines("training")
    ]  # fmt: skip
    header = [
        "data",
        "users x items",
        "threads",
        "bare, ms",
        "warm-up step, ms",
        "step, ms",
        "step over bare",
        "epoch, s",
    ]
    text = """
## Training (`benchmarks/bench_training.py DATA`)

Preset `reference`, batch 1024, float32, all five objectives with the column-wise one, full softmax. "Bare" is the
matrix products of E and E' at the same sizes, forward and both backward ones, and nothing else. A step includes the
consensus loss and balancing; a ranking ranks all items for all users by six heads, validates and builds both
consensuses. The goal was a step of at most 6 times the bare products. Where the logits fit into the cache (CiteULike
`released`) the bare products are so fast that the rest of the step shows more.

"""
    return text + markdown([*header, "ranking, s"], rows) + _training_gpu() + _memory()


def _training_gpu() -> str:
    found = lines("training-gpu")
    if not found:
        return ""
    line = found[-1]
    step, floor = 1000 * line["median_seconds"]["step"], line["floor_milliseconds"]
    return (
        f"\nOn one {line['device']} at CiteULike `{line['protocol']}` sizes ({line['users']:,} x {line['items']:,}, "
        f"{line['pairs']:,} pairs, TF32): a step with consensus loss and balancing {step:.2f} ms, waiting for each "
        f"({1000 * line['median_seconds']['warm_up_step']:.2f} ms in warm-up), {step / floor:.1f} times a floor of "
        f"{floor:.2f} ms (the logits of E and E' touched nine times at 4.3 TB/s; the kernels never store them); an "
        f"epoch {line['consensus_epoch_seconds']:.3f} s; a ranking {line['rank_validate_consensus_seconds']:.3f} s; "
        f"{line['epochs']} epochs with a ranking every 10, start-up and graph capture included, "
        f"{line['run_seconds']:.0f} s; "
        f"{line['peak_allocated_bytes'] / 2**30:.2f} GiB at the peak. The authors' released code on the same card: "
        f"11.7 s an epoch in warm-up alone.\n"
    )


def _memory() -> str:
    found = lines("memory")
    if not found:
        return ""
    rows = [
        [f"{line['users']:,} x {line['items']:,}", f"{line['pairs']:,}", line["device"], f"{line['steps']:,}",
         f"{line['agree_seconds']:.0f}", f"{line['host_peak_mb_before_training']:,.0f}", f"{line['host_peak_mb']:,.0f}"]
        for line in found
    ]  # fmt: skip
    header = ["users x items", "training pairs", "device", "steps", "ranking, s", "peak MB, data alone", "peak MB"]
    text = """
### Memory (`benchmarks/bench_scaling.py memory`)

The consensus keeps, for each ranking of its window, users x heads x 500 items of 4 bytes. This grows with users x list
length, not with users x items. A dense table of ranks for 200,000 x 100,000 would be 480 GB for six heads. The large
run made ten steps, not an epoch, and shared the machine, so its time says little.

"""
    return text + markdown(header, rows) + _scaling()


def _scaling() -> str:
    found = lines("scaling")
    if not found:
        return ""
    text = """
### Growth (`benchmarks/bench_scaling.py time`, drawn by `benchmarks/render.py`)

![seconds of an epoch against interactions, items and heads](scaling.png)

An epoch has interactions / 1024 steps, so it is linear in the interactions. A step's softmax over items, the consensus
loss's encoding of all items and the optimiser are linear in the items; other parts do not depend on them. Heads share
gathers and lists, and what each adds depends on its kind: the multinomial ones (the last two) cost most.

"""
    rows = [
        [
            line["against"],
            f"{line['value']:,}",
            f"{line['seconds']:.2f}",
            f"{1000 * line['seconds'] / line['steps']:.1f}",
        ]
        for line in found
    ]
    return text + markdown(["against", "value", "epoch, s", "step, ms"], rows)


def serving() -> str:
    found = lines("service")
    if not found:
        return ""
    line = found[-1]
    text = f"""
## Serving (`benchmarks/bench_service.py`)

`GET /recommend/{{user}}`, k = {line["k"]}, of a run of {line["users"]:,} users and {line["items"]:,} items (preset
`reference`, untrained), one process, {line["connections"]} persistent connections, clients on the same two cores. The
floor is a bare Starlette route that sends {line["bytes"]} constant bytes, as many as a list has. The service checks
hosts, origins, sizes and names of parameters, counts and gives request ids; `logged` is the consensus of a service that
also writes an access log. The goal was at most 200 µs of processor time for the consensus. Measured in turns; medians
of {line["rounds"]} rounds. After the first round the lists of the {line["asked"]:,} users asked for are kept, as the
newest always are. Processor time is that of the server's process. It grows when others use the machine: the
ratios count.

"""
    rows = [
        [name, f"{line[name]['cpu_us']:.0f}", f"{line[name]['per_second']:,.0f}", f"{line[name]['p50_ms']:.2f}",
         f"{line[name]['p99_ms']:.2f}",
         *(f"{line[name][f'{figure}_over_floor']:.2f}" if name != "floor" else ""
           for figure in ("cpu_us", "per_second", "p50_ms", "p99_ms"))]
        for name in ("floor", "consensus", "head", "logged")
    ]  # fmt: skip
    header = ["", "processor, µs", "requests/s", "p50, ms", "p99, ms",
              *(f"{figure} over floor" for figure in ("processor", "requests", "p50", "p99"))]  # fmt: skip
    return text + markdown(header, rows) + _endurance(line)


def _endurance(line: dict[str, Any]) -> str:
    many, beside, batches = line["many"], line["beside_enemies"], line["beside_batches"]
    answered = ", ".join(f"{count:,} x {status}" for status, count in sorted(beside["enemy"]["answered"].items()))
    return (
        f"\n{many['requests']:,} requests: {many['failed']} failed, {many['rss_mb_before']:,.0f} MB before and "
        f"{many['rss_mb_after']:,.0f} MB after. Beside four callers of batches (200 histories of 100 items, k = 200) "
        f"p99 of single requests is {batches['p99_ms']:.0f} ms, {batches['p99_over_alone']:.1f} times that without "
        f"(goal: 3). "
        f"While the run is reloaded again and again, beside a hostile client (garbage, huge and endless bodies, broken "
        f"JSON, long paths and headers, {beside['enemy']['half_open']:,} connections left half open): "
        f"{beside['requests']:,} valid requests, {beside['failed']} failed, {beside['wrong']} with another answer than "
        f"the library's, p99 at most {beside['p99_ms']:.0f} ms; the hostile client got {answered}; "
        f"{beside['rss_mb_after']:,.0f} MB after.\n"
    )


def draw_scaling() -> None:
    """docs/scaling.png: seconds of an epoch against each size."""
    found = lines("scaling")
    if not found:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axis, against in zip(figure.subplots(1, 3), ("interactions", "items", "heads"), strict=True):
        points = [(line["value"], line["seconds"]) for line in found if line["against"] == against]
        axis.plot(*zip(*points, strict=True), marker="o", color="#1f4e79")
        axis.set(xlabel=against, ylim=(0, None), xlim=(0, None))
        axis.grid(alpha=0.3)
        axis.set_ylabel("seconds of an epoch")
    figure.savefig(ROOT / "docs" / "scaling.png", dpi=110)


def page() -> str:
    """docs/benchmarks.md."""
    body = first_log() + training() + evaluation() + serving() + loading() + splitting()
    shown = {name: lines(name)[-1:] if name in NEWEST else lines(name) for name in SHOWN}
    return f"{HEAD}{body}\n## {TITLE}\n\n{commits_table(shown)}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw_scaling()
    (ROOT / "docs" / "benchmarks.md").write_text(page(), encoding="utf-8")
    for other in (ROOT / "docs").glob("*.md"):
        fill_in(other)


if __name__ == "__main__":
    main()
