"""Write the tables of docs/strong.md from results/strong*.jsonl.

python benchmarks/render_strong.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from leaderboard.board import HEADER, SPLITS, Entry, ordered, published
from scipy.stats import ttest_rel
from sources import DOCS, commit_of, lines, render
from strong import GIVEN, GUARDS, NEWEST, PUBLIC, ROWS, TENTH

from concf.runtime.text_tables import markdown

HEAD, AGREED = "`strong`, the head it ships", "`strong`, consensus"
OURS = {
    HEAD: ("default", "student"),
    AGREED: ("default", "consensus"),
    "`--budget thorough`, the head": ("thorough", "student"),
    "`--budget thorough`, consensus": ("thorough", "consensus"),
}
VOTERS = {f"voter {name}": ("default", name) for name in ("als-a", "als-b")}  # rivals, as baselines are
FIGURES = ("recall@50", "ndcg@50")
Series = dict[int, dict[str, float]]  # seed -> test figures


def series() -> dict[str, dict[str, Series]]:
    """Data set -> who -> seed -> test figures."""
    found: dict[str, dict[str, Series]] = {}
    for line in lines("strong"):
        key = line["key"]
        for who, (budget, name) in (OURS | VOTERS).items():
            if (key["refit"], key["budget"]) == ("validation", budget):
                found.setdefault(key["data"], {}).setdefault(who, {})[key["seed"]] = line["rows"][name]["test"]
    for line in lines("strong-rivals"):
        key = line["key"]
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
        cells.append(f"{mean(figures):.4f}" + (f" ± {stdev(figures):.4f}" if len(figures) > 1 else " (one seed)"))
    for figure in FIGURES:
        baseline = known[best[figure]]
        shared = sorted(baseline.keys() & known[who].keys())
        mine, theirs = ([runs[seed][figure] for seed in shared] for runs in (known[who], baseline))
        if who == best[figure]:
            cells.append("best baseline")
        else:
            sure = f"p {ttest_rel(mine, theirs).pvalue:.2g}" if len(shared) > 1 else "one seed"
            cells.append(f"{100 * (mean(mine) / mean(theirs) - 1):+.1f} % ({sure})")
    return cells


def comparison(names: tuple[str, ...]) -> str:
    """A table for each data set, everyone refitted."""
    known, parts = series(), []
    header = ["", "R@50", "N@50", "R against the best baseline", "N against the best baseline"]
    for name in names:
        ordered = sorted(known[name], key=lambda who: -value(known[name][who], "recall@50"))
        source, _, protocol = name.partition("-")
        rows = markdown(header, [row(who, known[name]) for who in ordered])
        parts.append(f"### {source}, protocol `{protocol}`\n\n{rows}")
    return "\n".join(parts)


def kept() -> str:
    """How much of the consensus the head keeps on each data set, by budget."""
    found, rows = series(), []
    header = ["data", "`strong`, R@50, N@50", "`--budget thorough`"]
    pairs = (HEAD, AGREED), ("`--budget thorough`, the head", "`--budget thorough`, consensus")
    for name in (*ROWS, *GUARDS, *PUBLIC):
        shares = [
            ", ".join(f"{100 * value(found[name][head], one) / value(found[name][both], one):.1f} %" for one in FIGURES)
            for head, both in pairs
        ]
        rows.append([name.replace("-", ", "), *shares])
    return markdown(header, rows)


def ablations() -> str:
    """Validation Recall@50 of consensus and head on each split, by budget and without each voter."""
    cells: dict[str, dict[str, str]] = {}
    for line in lines("strong-ablations"):
        key, scores = line["key"], line["validation"]
        variant = key["budget"] + ("" if key["without"] is None else f" without {key['without']}")
        split = f"{key['data'].partition('-')[0]}, seed {key['seed']}"
        cells.setdefault(variant, {})[split] = f"{scores['consensus']:.4f} / {scores['student']:.4f}"
    splits = list(next(iter(cells.values())))
    return markdown(["", *splits], [[variant, *(found[split] for split in splits)] for variant, found in cells.items()])


def costs() -> str:
    """Seconds beside implicit's ALS on two cores."""
    header = ["data", "machine", "implicit's ALS, s", "default", "default, processor", "fast", "fast, processor"]
    rows = []
    for line in lines("beside-implicit"):
        machine = line["provenance"]["machine"]["system"].rpartition("-with")[0].rpartition("-")[2]
        ratios = [f"{line[of][budget]:.1f}" for budget in ("default", "fast") for of in ("ratios", "processor_ratios")]
        rows.append([line["key"]["data"], machine, f"{line['implicit']['seconds']:.1f}", *ratios])
    return markdown(header, rows)


def ours() -> list[Entry]:
    """Our lines of the leaderboard: figures, seconds and commit of one line each."""
    found = []
    for line in [*lines("strong"), *lines("strong-rivals")]:
        key, name = line["key"], line["key"]["data"].partition("-")[0]
        if key["data"] not in (*PUBLIC, *TENTH, *NEWEST) or key.get("refit", "validation") != "validation":
            continue
        part = GIVEN[key["data"].partition("-")[2]]
        share = f"{'newest ' if 'newest' in part else ''}{part['valid']:.0%}".replace("%", " %")
        budget = {"default": "", "thorough": " --budget thorough"}.get(key.get("budget", "default"), "")
        who = {label: row for label, (of, row) in OURS.items() if of == key.get("budget")}
        figures = {label: line["rows"][row]["test"] for label, row in who.items()} or {key["model"]: line["test"]}
        trained = f", {share} for validation"
        machine = "H200, shared" if "-gpu-" in line["provenance"]["machine"]["system"] else "one core"
        command = f"concf train data/{name}{budget} --out runs/{name}" if who else None
        for label, means in figures.items():
            found.append(Entry(
                method=label.replace("`", "") + trained, data=name, split=SPLITS[name], chosen_by="validation",
                recall=means["recall@20"], ndcg=means["ndcg@20"], source="benchmarks/results",
                seconds=line["seconds"], machine=machine, command=command, commit=commit_of(line),
            ))  # fmt: skip
    return found


def entries(name: str) -> list[Entry]:
    """Published lines and ours, by NDCG@20."""
    return ordered([*published(name), *(each for each in ours() if each.data == name)])


def leaderboard(name: str) -> str:
    """The table of a data set."""
    rows = [[*each.cells(), f"`{each.commit}`" if each.commit else ""] for each in entries(name)]
    return markdown([*HEADER, "commit"], rows)


def alone() -> str:
    """Seconds of single runs on an H200 that did nothing else."""
    took: dict[str, list[float]] = {}
    for line in lines("strong-alone"):
        if line["key"]["refit"] == "validation":
            took.setdefault(f"{line['key']['data'].replace('-', ' `')}`, `{line['key']['budget']}`", []).append(
                line["seconds"]
            )
    return "; ".join(f"{name}: {mean(each):.1f} s" for name, each in took.items())


def pages() -> dict[Path, dict[str, str]]:
    """The tables of docs/strong.md."""
    large = lines("strong-large")[-1]
    tables = {
        "refitted": comparison(ROWS),
        "sparse": comparison(GUARDS),
        "kept": kept(),
        "seconds-gpu": f"{alone()}; 138,000 users x 27,000 items, simulated, {large['pairs']:,} training pairs: "
        f"{large['seconds']:.0f} s and {large['GiB']:.1f} GiB.",
        "seconds-cpu": costs(),
        "ablations": ablations(),
        "gowalla": leaderboard("gowalla"),
        "yelp2018": leaderboard("yelp2018"),
    }
    return {DOCS / "strong.md": tables}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    render("render_strong", pages())


if __name__ == "__main__":
    main()
