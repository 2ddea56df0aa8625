"""docs/strong.md and docs/leaderboard.md, from the lines that benchmarks/strong.py measured.

python benchmarks/render_strong.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import ttest_rel
from sources import commits_table, lines
from strong import PUBLIC, ROOT, ROWS

from concf.runtime.text_tables import markdown

HEAD, AGREED = "`strong`, the head it ships", "`strong`, consensus"
OURS = {
    HEAD: ("default", "student"),
    AGREED: ("default", "consensus"),
    "`--budget thorough`, the head": ("thorough", "student"),
    "`--budget thorough`, consensus": ("thorough", "consensus"),
}
VOTERS = {f"voter {name}": ("default", name) for name in ("als-a", "als-b", "softmax-a")}  # rivals, as baselines are
FIGURES = ("recall@50", "ndcg@50")
PUBLISHED = {  # Recall@20 and NDCG@20 as published; who chose by the test part is said in the page's words
    "gowalla-given": {
        "LightGCN": (0.1820, 0.1547), "EASE^R": (0.1765, 0.1467), "SimpleX": (0.1872, 0.1557),
        "UltraGCN": (0.1862, 0.1580), "GF-CF": (0.1849, 0.1518), "LinkProp-Multi": (0.1908, 0.1573),
        "BSPM-EM": (0.1920, 0.1597), "BSL with LightGCN": (0.1892, 0.1590), "NESCL": (0.1917, 0.1617),
        "ChebyCF": (0.1941, 0.1616),
    },
    "yelp2018-given": {
        "LightGCN": (0.0653, 0.0532), "EASE^R": (0.0657, 0.0552), "SimpleX": (0.0701, 0.0575),
        "UltraGCN": (0.0683, 0.0561), "GF-CF": (0.0697, 0.0571), "BSPM-EM": (0.0720, 0.0593),
        "XSimGCL": (0.0723, 0.0604), "NESCL": (0.0743, 0.0611), "BSL with LightGCN": (0.0744, 0.0617),
    },
}  # fmt: skip
Series = dict[int, dict[str, float]]  # seed -> test figures


def series(refit: str) -> dict[str, dict[str, Series]]:
    """Data set -> who -> seed -> test figures, of those that were refitted or not."""
    found: dict[str, dict[str, Series]] = {}
    for line in lines("strong"):
        key = line["key"]
        for who, (budget, name) in (OURS | VOTERS).items():
            if (key["refit"], key["budget"]) == (refit, budget):
                found.setdefault(key["data"], {}).setdefault(who, {})[key["seed"]] = line["rows"][name]["test"]
    for line in lines("strong-baselines"):
        key = line["key"]
        if key["refit"] == refit:
            found.setdefault(key["data"], {}).setdefault(key["model"], {})[key["seed"]] = line["test"]
    return found


def value(runs: Series, figure: str) -> float:
    return mean(run[figure] for run in runs.values())


def best_baseline(known: dict[str, Series]) -> dict[str, str]:
    """The best baseline of each figure, chosen on the very splits that are reported: the hardest to beat."""
    baselines = {who: runs for who, runs in known.items() if who not in OURS}
    return {figure: max(baselines, key=lambda who: value(baselines[who], figure)) for figure in FIGURES}


def row(who: str, known: dict[str, Series]) -> list[str]:
    cells, best = [who], best_baseline(known)
    for figure in FIGURES:
        figures = [run[figure] for run in known[who].values()]
        cells.append(f"{mean(figures):.4f} ± {stdev(figures):.4f}")
    for figure in FIGURES:
        baseline = known[best[figure]]
        shared = sorted(baseline.keys() & known[who].keys())
        mine, theirs = ([runs[seed][figure] for seed in shared] for runs in (known[who], baseline))
        if who == best[figure]:
            cells.append("best baseline")
        else:
            p = ttest_rel(mine, theirs).pvalue
            cells.append(f"{100 * (mean(mine) / mean(theirs) - 1):+.1f} % (p {p:.2g})")
    return cells


def tables(refit: str) -> str:
    """A table for each data set."""
    known, parts = series(refit), []
    header = ["", "R@50", "N@50", "R against the best baseline", "N against the best baseline"]
    for name in (
        each for each in ROWS if known[each].keys() - OURS.keys() - VOTERS.keys()
    ):  # baselines were measured there
        ordered = sorted(known[name], key=lambda who: -value(known[name][who], "recall@50"))
        source, _, protocol = name.partition("-")
        rows = markdown(header, [row(who, known[name]) for who in ordered])
        parts.append(
            f"### {source}, protocol `{protocol}`{'' if refit == 'validation' else ', not refitted'}\n\n{rows}"
        )
    return "\n".join(parts)


def summary() -> str:
    """A line for each data set: what refitting brings, and how much of the consensus the head keeps."""
    whole, part = series("validation"), series("none")
    header = ["data", "refitting, consensus R@50, N@50", "refitting, head", "head of consensus R@50, N@50"]
    rows = []
    for name in (*ROWS, *PUBLIC):
        cells = [name.replace("-", ", ")]
        for who in (AGREED, HEAD):
            gains = (100 * (value(whole[name][who], each) / value(part[name][who], each) - 1) for each in FIGURES)
            cells.append(", ".join(f"{gain:+.1f} %" for gain in gains))
        kept = (100 * value(whole[name][HEAD], each) / value(whole[name][AGREED], each) for each in FIGURES)
        rows.append([*cells, ", ".join(f"{share:.1f} %" for share in kept)])
    return markdown(header, rows)


def ablations() -> str:
    """Validation Recall@50 of consensus and head, by budget and without each voter."""
    rows = []
    for line in lines("strong-ablations"):
        key, figures = line["key"], line["validation"]
        variant = key["budget"] + ("" if key["without"] is None else f" without {key['without']}")
        shown = [f"{figures[each]:.4f}" for each in ("consensus", "student", "R-consensus")]
        rows.append([f"{key['data']}, seed {key['seed']}", variant, *shown, f"{line['seconds']:.0f}"])
    return markdown(["data", "", "consensus", "head", "plain consensus", "seconds, shared H200"], rows)


def times() -> str:
    """Seconds on two cores, beside implicit's ALS."""
    header = ["data", "budget", "seconds", "implicit's ALS", "ratio", "processor seconds, ratio"]
    rows = []
    for line in lines("strong-times"):
        ours, rivals = line["seconds"], line["rival_seconds"]
        rival, used = mean(each[0] for each in rivals), mean(each[1] for each in rivals)
        cells = [
            f"{ours[0]:.0f}",
            f"{rival:.1f}",
            f"{line['times']:.1f}",
            f"{ours[1]:.0f} / {used:.0f} = {ours[1] / used:.1f}",
        ]
        rows.append([line["key"]["data"].replace("-", ", "), line["key"]["budget"], *cells])
    return markdown(header, rows)


def leaderboard(name: str) -> str:
    """Published figures and ours, by NDCG@20."""
    known, rows = {refit: series(refit)[name] for refit in ("validation", "none")}, []
    for refit, words in (("validation", ", refitted on all of train"), ("none", ", 95 % of train")):
        for who in known[refit].keys() - VOTERS:
            figures = known[refit][who][0]
            rows.append((f"{who}{words}", figures["recall@20"], figures["ndcg@20"], "chosen on validation"))
    rows += [(who, *figures, "published") for who, figures in PUBLISHED[name].items()]
    ordered = sorted(rows, key=lambda each: -each[2])
    return markdown(["", "R@20", "N@20", ""], [[who, f"{r:.4f}", f"{n:.4f}", how] for who, r, n, how in ordered])


def alone() -> str:
    """Seconds of single runs on an H200 that did nothing else."""
    took: dict[str, list[float]] = {}
    for line in lines("strong-alone"):
        if line["key"]["refit"] == "validation":
            took.setdefault(f"{line['key']['data'].replace('-', ' `')}`, `{line['key']['budget']}`", []).append(
                line["seconds"]
            )
    return "; ".join(f"{name}: {mean(each):.1f} s" for name, each in took.items())


def page(words: str = "strong_words.md") -> str:
    """docs/strong.md, or another page of the same lines."""
    large = lines("strong-large")[-1]
    names = ("strong", "strong-alone", "strong-baselines", "strong-ablations", "strong-large", "strong-times")
    filled = {
        "refitted": tables("validation"),
        "not_refitted": tables("none"),
        "summary": summary(),
        "ablations": ablations(),
        "times": times(),
        "alone": alone(),
        "large": f"{large['seconds']:.0f} s and {large['GiB']:.1f} GiB ({large['pairs']:,} training pairs)",
        "gowalla": leaderboard("gowalla-given"),
        "yelp": leaderboard("yelp2018-given"),
        "commits": commits_table({name: lines(name) for name in names}),
    }
    text = (ROOT / "benchmarks" / words).read_text("utf-8")
    for name, content in filled.items():
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in ("strong", "leaderboard"):
        Path(ROOT / "docs" / f"{name}.md").write_text(page(f"{name}_words.md"), encoding="utf-8")


if __name__ == "__main__":
    main()
