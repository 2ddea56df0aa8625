"""docs/strong.md and docs/leaderboard.md, from what benchmarks/strong.py measured.

python benchmarks/render_strong.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

from leaderboard.board import HEADER, SPLITS, Entry, ordered, published
from scipy.stats import ttest_rel
from sources import commit_of, commits_table, lines
from strong import GIVEN, GUARDS, INNER, NEWEST, PUBLIC, ROOT, ROWS, TENTH

from concf.runtime.text_tables import markdown

HEAD, AGREED = "`strong`, the head it ships", "`strong`, consensus"
OURS = {
    HEAD: ("default", "student"),
    AGREED: ("default", "consensus"),
    "`--budget thorough`, the head": ("thorough", "student"),
    "`--budget thorough`, consensus": ("thorough", "consensus"),
}
VOTERS = {f"voter {name}": ("default", name) for name in ("als-a", "als-b", "softmax-a")}  # rivals, as baselines are
FIGURES, BUDGETS = ("recall@50", "ndcg@50"), ("default", "thorough")
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


def tables(refit: str, names: tuple[str, ...] = ROWS) -> str:
    """A table for each data set."""
    known, parts = series(refit), []
    header = ["", "R@50", "N@50", "R against the best baseline", "N against the best baseline"]
    for name in (
        each for each in names if known.get(each, {}).keys() - OURS.keys() - VOTERS.keys()
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


def ours() -> list[Entry]:
    """Our lines of the leaderboard: figures, seconds and commit of one line each."""
    found = []
    for line in [*lines("strong"), *lines("strong-baselines")]:
        key, name = line["key"], line["key"]["data"].partition("-")[0]
        if key["data"] not in (*PUBLIC, *TENTH, *NEWEST):
            continue
        part = GIVEN[key["data"].partition("-")[2]]
        share = f"{'newest ' if 'newest' in part else ''}{part['valid']:.0%}".replace("%", " %")
        budget = {"default": "", "thorough": " --budget thorough"}.get(key.get("budget", "default"), "")
        who = {label: row for label, (of, row) in OURS.items() if of == key.get("budget")}
        figures = {label: line["rows"][row]["test"] for label, row in who.items()} or {key["model"]: line["test"]}
        trained = f", {share} for validation, {'then refitted' if key['refit'] == 'validation' else 'not refitted'}"
        command = f"concf train data/{name}{budget} --out runs/{name}" if who and key["refit"] == "validation" else None
        for label, means in figures.items():
            found.append(Entry(
                method=label.replace("`", "") + trained, data=name, split=SPLITS[name], chosen_by="validation",
                recall=means["recall@20"], ndcg=means["ndcg@20"], source="benchmarks/results",
                seconds=line["seconds"], machine="H200, shared", command=command, commit=commit_of(line),
            ))  # fmt: skip
    return found


def inner() -> str:
    """What the newest items are worth as a validation part, where the end of each training line is held back."""
    found = {(line["key"]["data"], line["key"]["budget"]): line["rows"] for line in lines("strong")}
    header = ["data", "validation part", "`default`, consensus", "head", "`thorough`, consensus", "head"]
    rows = []
    for name in INNER:
        data, part = name.partition("-")[0], GIVEN[name.rpartition("-")[2]]
        cells = [found[name, budget][who]["test"] for budget in BUDGETS for who in ("consensus", "student")]
        share = f"{'newest' if 'newest' in part else 'drawn'} {part['valid']:.0%}".replace("%", " %")
        rows.append([data, share, *(f"{each['recall@20']:.4f} / {each['ndcg@20']:.4f}" for each in cells)])
    return markdown(header, rows)


def entries(name: str) -> list[Entry]:
    """Published lines and ours, by NDCG@20."""
    return ordered([*published(name), *(each for each in ours() if each.data == name)])


def leaderboard(name: str) -> str:
    """The table of a data set."""
    rows = [[*each.cells(), f"`{each.commit}`" if each.commit else ""] for each in entries(name)]
    return markdown([*HEADER, "commit"], rows)


def draw_costs() -> None:
    """docs/leaderboard.svg: NDCG@20 against seconds, of the lines whose cost is known."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "concf", "font.size": 9}):
        figure = Figure(figsize=(9.5, 5.8))
        figure.subplots_adjust(left=0.08, right=0.98, top=0.95, bottom=0.52, wspace=0.2)
        for axes, name in zip(figure.subplots(1, 2), SPLITS, strict=True):
            known = [each for each in entries(name) if each.seconds is not None]
            known.sort(key=lambda each: (each.seconds, -each.ndcg))
            best = [each for at, each in enumerate(known) if all(each.ndcg > before.ndcg for before in known[:at])]
            axes.step([each.seconds for each in best], [each.ndcg for each in best], where="post", color="C1", zorder=1)
            for at, each in enumerate(known):
                axes.scatter(each.seconds, each.ndcg, color="C1" if each in best else "C0", zorder=2)
                place = (-11, -9) if at and known[at - 1].seconds == each.seconds else (5, 4)  # the lower of two
                axes.annotate(str(at + 1), (each.seconds, each.ndcg), place, textcoords="offset points")
            best_published = max(published(name), key=lambda each: each.ndcg)
            axes.axhline(best_published.ndcg, color="grey", linestyle=":", linewidth=1)
            words, middle = f"best published, {best_published.method}: cost not known", axes.get_yaxis_transform()
            axes.text(0.02, best_published.ndcg, words, transform=middle, va="bottom", color="grey")
            axes.set(xscale="log", xlabel="seconds of training, shared H200", ylabel="NDCG@20", title=name)
            axes.margins(0.12, 0.15)
            legend = "\n".join(f"{at + 1}  {each.method}" for at, each in enumerate(known))
            axes.text(0, -0.22, legend, transform=axes.transAxes, va="top", fontsize=7)
        figure.savefig(ROOT / "docs" / "leaderboard.svg", metadata=dict.fromkeys(("Creator", "Date")))


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
        "guards": tables("validation", GUARDS),
        "large": f"{large['seconds']:.0f} s and {large['GiB']:.1f} GiB ({large['pairs']:,} training pairs)",
        "gowalla": leaderboard("gowalla"),
        "yelp": leaderboard("yelp2018"),
        "inner": inner(),
        "commits": commits_table({name: lines(name) for name in names}),
    }
    text = (ROOT / "benchmarks" / words).read_text("utf-8")
    for name, content in filled.items():
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw_costs()
    for name in ("strong", "leaderboard"):
        Path(ROOT / "docs" / f"{name}.md").write_text(page(f"{name}_words.md"), encoding="utf-8")


if __name__ == "__main__":
    main()
