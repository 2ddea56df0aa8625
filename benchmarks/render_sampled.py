"""Write the tables of docs/training.md on the sampled softmax, from results/sampled_softmax.jsonl.

python benchmarks/render_sampled.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from sources import DOCS, Line, lines, render

FIGURES = {"R@20": "recall@20", "N@20": "ndcg@20", "R@50": "recall@50", "N@50": "ndcg@50"}
TITLES = {"citeulike": "CiteULike", "ciao": "Ciao"}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def way(line: Line) -> tuple[int, float]:
    """Draws and power; the full softmax first."""
    return (0, 0.0) if line["samples"] is None else (line["samples"], line["power"])


def accuracies(found: list[Line]) -> list[str]:
    """Means over seeds: one head alone, and of the whole preset CF-E and the consensus.

    A way that was not measured with every seed of the full softmax is left out: it would not be compared with its own.
    """
    models: dict[tuple[str, ...], dict[tuple[int, float], dict[int, Line]]] = {}
    for line in found:
        several = len(line["objectives"]) > 1
        data = str(line["data"])
        whose = (TITLES.get(data, data), line["protocol"], "`reference`" if several else "alone", line["device"])
        models.setdefault(whose, {}).setdefault(way(line), {})[line["seed"]] = line
    rows = []
    for (data, protocol, model, device), ways in sorted(models.items()):
        seeds = sorted(ways[0, 0.0])
        ways = {each: runs for each, runs in ways.items() if set(seeds) <= set(runs)}
        for name in ("multinomial", "consensus") if model != "alone" else ("multinomial",):
            for (n, power), runs in sorted(ways.items()):
                how = f"{n} draws, power {power:g}" if n else "full"
                tests = [runs[seed]["test"][name] for seed in seeds]
                figures = [f"{mean(test[figure] for test in tests):.4f}"[1:] for figure in FIGURES.values()]
                said = f"{name} {'alone' if model == 'alone' else 'of ' + model}"
                rows.append([f"{data} `{protocol}`", said, how, *figures, ", ".join(map(str, seeds)), device])
    return table(["data", "what", "softmax", *FIGURES, "seeds", "device"], rows)


def in_words(seconds: float) -> str:
    if seconds < 0.01:
        return f"{1e3 * seconds:.2f} ms"
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def times(found: list[Line]) -> list[str]:
    """A step's time, and how often a sampled one fits into a full one."""
    rows = []
    for line in sorted(found, key=lambda line: (line["device"], line["objectives"], line["items"])):
        each, ratio = line["median_seconds"], line["full_over_sampled"]
        sampled = [f"{in_words(each[n])} ({ratio[n]:.1f} x)" for n in ratio]
        rows.append([line["objectives"], f"{line['items']:,}", in_words(each["full"]), *sampled, line["device"]])
    ways = [f"{n} draws" for n in found[0]["full_over_sampled"]]
    return table(["heads", "items", "full", *ways, "device"], rows)


def pages() -> dict[Path, dict[str, str]]:
    """Accuracy on a GPU, where every seed was measured, and times on both devices."""
    every = lines("sampled_softmax")
    accuracy = [line for line in every if line["what"] == "accuracy" and line["device"] != "cpu"]
    time = [line for line in every if line["what"] == "time"]
    return {
        DOCS / "training.md": {
            "sampled-accuracy": "\n".join(accuracies(accuracy)),
            "sampled-times": "\n".join(times(time)),
        }
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_sampled", pages())


if __name__ == "__main__":
    main()
