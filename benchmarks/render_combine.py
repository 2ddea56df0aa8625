"""docs/combine.md, from the lines that benchmarks/combine.py measured.

python benchmarks/render_combine.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from sources import commits_table, lines

from concf.evaluation.significance import holm, paired_t
from concf.runtime.text_tables import markdown

ROOT = Path(__file__).parent.parent
TITLES = {
    "citeulike-released": "CiteULike, protocol `released`",
    "ciao-released": "Ciao, protocol `released`",
    "foursquare-released": "Foursquare, protocol `released`",
    "gowalla-released": "Gowalla, protocol `released`",
}
FIGURES = ("recall@20", "recall@50", "ndcg@20", "ndcg@50")
KINDS = {"voters": "voter", "fusions": "fusion", "ours": "concf"}
RERANKER, STUDENT = "consensus", "student"
GOALS, LOST = {"fusions": 0.03, "voters": 0.06}, 0.02  # above the best of a kind; what a student may lose
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
    """Coverage, Gini and recall by popularity of voters, the best fusion, consensus and student."""
    rows = []
    for data, known in all_lines.items():
        fusion = best(known, "fusions", "recall@50")
        shown = [("voters", name) for name in known[0]["rows"]["voters"]]
        for kind, name in [*shown, ("fusions", fusion), ("ours", RERANKER), ("ours", STUDENT)]:
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
    """The goals, and what came of them: a row for each log."""
    rows = []
    for data, known in all_lines.items():
        row = [f"{TITLES[data].partition(',')[0]}, {len(known)} splits"]
        for kind, goal in GOALS.items():
            found = {figure: above(known, kind, figure) for figure in ("recall@50", "ndcg@50")}
            who = " and ".join(dict.fromkeys(best(known, kind, figure) for figure in found))
            row += [
                f"{', '.join(map(percent, found.values()))} ({who})",
                "met" if min(found.values()) >= goal else "not met",
            ]
        mine, theirs = (
            [float(values(known, "ours", who, figure).mean()) for figure in ("recall@50", "ndcg@50")]
            for who in (STUDENT, RERANKER)
        )
        behind = [one / other - 1 for one, other in zip(mine, theirs, strict=True)]
        rows.append([*row, ", ".join(map(percent, behind)), "met" if min(behind) >= -LOST else "not met"])
    header = ["R@50, N@50", "above the best fusion", "goal 3 %", "above the best voter", "goal 6 %", "student from it",
              "goal 2 %"]  # fmt: skip
    return markdown(header, rows)


def tail_verdict(all_lines: dict[str, Lines]) -> str:
    """What becomes of rare items."""
    sentences = []
    for data, known in all_lines.items():
        rare = {
            name: float(np.mean([line["rows"][kind][name]["strata"][-1] for line in known]))
            for kind, name in (("fusions", best(known, "fusions", "recall@50")), ("ours", RERANKER), ("ours", STUDENT))
        }
        fusion = next(iter(rare))
        changes = percent(rare[RERANKER] / rare[fusion] - 1), percent(rare[STUDENT] / rare[RERANKER] - 1)
        sentences.append(
            f"On {TITLES[data].partition(',')[0]} the re-ranker's recall of rare items is {changes[0]} above that of "
            f"the best fusion ({fusion}), and the student's {changes[1]} from the re-ranker's."
        )
    return " ".join(sentences)


def snapshots(all_lines: dict[str, Lines]) -> str:
    """What consistency adds, on the splits where it was measured; nothing where it was not."""
    sentences = []
    for line in lines("combine"):
        key = line["key"]
        base = [each for each in all_lines.get(key["data"], []) if each["key"]["seed"] == key["seed"]]
        if key.get("way") == "snapshots" and base:
            before, after = base[0]["rows"]["ours"][RERANKER], line["ours"][RERANKER]
            changes = [percent(after[figure] / before[figure] - 1) for figure in ("recall@50", "ndcg@50")]
            sentences.append(
                f"on one split of {TITLES[key['data']].partition(',')[0]} it changed recall@50 by {changes[0]} and "
                f"NDCG@50 by {changes[1]}"
            )
    return "; ".join(sentences)


def ways(all_lines: dict[str, Lines], way: str) -> dict[str, dict[str, Lines]]:
    """Data -> way of teaching -> its figures on the splits where all were measured."""
    found: dict[str, dict[str, Lines]] = {}
    for line in lines("combine"):
        key = line["key"]
        base = [each for each in all_lines.get(key["data"], []) if each["key"]["seed"] == key["seed"]]
        if key.get("way") == way and base:
            rows = found.setdefault(key["data"], {})
            for name, row in ({"1": base[0]["rows"]["ours"][STUDENT]} if way == "groups" else {}).items():
                rows.setdefault(name, []).append(row)
            for name, row in line["ours"].items():
                rows.setdefault(name, []).append(row)
    return found


def taught(found: dict[str, dict[str, Lines]], what: str) -> str:
    """A row for each way of teaching the student."""
    rows = []
    for data, by_way in found.items():
        for name, splits in by_way.items():
            means = [np.mean([each[figure] for each in splits]) for figure in ("recall@50", "ndcg@50")]
            strata = np.mean([each["strata"] for each in splits], 0)
            rows.append([data.partition("-")[0], name, str(len(splits)), *(f"{each:.4f}" for each in means),
                         *(f"{each:.3f}" for each in strata)])  # fmt: skip
    return markdown(["log", what, "splits", "R@50", "N@50", "popular", "middle", "rare"], rows)


def page() -> str:
    """docs/combine.md."""
    known = measured()
    filled = {
        "tables": "\n".join(f"### {TITLES[name]}\n\n{table(each)}" for name, each in known.items()),
        "verdict": verdict(known),
        "tail": tail(known),
        "tail_verdict": tail_verdict(known),
        "snapshots": snapshots(known),
        "groups": taught(ways(known, "groups"), "groups"),
        "easy": taught(ways(known, "easy to hard"), "taught"),
        "commits": commits_table({"combine": lines("combine")}),
    }
    text = (ROOT / "benchmarks" / "combine_words.md").read_text("utf-8")
    for name, content in filled.items():
        text = text.replace(f"{{{{{name}}}}}", content.rstrip("\n"))
    return text


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    (ROOT / "docs" / "combine.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
