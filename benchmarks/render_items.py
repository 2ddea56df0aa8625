"""Write the tables on new items (docs/new-data.md) and on rules (docs/recommending.md) from their results.

python benchmarks/render_items.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from sources import DOCS, Line, lines, render

from concf.runtime.text_tables import markdown

FIGURES = {"R@20": "recall@20", "N@20": "ndcg@20", "R@50": "recall@50", "N@50": "ndcg@50"}
TITLES = {"ciao": "Ciao"}


def figures(found: list[Line], who: str) -> list[str]:
    """Means over seeds."""
    return [f"{mean(line['test'][who][figure] for line in found):.4f}"[1:] for figure in FIGURES.values()]


def new_items() -> str:
    """Accuracy on held-out items, then what a few users change."""
    found = [line for line in lines("new_items") if line["what"] == "accuracy"]
    by_data: dict[str, list[Line]] = {}
    for line in found:
        by_data.setdefault(line["data"], []).append(line)
    rows, facts = [], []
    for data, some in by_data.items():
        title, first = TITLES.get(data, data), some[0]
        for who in first["test"]:
            if who not in ("R-consensus", "consensus"):  # of new items they have the best head's order
                name = f"**{who}**" if who == first["best_head"] else who
                rows.append([title, name, *figures(some, who)])
        facts.append(
            [title, f"{first['users']:,}", f"{first['new_items']:,} of {first['items']:,}", str(len(some)),
             str(first["features"]), f"{100 * mean(line['explained'] for line in some):.0f} %",
             f"{100 * mean(line['places'] for line in some):.1f} %", f"{mean(line['seconds'] for line in some):.1f}"]
        )  # fmt: skip
    few, whole = ([line for line in lines("new_items") if line["what"] == what] for what in ("few users", "all items"))
    shrinkages = list(few[0]["recall@20"])
    given = [
        [str(TITLES.get(line["data"], line["data"])), str(line["given"]),
         *(f"{line['recall@20'][each]:.4f}"[1:] for each in shrinkages)]
        for line in few
    ]  # fmt: skip
    header = ["data", "users", "new items", "splits", "features", "variance explained", "new among 50", "seconds"]
    return "\n".join(
        [
            markdown(["data", "ranked by", *FIGURES], rows), "",
            markdown(header, facts), "",
            markdown(["data", "users given back", *(f"k = {each}" for each in shrinkages)], given), "",
            *all_items(whole),
        ]
    )  # fmt: skip


def all_items(found: list[Line]) -> list[str]:
    """What shrinkage does where no item is new."""
    names = {"recall@50": "R@50", "ndcg@50": "N@50"}
    rows = [
        ["own vectors" if k == "none" else f"k = {k}", *(f"{test[each]:.4f}"[1:] for each in names)]
        for line in found for k, test in line["test"].items()
    ]  # fmt: skip
    return [markdown(["Ciao, all items", *names.values()], rows), ""] if rows else []


def rules() -> str:
    """Cost and effect of each rule."""
    rows = []
    for line in lines("rules"):
        plain = next(each for each in lines("rules") if each["by"] == line["by"] and each["rule"] == "none")
        test, before = line["test"], plain["test"]
        change = f"{100 * (test['recall@20'] / before['recall@20'] - 1):+.1f} %" if line["rule"] != "none" else ""
        rows.append(
            [line["by"], line["rule"], f"{line['ms']:.2f}", f"{test['recall@20']:.4f}"[1:], change,
             f"{test['coverage@20']:.3f}", f"{test['gini@20']:.3f}", f"{100 * line['full']:.0f} %"]
        )  # fmt: skip
    header = ["by", "rule", "ms a list", "R@20", "change", "coverage@20", "Gini@20", "places filled"]
    return markdown(header, rows)


def pages() -> dict[Path, dict[str, str]]:
    """The tables of each page."""
    return {DOCS / "new-data.md": {"new-items": new_items()}, DOCS / "recommending.md": {"rules": rules()}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_items", pages())


if __name__ == "__main__":
    main()
