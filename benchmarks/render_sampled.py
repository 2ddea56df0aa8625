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


def way(line: Line) -> str:
    if line["samples"] is None:
        return "full"
    return f"{line['samples']} draws, power {line['power']:g}"


def shown(lines: list[Line], row: str) -> list[str]:
    tests = [line["test"][row] for line in lines]
    seeds = ", ".join(str(seed) for seed in sorted({line["seed"] for line in lines}))
    return [*(f"{mean(test[name] for test in tests):.4f}"[1:] for name in FIGURES.values()), seeds]


def accuracies(lines: list[Line]) -> list[str]:
    """Means over seeds: one head alone, and of the whole preset CF-E and the consensus."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        key = (line["data"], line["protocol"], len(line["objectives"]) > 1, line["device"], way(line))
        groups.setdefault(key, []).append(line)
    rows = []
    for (data, protocol, several, device, how), found in groups.items():
        said = [f"{TITLES.get(data, data)} `{protocol}`", how]
        for row in ("multinomial", "consensus") if several else found[0]["objectives"]:
            title = f"{row} {'of `reference`' if several else 'alone'}"
            rows.append([said[0], title, said[1], *shown(found, row), device])
    rows.sort(key=lambda row: (row[0], row[-1], row[1]))  # of equal ones the order measured stays
    return table(["data", "what", "softmax", *FIGURES, "seeds", "device"], rows)


def times(lines: list[Line]) -> list[str]:
    """A step's milliseconds, and how often a sampled one fits into a full one."""
    rows = []
    for line in lines:
        each, ratio = line["fastest_seconds"], line["fastest_full_over_sampled"]
        sampled = [f"{1e3 * each[n]:.3g} ms ({ratio[n]:.1f} x)" for n in ratio]
        rows.append(
            [f"{line['items']:,}", line["objectives"], f"{1e3 * each['full']:.4g} ms", *sampled, line["device"]]
        )
    ways = [f"{n} draws" for n in lines[0]["fastest_full_over_sampled"]]
    return table(["items", "what", "full", *ways, "device"], rows)


def main() -> None:
    lines = [json.loads(line) for line in (RESULTS / "sampled_softmax.jsonl").read_text("utf-8").splitlines()]
    of = {what: [line for line in lines if line["what"] == what] for what in ("accuracy", "time")}
    body = [*accuracies(of["accuracy"]), "", *times(of["time"])]
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + "\n".join([MARKS[0], "", *body, "", MARKS[1]]) + after, "utf-8")


if __name__ == "__main__":
    main()
