"""The tables of docs/training.md on the sampled softmax, from the lines of benchmarks/bench_sampled_softmax.py.

python benchmarks/render_sampled.py
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from measuring import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "training.md"
MARKS = ("<!-- sampled softmax: written by benchmarks/render_sampled.py -->", "<!-- end of sampled softmax -->")
FIGURES = {"R@20": "recall@20", "N@20": "ndcg@20", "R@50": "recall@50", "N@50": "ndcg@50"}
TITLES = {"citeulike": "CiteULike", "ciao": "Ciao"}
Line = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def way(line: Line) -> tuple[int, float]:
    """Draws and power; the full softmax first."""
    return (0, 0.0) if line["samples"] is None else (line["samples"], line["power"])


def accuracies(lines: list[Line]) -> list[str]:
    """Means over seeds: one head alone, and of the whole preset CF-E and the consensus.

    A way that was not measured with every seed of the full softmax is left out: it would not be compared with its own.
    """
    models: dict[tuple[str, ...], dict[tuple[int, float], dict[int, Line]]] = {}
    for line in lines:
        several = len(line["objectives"]) > 1
        whose = (TITLES.get(line["data"], line["data"]), line["protocol"], "`reference`" if several else "alone")
        models.setdefault((*whose, line["device"]), {}).setdefault(way(line), {})[line["seed"]] = line
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


def times(lines: list[Line]) -> list[str]:
    """A step's time, and how often a sampled one fits into a full one."""
    rows = []
    for line in sorted(lines, key=lambda line: (line["device"], line["objectives"], line["items"])):
        each, ratio = line["median_seconds"], line["full_over_sampled"]
        sampled = [f"{in_words(each[n])} ({ratio[n]:.1f} x)" for n in ratio]
        rows.append([line["objectives"], f"{line['items']:,}", in_words(each["full"]), *sampled, line["device"]])
    ways = [f"{n} draws" for n in lines[0]["full_over_sampled"]]
    return table(["heads", "items", "full", *ways, "device"], rows)


def main() -> None:
    lines = [json.loads(line) for line in (RESULTS / "sampled_softmax.jsonl").read_text("utf-8").splitlines()]
    of = {what: [line for line in lines if line["what"] == what] for what in ("accuracy", "time")}
    body = [*accuracies(of["accuracy"]), "", *times(of["time"])]
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + "\n".join([MARKS[0], "", *body, "", MARKS[1]]) + after, "utf-8")


if __name__ == "__main__":
    main()
