"""The table of docs/weights.md, from the lines of benchmarks/half_life.py.

python benchmarks/render_weights.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from sources import Line, commits_table, lines

from concf.runtime.text_tables import markdown

PAGE = Path(__file__).parents[1] / "docs" / "weights.md"
MARKS = "<!-- half-lives: written by benchmarks/render_weights.py -->", "<!-- end of half-lives -->"
TITLES = {"drifting": "drifting", "ciao": "Ciao"}
MODELS = ("consensus", "student", "als-a", "rp3beta", "popularity")


def figure(value: float) -> str:
    return f"{value:.4f}"


def rows_of(found: list[Line], name: str) -> list[list[str]]:
    """A row for each half-life, of the means over seeds."""
    ways: dict[str | None, list[Line]] = {}
    for line in found:
        ways.setdefault(line["key"]["half_life"], []).append(line)
    validation = {way: mean(line["rows"]["consensus"][line["metric"]] for line in some) for way, some in ways.items()}
    best, rows = max(validation, key=lambda way: validation[way]), []
    for way, some in ways.items():
        tests = [mean(line["rows"][model]["test"]["recall@50"] for line in some) for model in MODELS]
        ndcg = mean(line["rows"]["consensus"]["test"]["ndcg@50"] for line in some)
        shown = way or "none"
        half_life = f"**{shown}**" if way == best else shown
        rows.append([TITLES[name], half_life, figure(validation[way]), *map(figure, tests), figure(ndcg)])
    return rows


def body() -> str:
    """What stands between the marks."""
    every = lines("half_life")
    rows = [row for name in TITLES for row in rows_of([line for line in every if line["key"]["data"] == name], name)]
    head = ["log", "half-life", "consensus, validation R@50", *(f"{model}, test R@50" for model in MODELS)]
    users = {name: {line["users"] for line in every if line["key"]["data"] == name} for name in TITLES}
    counted = "; ".join(
        f"{TITLES[name]}: {' to '.join(f'{n:,}' for n in sorted({min(each), max(each)}))} users"
        for name, each in users.items()
    )
    return f"{markdown([*head, 'consensus, test N@50'], rows)}\n{counted}.\n\n{commits_table({'half_life': every})}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    before, rest = PAGE.read_text("utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + f"{MARKS[0]}\n\n{body()}\n{MARKS[1]}" + after, "utf-8")


if __name__ == "__main__":
    main()
