"""Write the tables of docs/new-data.md on half-lives, from results/half_life.jsonl.

python benchmarks/render_weights.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from sources import DOCS, Line, lines, render

from concf.runtime.text_tables import markdown

TITLES = {"drifting": "drifting", "ciao": "Ciao"}
MODELS = {"baselines": ("popularity", "rp3beta", "als"), "strong": ("consensus", "student", "als-a")}


def table(found: list[Line], models: Sequence[str]) -> str:
    """Test R@50, a row for each half-life, the means over seeds; in bold the best validation of a log and a model.

    Seeds that were not measured with every half-life that the row's log has lines of are left out.
    """
    rows = []
    for name, title in TITLES.items():
        mine = [line for line in found if line["key"]["data"] == name]
        ways = list(dict.fromkeys(line["key"]["half_life"] for line in mine))
        by_seed: dict[int, list[str | None]] = {line["key"]["seed"]: [] for line in mine}
        for line in mine:
            by_seed[line["key"]["seed"]].append(line["key"]["half_life"])
        seeds = [seed for seed, measured in by_seed.items() if set(measured) == set(ways)]
        some = {
            way: [line for line in mine if line["key"]["half_life"] == way and line["key"]["seed"] in seeds]
            for way in ways
        }
        users = sorted({line["users"] for line in mine})
        counted = f"{users[0]:,}" if len(users) == 1 else f"{users[0]:,} to {users[-1]:,}"
        best = {}
        for model in models:
            best[model] = max(ways, key=lambda way: mean(line["rows"][model][line["metric"]] for line in some[way]))
        for way in ways:
            shown = []
            for model in models:
                value = f"{mean(line['rows'][model]['test']['recall@50'] for line in some[way]):.4f}"
                shown.append(f"**{value}**" if way == best[model] else value)
            rows.append([title, way or "none", *shown, ", ".join(map(str, seeds)), counted])
    return markdown(["log", "half-life", *(f"{model} R@50" for model in models), "seeds", "users"], rows)


def pages() -> dict[Path, dict[str, str]]:
    """A table of the baselines and one of the default preset."""
    every = lines("half_life")
    tables = [table([line for line in every if line["key"]["what"] == what], MODELS[what]) for what in MODELS]
    return {DOCS / "new-data.md": {"half-lives": "\n".join(tables)}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_weights", pages())


if __name__ == "__main__":
    main()
