"""Compare models at three rolling cuts of three logs with times, and write the tables of docs/time.md.

    make time

or, where the measuring machine has no data: `python benchmarks/over_time.py prepare --data FOLDER` writes the splits,
`measure --data FOLDER --jobs 8` measures them, and `render` writes the tables and a figure of what each part of the
default adds. A line of results/over-time.jsonl is a model at a cut: tuned on the window before the cut by NDCG@10,
fitted again to everything before the cut, tested once. A line that is there already is not measured again. SASRec's
lines are of benchmarks/sasrec.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest import mock

import numpy as np
import torch
from measuring import RESULTS
from sources import DOCS, lines, render

from concf.comparison.compare import compare
from concf.comparison.results_log import ResultsLog
from concf.data.simulate import DriftingSimulation
from concf.data.split import Split
from concf.runtime.text_tables import markdown
from concf.strong import decision as deciding
from concf.strong.decision import PENALTIES, Decision, gain
from concf.strong.run import StrongRun

DATA = {"amazon-beauty": "Amazon Beauty", "yelp-2019": "Yelp 2019", "ciao": "Ciao"}
CUTS, STRONG = 3, "concf:strong"
METRICS = ("ndcg@10", "hit@10", "recall@50")
MODELS = (
    "popularity", "recent-popularity", "decayed-popularity", "itemknn", "rp3beta", "als", "als-decayed", "ease",
    "ease-decayed", "slist", "als-sequence", STRONG,
)  # fmt: skip
OTHERS = [f"permuted {data}" for data in DATA] + [f"simulated {name}" for name in ("still", "drift", "fashion", "all")]
BLIND = "strong without times"
PARTS = {  # the default with a decision that is given
    BLIND: None,  # one window
    "strong with two windows": Decision(False, False, PENALTIES[0], {}),
    "strong with features": Decision(False, True, PENALTIES[0], {}),
    "strong with features and voters": Decision(True, True, PENALTIES[0], {}),
}
SASREC = {"beauty": "amazon-beauty", "yelp": "yelp-2019", "ciao": "ciao"}  # names of its lines
SHIPPED = ("consensus", "head")
USERS = {"warm": "warm users", "everyone": "everyone"}


def prepare(folder: Path) -> None:
    """Write the splits of every log at every cut."""
    from concf.comparison.rolling import rolling_splits

    for name, log in ({data: data for data in DATA} | dict(others())).items():
        for cut, split in enumerate(rolling_splits(log, CUTS, {"test": 0.1}), 1):
            split.save(folder / f"{name}-{cut}", overwrite=True)
            print(name, cut, split.held_out()[1], flush=True)


def others() -> Iterator[tuple[str, Any]]:
    """Logs on which times say little, or much: the three with permuted times, and simulated ones."""
    import polars as pl

    from concf.comparison.rolling import rolling_splits

    for data in DATA:
        log = rolling_splits(data, 1, {"test": 0.1})[0].interactions  # with the filters of the catalogue
        assert log.timestamp is not None
        time = np.random.default_rng(5).permutation(log.timestamp)
        yield f"permuted {data}", pl.DataFrame({"user_id": log.user, "item_id": log.item, "timestamp": time})
    size = {"users": 4000, "items": 2000, "events": 120_000}
    still = {"fashion": None, "drift": 0.0, "new_users": 0.0, "new_items": 0.0}
    for name, more in {
        "still": still,
        "drift": still | {"drift": 0.7},
        "fashion": still | {"fashion": 0.25},
        "all": {},
    }.items():
        yield f"simulated {name}", DriftingSimulation(**size | more).draw(7)


def measure(folder: Path, results: Path, jobs: int, only: list[str]) -> None:
    """Measure every model at every cut that has no line yet."""
    log = ResultsLog(results)
    models = [model for model in only or (*PARTS, *MODELS) if model != BLIND]  # measured with the default
    keys = [
        {"data": data, "cut": cut, "model": model}
        for model in reversed(models) for data in DATA for cut in range(CUTS, 0, -1)
    ]  # fmt: skip
    if not only or STRONG in only:
        keys += [{"data": data, "cut": cut, "model": STRONG} for data in OTHERS for cut in range(CUTS, 0, -1)]
    keys = [key for key in keys if log.find(key) is None]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(cell, folder, key): key for key in keys}
        for future in as_completed(futures):
            key, error = futures[future], future.exception()
            if error is not None:  # such as a GPU without memory for so many jobs: measured in the next call
                print(key, repr(error)[:200], flush=True)
                continue
            log.add(key, future.result())
            found = future.result()["entrants"]
            print(key, {each["model"]: round(each["warm"][METRICS[0]], 4) for each in found}, flush=True)


def cell(folder: Path, key: dict[str, Any]) -> dict[str, Any]:
    """Tune and test a model at a cut; the default without times, too.

    gain: consensus or head -> mean gain of a user by times in the first metric, and its standard error
    """
    split, model = Split.load(folder / f"{key['data']}-{key['cut']}"), key["model"]
    found = entrants(split, model)
    line: dict[str, Any] = {}
    if model == STRONG:
        found += entrants(split, BLIND)
        users = {each["model"]: each["per_user"] for each in found}
        pairs = {ship: (users[f"{STRONG} {ship}"], users[f"without times: {ship}"]) for ship in SHIPPED}
        line["gain"] = {ship: gain(*pair) for ship, pair in pairs.items()}
    return line | {"entrants": [{name: each[name] for name in each if name != "per_user"} for each in found]}


def entrants(split: Split, model: str) -> list[dict[str, Any]]:
    """Tune and test a model; a preset has two entrants, its consensus and its head."""
    given = _given(PARTS[model]) if model in PARTS else nullcontext()
    with given:
        compared = compare(split, [STRONG if model in PARTS else model], seeds=1, metrics=METRICS)
    if torch.cuda.is_available():  # other processes need the memory
        torch.cuda.empty_cache()
    return [
        {
            "model": _named(model, entrant.name), "settings": entrant.settings, "at_grid_edge": entrant.edges,
            "validation": entrant.validation, "warm": entrant.tests[0], "everyone": entrant.everyone[0],
            "fit_seconds": entrant.fit_seconds[0], "users": len(split.evaluated), "split": split.hash,
            "per_user": entrant.per_user.get(METRICS[0]),
        }
        for entrant in compared.entrants
    ]  # fmt: skip


def _named(model: str, entrant: str) -> str:
    """Name of an entrant in the table: that of a part ends with what is shipped."""
    return entrant.replace(STRONG, f"{model.removeprefix('strong ')}:") if model in PARTS else entrant


def _given(decision: Decision | None) -> Any:
    """Let the default use times as decided here; None: not at all."""
    if decision is None:
        return mock.patch.object(StrongRun, "by_time", False)
    return mock.patch.object(deciding, "decide", return_value=decision)


def measured() -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """(log, model) -> cut -> its entrant."""
    cells: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for line in lines("over-time"):
        for entrant in line["entrants"]:
            cells.setdefault((line["key"]["data"], entrant["model"]), {})[line["key"]["cut"]] = entrant
    for line in lines("sasrec"):
        if line["part"] == "test":
            cells.setdefault((SASREC[line["data"]], "SASRec (RecTools)"), {})[line["cut"]] = line["test"]
    return cells


def tables() -> dict[str, str]:
    """A table for each log: mean ± standard deviation over the cuts, of warm users and of everyone."""
    found, cells = {}, measured()
    for data in DATA:
        rows = []
        for (name, model), by_cut in cells.items():
            if name != data or len(by_cut) < CUTS or model.startswith("with "):
                continue
            ordered = [by_cut[cut] for cut in sorted(by_cut)]
            values = {
                (users, metric): [entrant[users][metric] for entrant in ordered]
                for users in USERS
                for metric in METRICS
            }
            shown = [f"{mean(each):.4f} ± {stdev(each):.4f}" for each in values.values()]
            last = f"{ordered[-1]['warm']['ndcg@10']:.4f} / {ordered[-1]['warm']['hit@10']:.4f}"
            rows.append((mean(values["warm", METRICS[0]]), [model, *shown, last]))
        header = ["model", *(f"{metric}, {who}" for who in USERS.values() for metric in ("N@10", "Hit@10", "R@50"))]
        ordered_rows = [row for _, row in sorted(rows, key=lambda row: -row[0])]
        found[f"over time {data}"] = markdown([*header, "last cut: N@10 / Hit@10, warm"], ordered_rows)
    return found


def losses() -> str:
    """A table of the default against itself without times, on every log.

    A change is followed by its size in standard errors: those of the users of each cut, summed over the cuts.
    """
    rows, cells = [], measured()
    gains = {(line["key"]["data"], line["key"]["cut"]): line["gain"] for line in lines("over-time") if "gain" in line}
    for data in [*DATA, *OTHERS]:
        of_cuts = [gains[data, cut] for cut in range(1, CUTS + 1) if (data, cut) in gains]
        if len(of_cuts) < CUTS:
            continue
        row = [DATA.get(data, data)]
        for ship in SHIPPED:
            without = mean(each["warm"][METRICS[0]] for each in cells[data, f"without times: {ship}"].values())
            by_cut, errors = zip(*(each[ship] for each in of_cuts), strict=True)
            error = sum(each**2 for each in errors) ** 0.5 / CUTS
            worst = min(range(CUTS), key=lambda cut: by_cut[cut] / max(errors[cut], 1e-12))
            row += [f"{without:.4f}", f"{without + mean(by_cut):.4f}", _shown(mean(by_cut), error, without)]
            row.append(_shown(by_cut[worst], errors[worst], without))
        rows.append(row)
    header = [f"{ship}{what}" for ship in SHIPPED for what in (" without times", "", ": change", ", worst cut")]
    return markdown(["log", *header], rows)


def _shown(change: float, error: float, base: float) -> str:
    return f"{change / base:+.1%} ({change / max(error, 1e-12):+.1f})"


def waterfall(path: Path) -> None:
    """Draw what each part adds to NDCG@10 of the consensus, mean over the cuts, for logs with lines of all cuts."""
    from matplotlib.figure import Figure

    parts = [part.removeprefix("strong ") for part in PARTS]
    names = {f"{part}: consensus": part for part in parts} | {f"{STRONG} consensus": "as decided"}
    figures: dict[str, dict[str, float]] = {}
    for (data, name), by_cut in measured().items():
        if data in DATA and name in names and len(by_cut) == CUTS:
            figures.setdefault(data, {})[name] = mean(each["warm"][METRICS[0]] for each in by_cut.values())
    drawn = {data: values for data, values in figures.items() if len(values) > 2}
    figure = Figure(figsize=(4 * len(drawn), 3.6), layout="constrained")
    for axes, (data, values) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        shown = [(names[name], values[name]) for name in names if name in values]
        for place, (_, value) in enumerate(shown):
            whole = place in (0, len(shown) - 1)
            before = 0.0 if whole else shown[place - 1][1]
            colour = "#4477aa" if whole else "#228833" if value >= before else "#cc6677"
            axes.bar(place, value - before, bottom=before, color=colour)
            axes.text(place, max(value, before), f"{value:.4f}", ha="center", va="bottom", fontsize=8)
        axes.set_xticks(range(len(shown)), [name.replace(" ", "\n") for name, _ in shown], fontsize=8)
        axes.set_title(DATA[data])
        axes.set_ylabel("NDCG@10, warm users")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "measure", "render"))
    parser.add_argument("--data", type=Path, default=Path("build/over-time"))
    parser.add_argument("--results", type=Path, default=RESULTS / "over-time.jsonl")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    options = parser.parse_args()
    if options.step == "prepare":
        prepare(options.data)
    elif options.step == "measure":
        measure(options.data, options.results, options.jobs, [name for name in options.only.split(",") if name])
    else:
        render("over_time", {DOCS / "time.md": tables() | {"over time others": losses()}})
        waterfall(DOCS / "waterfall.svg")


if __name__ == "__main__":
    main()
