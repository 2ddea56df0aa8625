"""The main job on embedded data, on a CPU, in under a minute: baselines, single objectives and ConCF side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from concf.baselines.ease import EASE
from concf.baselines.factorisation import IALS, PureSVD
from concf.baselines.neighbours import ItemKNN, RP3beta
from concf.baselines.popularity import Popularity
from concf.baselines.table import Candidate
from concf.comparison import compare
from concf.data.prepare import prepare
from concf.data.split import Split
from concf.evaluation.ranking import rank
from concf.learning.presets import choose_settings
from concf.learning.run import Run
from concf.learning.settings import CONSENSUS
from concf.learning.train import train

SMALL_GRIDS = {
    "popularity": Candidate(Popularity),
    "itemknn": Candidate(ItemKNN, {"neighbours": (20, 50, 200), "shrink": (10.0, 50.0)}),
    "ease": Candidate(EASE, {"regularisation": (150.0, 250.0, 500.0)}),
    "rp3beta": Candidate(RP3beta, {"alpha": (0.5, 0.7), "beta": (0.0, 0.2), "neighbours": (50,)}),
    "puresvd": Candidate(PureSVD, {"factors": (8, 16, 32)}),
    "ials": Candidate(IALS, {"factors": (64,), "alpha": (5.0, 10.0), "regularisation": (30.0, 60.0)}),
}
PRESET = "reference"
CHANGES: dict[str, dict[str, Any]] = {  # for a small log and a short run; chosen on validation
    "training": {"epochs": 21, "learning_rate": 0.02},
    "consensus": {"every": 4, "window": 2, "weight": 0.02, "kept": 200},
}
OBJECTIVES = ("bpr", "cml", "cross-entropy", "squared-error", "multinomial")  # CF-A to CF-E


def run() -> dict[str, Any]:
    """Prepare the simulated log, tune baselines, train single objectives and ConCF; all on one split.

    rows:    "kind" baseline, SingleCF or ConCF; "name"; "means" on test; "validation"; "chosen" settings or epoch
    curves:  ConCF's head or consensus -> [epoch, validation] of every ranking
    example: what the consensus recommends to one user
    """
    data = prepare("demo", protocol="random")
    settings = choose_settings(PRESET, CHANGES)
    with _one_thread():
        rows = _baselines(data)
        for name in OBJECTIVES:
            rows += _rows("SingleCF", train(data, settings.single(name), device="cpu"))
        learned = train(data, settings, device="cpu")
        rows += _rows("ConCF", learned)
    figures = [record for record in learned.history if "validation" in record]
    return {
        "data": data.summary(),
        "preset": PRESET,
        "changes": CHANGES,
        "metric": learned.metric,
        "best_head": learned.best_head(),
        "rows": rows,
        "curves": {
            name: [[record["epoch"], record["validation"][name]] for record in figures] for name in learned.rows()
        },
        "example": _example(data, learned),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Operations this small are as fast on one thread, and threads on a busy machine would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _baselines(data: Split) -> list[dict[str, Any]]:
    models = {name: model for name, model in SMALL_GRIDS.items() if name != "ials" or find_spec("implicit")}
    return [
        {"kind": "baseline", "name": each.name, "means": each.tests[0], "validation": each.validation,
         "chosen": each.settings}
        for each in reversed(compare(data, models, seeds=1).entrants)
    ]  # fmt: skip


def _rows(kind: str, learned: Run) -> list[dict[str, Any]]:
    tests = learned.evaluate()
    return [
        {"kind": kind, "name": name, "means": tests[name].means(), "validation": learned.best[name].validation,
         "chosen": {"epoch": learned.best[name].epoch}}
        for name in learned.rows()
    ]  # fmt: skip


def _example(data: Split, learned: Run) -> dict[str, Any]:
    """The consensus' first ten for the first user that is evaluated, in the log's own ids."""
    user = data.evaluated[:1]
    items = rank(learned.recommender(CONSENSUS), user, 10, seen=data.seen("test"))[0]
    held_out, names = set(data.test[user].indices.tolist()), data.interactions.item_ids.values
    return {
        "model": CONSENSUS,
        "user": data.interactions.user_ids.values[user].tolist()[0],
        "history": names[data.train[user].indices[:8]].tolist(),
        "items": [
            {"rank": place + 1, "item": names[item].item(), "was": "held out" if item in held_out else ""}
            for place, item in enumerate(items.tolist())
        ],
    }
