"""Write the tables of docs/new-data.md on new users, from results/new-users*.jsonl.

python benchmarks/render_new_users.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from new_users import FILTERS
from sources import DOCS, lines, render

from concf.runtime.text_tables import markdown

FIGURES = ("recall@50", "ndcg@100")
OURS = {"consensus": "`strong`, consensus", "student": "`strong`, the head it ships"}
VOTERS = {name: f"voter {name}" for name in ("als-a", "als-b", "softmax-a")}
RIVALS = {"ease": "EASE^R", "als": "iALS"}
TITLES = {"citeulike": "CiteULike", "ciao": "Ciao", "foursquare": "Foursquare", "gowalla": "Gowalla"}
TIMED = ("als-a", "student", "consensus")
Series = dict[str, dict[str, float]]  # split -> test figures


def series() -> dict[str, dict[str, Series]]:
    """Data set -> who -> split -> test figures, of splits on which all were measured."""
    found: dict[str, dict[str, Series]] = {}
    for line in lines("new-users"):
        key = line["key"]
        rows = {name: each["test"] for name, each in line["rows"].items()} if "rows" in line else {}
        names = rows or {key["model"]: line["test"]}
        for name, figures in names.items():
            found.setdefault(key["split"].rpartition("-")[0], {}).setdefault(name, {})[key["split"]] = figures
    for known in found.values():
        shared = set.intersection(*(set(each) for each in known.values()))
        for name, each in known.items():
            known[name] = {split: figures for split, figures in each.items() if split in shared}
    return {name: found[name] for name in FILTERS if name in found and found[name].keys() >= {*RIVALS, *OURS}}


def value(runs: Series, figure: str) -> float:
    return mean(run[figure] for run in runs.values())


def cell(runs: Series, figure: str, known: dict[str, Series]) -> str:
    """Mean and deviation over splits, and the difference from the better of the rivals."""
    figures, best = [run[figure] for run in runs.values()], max(value(known[name], figure) for name in RIVALS)
    spread = f" ± {stdev(figures):.4f}" if len(figures) > 1 else ""
    return f"{mean(figures):.4f}{spread} ({mean(figures) / best - 1:+.1%})".replace("%", " %")


def results() -> str:
    rows = []
    for data, known in series().items():
        for name, title in (OURS | VOTERS | RIVALS).items():
            if name in known:
                cells = [cell(known[name], figure, known) for figure in FIGURES]
                rows.append([TITLES[data], str(len(known[name])), title, *cells])
    return markdown(["data", "splits", "model", "R@50", "N@100"], rows)


def kept() -> str:
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines("new-users"):
        for name, share in line.get("kept", {}).items():
            found.setdefault(line["key"]["split"].rpartition("-")[0], {}).setdefault(name, []).append(share)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    rows = [[TITLES[data], *(f"{mean(each[name]):.2f}" for name in names)] for data, each in found.items()]
    return markdown(["data", *names], rows)


def times() -> str:
    rows = []
    for line in lines("new-users-times"):
        if "label" not in line["key"]:
            for way, title in (("alone", "one"), ("together", "of a hundred")):
                rows.append([data_of(line), title, *milliseconds(line[way])])
    return markdown(["data", "histories at a time", *TIMED], rows)


def data_of(line: dict[str, Any]) -> str:
    name = TITLES[line["key"]["split"].rpartition("-")[0]]
    return f"{name} ({line['items']:,} items)"


def milliseconds(of_heads: dict[str, float]) -> list[str]:
    return [f"{of_heads[name]:.1f}" for name in TIMED]


def pages() -> dict[Path, dict[str, str]]:
    """Accuracy, agreement with the lists of known users, and cost."""
    return {DOCS / "new-data.md": {"new-users": results(), "folded-in": kept(), "fold-in-times": times()}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_new_users", pages())


if __name__ == "__main__":
    main()
