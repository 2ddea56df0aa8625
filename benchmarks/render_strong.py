"""docs/strong.md and docs/strong.png, from the lines that benchmarks/strong.py measured.

python benchmarks/render_strong.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import ttest_rel
from sources import commits_table, lines
from strong import ABLATIONS, CHOICE_SEEDS, DATA, ROOT

FIGURES = ("recall@50", "ndcg@50")
HEAD, AGREED = "ConCF `strong`, the head it ships", "ConCF `strong`, consensus"
FUSION, RERANKED = "its voters trained separately, rank fusion", "its voters trained separately, re-ranked"
CONTROL = "two heads of weighted squares, re-ranked"
OURS = (HEAD, AGREED, FUSION, RERANKED, CONTROL)
Series = dict[int, dict[str, float]]  # seed -> figures


def series() -> dict[str, dict[str, Series]]:
    """Data set -> who -> seed -> test figures."""
    found: dict[str, dict[str, Series]] = {each: {} for each in DATA}
    for line in [*lines("strong-baselines"), *lines("strong")]:
        key, rows = line["key"], line["rows"]
        who: dict[str, dict[str, Any]] = {
            "strong": {HEAD: line.get("best_head"), AGREED: "consensus"},
            "apart": {FUSION: "R-consensus", RERANKED: "consensus"},
            "squares, re-ranked": {CONTROL: "consensus"},
        }
        for title, row in who.get(key["variant"], {key["variant"]: key["variant"]}).items():
            found[key["data"]].setdefault(title, {})[key["seed"]] = rows[row]["test"]
    return found


def best_baseline(known: dict[str, Series]) -> dict[str, str]:
    """The best baseline of each metric, chosen on the very splits that are reported: the hardest to beat."""
    baselines = {who: runs for who, runs in known.items() if who not in OURS}
    return {figure: max(baselines, key=lambda who: value(baselines[who], figure)) for figure in FIGURES}


def value(runs: Series, figure: str) -> float:
    return mean(run[figure] for run in runs.values())


def row(who: str, known: dict[str, Series]) -> list[str]:
    cells, best = [who], best_baseline(known)
    for figure in FIGURES:
        figures = [run[figure] for run in known[who].values()]
        spread = f" ± {stdev(figures):.4f}" if len(figures) > 1 else ""
        cells.append(f"{mean(figures):.4f}{spread}")
    for figure in FIGURES:
        baseline = known[best[figure]]
        shared = sorted(baseline.keys() & known[who].keys())
        mine, theirs = ([runs[seed][figure] for seed in shared] for runs in (known[who], baseline))
        if who == best[figure]:
            cells.append("best baseline")
            continue
        p = ttest_rel(mine, theirs).pvalue if len(shared) > 1 else float("nan")
        cells.append(f"{100 * (mean(mine) / mean(theirs) - 1):+.1f} % (p {p:.2g})")
    return cells


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]) + "\n"


def section(name: str, known: dict[str, Series]) -> str:
    ordered = sorted(known, key=lambda who: -value(known[who], "recall@50"))
    header = ["", "R@50", "N@50", "R against the best baseline", "N against the best baseline"]
    source, _, protocol = name.partition("-")
    return f"\n### {source}, protocol `{protocol}`\n\n" + table(header, [row(who, known) for who in ordered])


def ablations() -> str:
    """Validation of the best head and of the consensus without each part, beside `strong` on the same splits."""
    found: dict[str, dict[tuple[str, int], tuple[float, float]]] = {}
    for line in lines("strong-ablations"):
        rows_of, key = line["rows"], line["key"]
        if key["seed"] in CHOICE_SEEDS:
            both = rows_of[line["best_head"]]["validation"], rows_of["consensus"]["validation"]
            found.setdefault(key["variant"], {})[key["data"], key["seed"]] = both
    names, tables = list(reversed(DATA)), []
    for splits in sorted({frozenset(runs) for runs in found.values()}, key=lambda each: -len(each)):
        rows = []
        for title in (each for each in ABLATIONS if each in found):
            if title == "strong" or found[title].keys() == splits:
                runs = {name: [found[title][each] for each in sorted(splits) if each[0] == name] for name in names}
                figures = [", ".join(f"{mean(each):.4f}" for each in zip(*runs[name], strict=True)) for name in names]
                rows.append([title, *figures])
        seeds = {name: ", ".join(str(seed) for each, seed in sorted(splits) if each == name) for name in names}
        tables.append(table(["", *(f"{name} ({seeds[name]})" for name in names)], rows))
    return "\n".join(tables)


def goal(known: dict[str, dict[str, Series]]) -> str:
    """What is reached on each data set, in a sentence."""
    sentences = []
    for name in reversed(DATA):
        rows, best = known[name], best_baseline(known[name])
        gains = {
            who: [100 * (value(rows[who], figure) / value(rows[best[figure]], figure) - 1) for figure in FIGURES]
            for who in OURS
            if who in rows
        }
        shown = {who: " / ".join(f"{gain:+.1f} %" for gain in pair) for who, pair in gains.items()}
        met = "reached" if min(gains[HEAD]) >= 0 else "not reached"
        above = (
            "above"
            if all(mine > other for mine, other in zip(gains[AGREED], gains[FUSION], strict=True))
            else "not above"
        )
        five = " and ".join(
            f"{letter} {'yes' if gain >= 5 else 'no'}" for letter, gain in zip("RN", gains[AGREED], strict=True)
        )
        sentences.append(
            f"- {name.replace('-', ', protocol `')}`: the head {shown[HEAD]} (R / N; {met}); the consensus "
            f"{shown[AGREED]} (5 %: {five}), in both metrics {above} its voters trained separately and fused "
            f"({shown[FUSION]})."
        )
    return "\n".join(sentences)


def plot(target: Path) -> None:
    """Accuracy against seconds of training: baselines by name, ours by markers that a legend explains."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.8), layout="constrained")
    seconds: dict[tuple[str, str], list[float]] = {}
    for line in [*lines("strong-baselines"), *lines("strong")]:
        seconds.setdefault((line["key"]["data"], line["key"]["variant"]), []).append(line["seconds"])
    variant = {HEAD: "strong", AGREED: "strong", FUSION: "apart", RERANKED: "apart", CONTROL: "squares, re-ranked"}
    axes = figure.subplots(2, 2).flat
    for axis, (name, known) in zip(axes, reversed(series().items()), strict=True):
        for who, runs in known.items():
            x, y = max(mean(seconds[name, variant.get(who, who)]), 0.02), value(runs, "recall@50")
            if who in OURS:
                place = OURS.index(who)
                axis.scatter(x, y, color=f"C{place}", marker="o^sDv"[place], s=30, label=who.replace("`", ""))
            else:
                axis.scatter(x, y, color="0.5", s=22)
                axis.annotate(who, (x, y), (4, 3), textcoords="offset points", fontsize=8)
        axis.set(xscale="log", title=name.replace("-", ", "), xlabel="seconds to train", ylabel="test Recall@50")
        axis.margins(0.15)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(target, dpi=110)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def page() -> str:
    """docs/strong.md."""
    known = series()
    alone, steps = lines("strong-alone"), lines("strong-steps")[-1]
    whole = ("strong", "strong-baselines", "strong-ablations", "strong-alone")
    text = (ROOT / "benchmarks" / "strong_words.md").read_text("utf-8")
    filled = {
        "tables": "".join(section(name, known[name]) for name in reversed(DATA)),
        "ablations": ablations(),
        "goal": goal(known),
        "alone": " and ".join(
            f"{_time(line['seconds'])} on {'an H200' if 'cuda' in line['device'] else 'two cores'}" for line in alone
        ),
        **{name: f"{seconds:.2g}" for name, seconds in steps["seconds"].items()},
        "settings": ", ".join(f"`{name}`" for name in alone[0]["settings"]["objectives"]),
        "commits": commits_table({name: lines(name) for name in whole} | {"strong-steps": [steps]}),
    }
    for name, words in filled.items():
        text = text.replace(f"{{{{{name}}}}}", words)
    return text


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    (ROOT / "docs" / "strong.md").write_text(page(), encoding="utf-8")
    plot(ROOT / "docs" / "strong.png")


if __name__ == "__main__":
    main()
