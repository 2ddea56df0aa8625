"""Write the tables of docs/new-data.md on updates, from results/update.jsonl.

python benchmarks/render_update.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from sources import DOCS, lines, render

from concf.runtime.text_tables import markdown

WAYS = {"updated": "updated", "refit": "from scratch", "left": "left"}
TITLES = {
    "ciao": "Ciao, users and items with 10 ratings or more",
    "drifting": "A simulated log that drifts (`concf.DriftingSimulation`)",
}
FIGURES = ("recall@50", "ndcg@50")
WHO = ("consensus", "student")
Lines = dict[tuple[int, str], dict[str, Any]]  # (update, way) -> line


def measured() -> dict[str, Lines]:
    """Data -> its lines, of the updates that were measured in all three ways."""
    found: dict[str, Lines] = {}
    for line in lines("update"):
        key = line["key"]
        found.setdefault(key["data"], {})[key["update"], key["way"]] = line
    for name, known in found.items():
        whole = {number for number, _ in known if all((number, way) in known for way in WAYS)}
        found[name] = {key: line for key, line in known.items() if key[0] in whole}
    return {name: found[name] for name in TITLES if found.get(name)}


def updates(known: Lines) -> list[int]:
    return sorted({number for number, _ in known})


def ratio(known: Lines, number: int, rival: str, who: str, figure: str) -> float:
    """The updated run's figure over another's."""
    mine, theirs = (float(known[number, way]["figures"][who][figure]) for way in ("updated", rival))
    return mine / theirs


def table(known: Lines) -> str:
    """A row for each update."""
    header = ["update", "users", *(f"{'R' if figure[0] == 'r' else 'N'}@50 {word}" for figure in FIGURES
              for word in WAYS.values()), "seconds updated", "from scratch", "share"]  # fmt: skip
    rows = []
    for number in updates(known):
        of = {way: known[number, way] for way in WAYS}
        seconds = [of[way]["seconds"] for way in ("updated", "refit")]
        figures = [f"{of[way]['figures']['consensus'][figure]:.4f}" for figure in FIGURES for way in WAYS]
        rows.append(
            [str(number), f"{of['updated']['users']:,}", *figures, *(f"{each:.1f}" for each in seconds),
             f"{100 * seconds[0] / seconds[1]:.0f} %"]
        )  # fmt: skip
    return markdown(header, rows)


def percent(value: float) -> str:
    return f"{100 * (value - 1):+.1f} %"


def summary(all_lines: dict[str, Lines]) -> str:
    """Mean and worst of the updates, for the consensus and for its student."""
    header = ["log", "recommender", "metric", "against from scratch: mean", "worst", "against left: mean", "worst"]
    rows = []
    for name, known in all_lines.items():
        for who in WHO:
            for figure in FIGURES:
                cells = []
                for rival in ("refit", "left"):
                    ratios = [ratio(known, number, rival, who, figure) for number in updates(known)]
                    cells += [percent(mean(ratios)), percent(min(ratios))]
                rows.append([name, who, figure.replace("recall", "R").replace("ndcg", "N"), *cells])
    return markdown(header, rows)


def verdict(all_lines: dict[str, Lines]) -> str:
    """The goals, and what came of them."""
    below = min(
        ratio(known, number, "refit", who, figure)
        for known in all_lines.values() for number in updates(known) for who in WHO for figure in FIGURES
    )  # fmt: skip
    shares = [
        known[number, "updated"]["seconds"] / known[number, "refit"]["seconds"]
        for known in all_lines.values() for number in updates(known)
    ]  # fmt: skip
    count = ", ".join(f"{len(updates(known))} updates of {name}" for name, known in all_lines.items())
    kept = "met" if below >= 0.98 else "not met"
    in_time = "met" if max(shares) <= 0.1 else "not met"
    return (
        f"Measured were {count}. The goal was to be never more than 2 % below training from scratch: the worst of all "
        f"differences is {percent(below)} ({kept}). The goal was a tenth of its processor time: an update takes "
        f"{100 * mean(shares):.0f} % of it on average, from {100 * min(shares):.0f} to {100 * max(shares):.0f} % "
        f"({in_time})."
    )


def pages() -> dict[Path, dict[str, str]]:
    """Means over the updates, every update, and which goals are met."""
    known = measured()
    every = "\n".join(f"{TITLES[name]}:\n\n{table(each)}" for name, each in known.items())
    return {DOCS / "new-data.md": {"updates": summary(known), "each-update": every, "update-goals": verdict(known)}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_update", pages())


if __name__ == "__main__":
    main()
