"""Write the tables of docs/combine.md, from results/combine.jsonl.

python benchmarks/render_combine.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sources import DOCS, lines, render

from concf.evaluation.significance import holm, paired_t
from concf.runtime.text_tables import markdown

TITLES = {
    "citeulike-released": "CiteULike, protocol `released`",
    "ciao-released": "Ciao, protocol `released`",
    "foursquare-released": "Foursquare, protocol `released`",
    "gowalla-released": "Gowalla, protocol `released`",
}
FIGURES = ("recall@20", "recall@50", "ndcg@20", "ndcg@50")
KINDS = {"voters": "voter", "fusions": "fusion", "ours": "concf"}
RERANKER, STUDENT = "consensus", "student"
Lines = list[dict[str, Any]]  # of one data set, by seed


def measured() -> dict[str, Lines]:
    """Data -> its lines."""
    found: dict[str, Lines] = {}
    for line in lines("combine"):
        if "rows" in line:
            found.setdefault(line["key"]["data"], []).append(line)
    return {name: found[name] for name in TITLES if name in found}


def values(known: Lines, kind: str, name: str, figure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[splits]."""
    return np.array([line["rows"][kind][name][figure] for line in known])


def best(known: Lines, kind: str, figure: str) -> str:
    """The row of a kind with the best mean."""
    names: list[str] = list(known[0]["rows"][kind])
    return max(names, key=lambda name: float(values(known, kind, name, figure).mean()))


def table(known: Lines) -> str:
    """A row for each recommender; p of recall@50 against the re-ranker's."""
    ours = values(known, "ours", RERANKER, "recall@50")
    rows, p_values = [], []
    for kind, word in KINDS.items():
        for name in known[0]["rows"][kind]:
            cells = [values(known, kind, name, figure) for figure in FIGURES]
            rows.append([name, word, *(f"{each.mean():.4f} ± {each.std(ddof=len(each) > 1):.4f}" for each in cells)])
            same = (kind, name) == ("ours", RERANKER) or len(known) < 2
            p_values.append(None if same else paired_t(values(known, kind, name, "recall@50"), ours))
    corrected = iter(holm([p for p in p_values if p is not None]))
    for row, p in zip(rows, p_values, strict=True):
        row.append("" if p is None else f"{next(corrected):.1g}")
    header = ["", "is a", *(figure.replace("recall", "R").replace("ndcg", "N") for figure in FIGURES), "p (R@50)"]
    return markdown(header, rows)


def tail(all_lines: dict[str, Lines]) -> str:
    """Coverage, Gini and recall by popularity of the best voter, the best fusion, consensus and student."""
    rows = []
    for data, known in all_lines.items():
        others = [(kind, best(known, kind, "recall@50")) for kind in ("voters", "fusions")]
        for kind, name in [*others, ("ours", RERANKER), ("ours", STUDENT)]:
            strata = np.array([line["rows"][kind][name]["strata"] for line in known]).mean(0)
            wide = [values(known, kind, name, figure).mean() for figure in ("coverage@50", "gini@50")]
            rows.append([data.partition("-")[0], name, *(f"{each:.3f}" for each in (*strata, *wide))])
    return markdown(["log", "", "popular", "middle", "rare", "coverage", "Gini"], rows)


def above(known: Lines, kind: str, figure: str, who: str = RERANKER) -> float:
    """By how much a row of ours is above the best of a kind, by means over splits."""
    mine = values(known, "ours", who, figure).mean()
    return float(mine / values(known, kind, best(known, kind, figure), figure).mean() - 1)


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def verdict(all_lines: dict[str, Lines]) -> str:
    """How far the re-ranked consensus is above the best fusion and the best voter, and the student below it."""
    rows = []
    for data, known in all_lines.items():
        row = [f"{TITLES[data].partition(',')[0]}, {len(known)} splits"]
        for kind in ("fusions", "voters"):
            found = {figure: above(known, kind, figure) for figure in ("recall@50", "ndcg@50")}
            who = " and ".join(dict.fromkeys(best(known, kind, figure) for figure in found))
            row.append(f"{', '.join(map(percent, found.values()))} ({who})")
        student, consensus = (
            [float(values(known, "ours", who, figure).mean()) for figure in ("recall@50", "ndcg@50")]
            for who in (STUDENT, RERANKER)
        )
        row.append(", ".join(percent(one / other - 1) for one, other in zip(student, consensus, strict=True)))
        rows.append(row)
    return markdown(["R@50, N@50", "consensus over best fusion", "over best voter", "student over consensus"], rows)


def pages() -> dict[Path, dict[str, str]]:
    """A table for each log, the differences, and what happens to rare items."""
    known = measured()
    logs = "\n".join(f"### {TITLES[name]}\n\n{table(each)}" for name, each in known.items())
    return {DOCS / "combine.md": {"fusions": logs, "differences": verdict(known), "rare-items": tail(known)}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_combine", pages())


if __name__ == "__main__":
    main()
