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
from strong import ABLATIONS, CHOICE_SEEDS, DATA, RESULTS, ROOT

FIGURES = ("recall@50", "ndcg@50")
HEAD, AGREED = "ConCF `strong`, the head it ships", "ConCF `strong`, consensus"
FUSION, JUDGED = "its voters trained apart, plain rank fusion", "its voters trained apart, re-ranked"
ALIKE = "two heads of weighted squares, re-ranked"
OURS = (HEAD, AGREED, FUSION, JUDGED, ALIKE)
EVIDENCE = {  # stage and label in the trials -> what the re-ranker hears
    ("7", "now"): "the voters' ranks, popularity, activity",
    ("4", "s"): "and the heads' scores",
    ("5", "h1 h3"): "instead z-score and relative score",
    ("7", "V1"): "scores, z-score, relative score, and what is of the item alone",
    ("7", "V2"): "and similarity",
    ("7", "V3 p q"): "and all these times popularity and activity, about what was built",
    ("7", "V3 no"): "scores, z-score, relative score, similarity, and no ranks",
    ("6", "full"): "beside, similarity of users, leave-one-out scores, likelihood ratios",
    ("6", "+L x v I R"): "beside, similarity in the log, RP3beta's scores, nearest items",
    ("7", "V3 hl"): "logarithms of z-score and relative score beside",
    ("4", "s h e f c"): "scores, z-score, relative score, similarity, and what like users are recommended",
}
Series = dict[int, dict[str, float]]  # seed -> figures


def series() -> dict[str, dict[str, Series]]:
    """Data set -> who -> seed -> test figures."""
    found: dict[str, dict[str, Series]] = {each: {} for each in DATA}
    for line in [*lines("strong-baselines"), *lines("strong")]:
        key, rows = line["key"], line["rows"]
        who: dict[str, dict[str, Any]] = {
            "strong": {HEAD: line.get("best_head"), AGREED: "consensus"},
            "apart": {FUSION: "R-consensus", JUDGED: "consensus"},
            "squares, re-ranked": {ALIKE: "consensus"},
        }
        for title, row in who.get(key["variant"], {key["variant"]: key["variant"]}).items():
            found[key["data"]].setdefault(title, {})[key["seed"]] = rows[row]["test"]
    return found


def best_baseline(known: dict[str, Series]) -> dict[str, str]:
    """The best of each figure, chosen on the very splits that it is held against: the hardest bar."""
    baselines = {who: runs for who, runs in known.items() if who not in OURS}
    return {figure: max(baselines, key=lambda who: value(baselines[who], figure)) for figure in FIGURES}


def value(runs: Series, figure: str) -> float:
    return mean(run[figure] for run in runs.values())


def row(who: str, known: dict[str, Series]) -> list[str]:
    cells, bars = [who], best_baseline(known)
    for figure in FIGURES:
        figures = [run[figure] for run in known[who].values()]
        spread = f" ± {stdev(figures):.4f}" if len(figures) > 1 else ""
        cells.append(f"{mean(figures):.4f}{spread}")
    for figure in FIGURES:
        bar = known[bars[figure]]
        shared = sorted(bar.keys() & known[who].keys())
        mine, theirs = ([runs[seed][figure] for seed in shared] for runs in (known[who], bar))
        if who == bars[figure]:
            cells.append("the bar")
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


def ablations(measured: str, without: frozenset[str] = frozenset()) -> str:
    """Validation of the best head and of the consensus without each part, beside `strong` on the same splits."""
    found: dict[str, dict[tuple[str, int], tuple[float, float]]] = {}
    for line in lines(measured):
        measures, key = line["rows"], line["key"]
        if key["variant"] not in ABLATIONS.keys() - without or key["seed"] not in CHOICE_SEEDS:
            continue
        both = measures[line["best_head"]]["validation"], measures["consensus"]["validation"]
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


def evidence() -> str:
    """Validation and test Recall@50 of re-ranks that hear more, in a prototype: means over splits, gains in percent."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for line in lines("strong-trials-evidence-2"):
        if line.get("form") == "3":
            who = line["stage"].removeprefix("evidence "), line["label"], line["data"].rpartition("-")[0]
            found.setdefault(who, {})[line["data"]] = [line["cross_fitted"][0], line["test"][0]]
    names, rows = list(reversed(DATA)), []
    for (stage, label), title in EVIDENCE.items():
        cells = []
        for name in names:
            mine, plain = found[stage, label, name], found["7", "now", name]
            pairs = [
                [mean(run[part] for run in (runs[split] for split in mine)) for runs in (mine, plain)]
                for part in (0, 1)
            ]
            gains = ", ".join(f"{100 * (one / other - 1):+.1f} %" for one, other in pairs)
            cells.append(", ".join(f"{one:.4f}" for one, _ in pairs) if label == "now" else gains)
        rows.append([title, *cells])
    return table(["", *names], rows)


def goal(known: dict[str, dict[str, Series]]) -> str:
    """What each row reached, in a sentence."""
    said = []
    for name in reversed(DATA):
        rows, bars = known[name], best_baseline(known[name])
        gains = {
            who: [100 * (value(rows[who], figure) / value(rows[bars[figure]], figure) - 1) for figure in FIGURES]
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
        said.append(
            f"- {name.replace('-', ', protocol `')}`: the head {shown[HEAD]} (R / N; {met}); the consensus "
            f"{shown[AGREED]} (5 %: {five}), in both {above} its voters trained apart and fused ({shown[FUSION]})."
        )
    return "\n".join(said)


def plot(target: Path) -> None:
    """Accuracy against seconds of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    every, known_of = [*lines("strong-baselines"), *lines("strong")], series()
    for axis, name in zip(axes.flat, reversed(DATA), strict=True):
        known = known_of[name]
        for who, runs in known.items():
            variant = {
                HEAD: "strong",
                AGREED: "strong",
                FUSION: "apart",
                JUDGED: "apart",
                ALIKE: "squares, re-ranked",
            }.get(who, who)
            took = [
                line["seconds"] for line in every if line["key"]["data"] == name and line["key"]["variant"] == variant
            ]
            ours = who in OURS
            label = {
                HEAD: "strong, head",
                AGREED: "strong, consensus",
                FUSION: "apart, fused",
                JUDGED: "apart, re-ranked",
                ALIKE: "squares, re-ranked",
            }.get(who, who)
            axis.scatter(max(mean(took), 0.02), value(runs, "recall@50"), color="C0" if ours else "0.5", s=22)
            axis.annotate(
                label, (max(mean(took), 0.02), value(runs, "recall@50")), (4, 3), textcoords="offset points", fontsize=7
            )
        axis.set(xscale="log", title=name.replace("-", ", "), xlabel="seconds to train", ylabel="test Recall@50")
        axis.margins(0.15)
    figure.savefig(target, dpi=110)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def page() -> str:
    """docs/strong.md."""
    known = series()
    alone, steps = lines("strong-alone"), lines("strong-steps")[-1]
    trials = sorted(path.stem for path in RESULTS.glob("strong-trials*.jsonl"))
    whole = ("strong", "strong-baselines", "strong-ablations", "strong-former", "strong-alone", *trials)
    text = (ROOT / "benchmarks" / "strong_words.md").read_text("utf-8")
    filled = {
        "tables": "".join(section(name, known[name]) for name in reversed(DATA)),
        "ablations": ablations("strong-ablations"),
        "former": ablations(
            "strong-former", frozenset({"none", "no re-ranker", "no fixed voters", "everyone is taught"})
        ),
        "evidence": evidence(),
        "goal": goal(known),
        "n": f"{sum(len(lines(name)) for name in trials):,}",
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
