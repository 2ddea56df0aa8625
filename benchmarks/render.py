"""Write the tables of docs/scale.md and draw docs/scaling.png from benchmarks/results/.

python benchmarks/render.py     (the last step of `make bench`)
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sources import DOCS, lines, render

from concf.runtime.text_tables import markdown


def first_log() -> str:
    line = lines("first_log")[-1]
    rows = [[f"`concf {name}`", f"{took:.0f}"] for name, took in line["seconds"].items()]
    return markdown(["command", "s"], rows)


def evaluation() -> str:
    rows = [
        [f"{line['evaluated_users']:,}", str(line["threads"]), f"{line['median_seconds']['concf']:.3f}",
         f"{line['concf_over_bare']:.2f}", f"{line['concf_over_implicit']:.2f}"]
        for line in lines("evaluation")
    ]  # fmt: skip
    header = ["users", "threads", "concf, s", "over the bare work", "over implicit"]
    return markdown(header, rows)


def evaluation_gpu() -> str:
    line = lines("evaluation-gpu")[-1]
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
    return markdown(header, rows)


def splitting() -> str:
    rows = [
        [line["protocol"], f"{line['interactions']:,}",
         *(f"{line['median_seconds'][step]:.3f}" for step in ("filter", "split", "save", "load")),
         f"{line['split_over_sort']:.2f}", f"{line['save_over_write']:.1f}", f"{line['load_over_read']:.1f}"]
        for line in lines("splitting")
    ]  # fmt: skip
    header = ["protocol", "pairs", "filter, s", "split, s", "save, s", "load, s", "split over `lexsort`"]
    return markdown([*header, "save over `np.save`", "load over `np.load`"], rows)


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
    return markdown([*header, "ranking, s"], rows)


def training_gpu() -> str:
    line = lines("training-gpu")[-1]
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


def memory() -> str:
    rows = [
        [f"{line['users']:,} x {line['items']:,}", f"{line['pairs']:,}", line["device"], f"{line['steps']:,}",
         f"{line['agree_seconds']:.0f}", f"{line['host_peak_mb_before_training']:,.0f}", f"{line['host_peak_mb']:,.0f}"]
        for line in lines("memory")
    ]  # fmt: skip
    header = ["users x items", "training pairs", "device", "steps", "ranking, s", "peak MB, data alone", "peak MB"]
    return markdown(header, rows)


def serving() -> str:
    line = lines("service")[-1]
    rows = [
        [name, f"{line[name]['cpu_us']:.0f}", f"{line[name]['per_second']:,.0f}", f"{line[name]['p50_ms']:.2f}",
         f"{line[name]['p99_ms']:.2f}",
         *(f"{line[name][f'{figure}_over_floor']:.2f}" if name != "floor" else ""
           for figure in ("cpu_us", "per_second", "p50_ms", "p99_ms"))]
        for name in ("floor", "fastapi", "consensus", "head", "logged")
        if name in line
    ]  # fmt: skip
    header = ["", "processor, µs", "requests/s", "p50, ms", "p99, ms",
              *(f"{figure} over floor" for figure in ("processor", "requests", "p50", "p99"))]  # fmt: skip
    return markdown(header, rows)


def endurance() -> str:
    line = lines("service")[-1]
    many, beside, batches = line["many"], line["beside_enemies"], line["beside_batches"]
    answered = ", ".join(f"{count:,} x {status}" for status, count in sorted(beside["enemy"]["answered"].items()))
    return (
        f"\n{many['requests']:,} requests: {many['failed']} failed, {many['rss_mb_before']:,.0f} MB before and "
        f"{many['rss_mb_after']:,.0f} MB after. With four callers of batches (200 histories of 100 items, k = 200) "
        f"p99 of single requests is {batches['p99_ms']:.0f} ms, {batches['p99_over_alone']:.1f} times that without. "
        f"While the run is reloaded repeatedly and a hostile client attacks (garbage, huge and endless bodies, broken "
        f"JSON, long paths and headers, {beside['enemy']['half_open']:,} connections left half open): "
        f"{beside['requests']:,} valid requests, {beside['failed']} failed, {beside['wrong']} with another answer than "
        f"the library's, p99 at most {beside['p99_ms']:.0f} ms; the hostile client got {answered}; "
        f"{beside['rss_mb_after']:,.0f} MB after.\n"
    )


def attacks() -> str:
    line = lines("attacks")[-1]
    rows = []
    for name, each in line["attacks"].items():
        spread = f"{min(each['ratios']):.1f} to {max(each['ratios']):.1f}"
        answered = ", ".join(f"{count} x {status}" for status, count in each["statuses"].items())
        spent = max((two["processor_seconds"] for two in line["two_requests"].get(name, [])), default=None)
        rows.append(
            [name, f"{each['quiet_p99_ms']:.0f}", f"{each['p99_ms']:.0f}", f"{each['p99_over_quiet']:.1f} ({spread})",
             answered, "" if spent is None else f"{spent:.2f}"]
        )  # fmt: skip
    header = ["attack", "p99 alone, ms", "p99 during the attack, ms", "ratio", "answers to normal clients"]
    seconds, memory = max(took for _, took in line["deadline"]), line["reloads_mb"]
    return (
        markdown([*header, "processor seconds of two requests"], rows)
        + f"\nWith `--seconds 1` the slowest of three such batches is refused after {seconds:.2f} s. All processes "
        f"together have {memory[1]:,.0f} MB of their own after the second reload and {memory[-1]:,.0f} MB after "
        f"{len(memory)}.\n"
    )


def draw_scaling() -> None:
    """docs/scaling.png: seconds of an epoch against each size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axis, against in zip(figure.subplots(1, 3), ("interactions", "items", "heads"), strict=True):
        points = [(line["value"], line["seconds"]) for line in lines("scaling") if line["against"] == against]
        axis.plot(*zip(*points, strict=True), marker="o", color="#1f4e79")
        axis.set(xlabel=against, ylim=(0, None), xlim=(0, None))
        axis.grid(alpha=0.3)
        axis.set_ylabel("seconds of an epoch")
    figure.savefig(DOCS / "scaling.png", dpi=110)


def pages() -> dict[Path, dict[str, str]]:
    """The tables of docs/scale.md, of single lines the newest."""
    tables = {
        "first-page": first_log(),
        "training": training(),
        "training-gpu": training_gpu(),
        "memory": memory(),
        "evaluation": f"{evaluation()}{evaluation_gpu()}",
        "serving": f"{serving()}{endurance()}",
        "attacks": attacks(),
        "loading": loading(),
        "splitting": splitting(),
    }
    return {DOCS / "scale.md": tables}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw_scaling()
    render("render", pages() | {page: {} for page in DOCS.glob("*.md") if page.name != "scale.md"})


if __name__ == "__main__":
    main()
