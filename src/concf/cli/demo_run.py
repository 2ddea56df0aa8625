"""Compute what `concf demo` prints: the default preset and tuned baselines on a simulated log, in under a minute."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from concf.baselines.ease import EASE
from concf.baselines.factorisation import IALS, Popularity, PureSVD
from concf.baselines.neighbours import ItemKNN, RP3beta
from concf.baselines.table import Candidate
from concf.comparison.compare import compare
from concf.data.prepare import prepare
from concf.errors import MissingExtraError
from concf.evaluation.significance import paired_t
from concf.models import DEFAULT, choose_settings, train
from concf.report.gather import gather
from concf.runs.checkpoint import RunFolder
from concf.runs.settings import CONSENSUS
from concf.runtime.executors import one_thread_each
from concf.runtime.files import new_folder

SUMMARY, RUN, REPORT = "demo.json", "run", "report.html"  # in the folder of the demo, which demo.json marks
METRIC = "recall@50"  # on validation: chooses the settings of the baselines and of ConCF's voters
AT = (20, 50)
SMALL_GRIDS = {
    "popularity": Candidate(Popularity),
    "itemknn": Candidate(ItemKNN, {"neighbours": (50, 200, 1000), "shrink": (10.0, 50.0, 200.0)}),
    "ease": Candidate(EASE, {"regularisation": (100.0, 200.0, 400.0, 800.0)}),
    "rp3beta": Candidate(RP3beta, {"alpha": (0.3, 0.5, 0.7), "beta": (-0.2, 0.0, 0.2), "neighbours": (50, 200)}),
    "puresvd": Candidate(PureSVD, {"factors": (8, 16, 32, 64)}),
    "ials": Candidate(IALS, {"factors": (64,), "alpha": (2.0, 5.0, 10.0), "regularisation": (15.0, 30.0, 60.0)}),
}
CHANGES: dict[str, Any] = {"dimensions": 64}  # for a small log


def run(out: str | Path = "demo") -> dict[str, Any]:
    """Tune the baselines and train the default preset on one split of a simulated log; write the run and its report.

    out: a new folder, or that of an earlier demo, which is replaced when the new one is complete

    Returns what `demo.json` holds, among it
    rows:    "kind" baseline or ConCF, "name", "means" on test, "validation", "chosen" settings
    rival, gain, p: the best baseline, the gain of the consensus over it, and p of a paired t-test
    """
    begin, out = time.monotonic(), Path(out)
    with new_folder(out, marker=SUMMARY, overwrite=True) as fresh:
        data = prepare("demo", protocol="random")
        settings = choose_settings(DEFAULT, CHANGES | {"training": {"metric": METRIC}})
        home = RunFolder(fresh / RUN)
        home.keep(data)
        with one_thread_each():  # operations this small gain nothing from more
            models = {name: model for name, model in SMALL_GRIDS.items() if name != "ials" or find_spec("implicit")}
            baselines = compare(data, models, seeds=1)
            learned = train(data, settings, device="cpu", out=home.path)
            ours = learned.evaluate(at=AT)
        with suppress(MissingExtraError):
            from concf.report.page import page

            content = gather(learned, home.description(), name=out.resolve().name)
            (fresh / REPORT).write_text(page(content), encoding="utf-8")
        rival = max(baselines.entrants, key=lambda each: each.mean(METRIC))
        summary = {
            "data": data.summary(), "preset": DEFAULT, "changes": CHANGES, "metric": METRIC,
            "best_head": learned.best_head(),
            "rows": [
                *(
                    {"kind": "baseline", "name": each.name, "means": each.tests[0], "validation": each.validation,
                     "chosen": each.settings}
                    for each in reversed(baselines.entrants)
                ),
                *(
                    {"kind": "ConCF", "name": name, "means": ours[name].means(),
                     "validation": learned.best[name].validation, "chosen": learned.chosen.get(name, {})}
                    for name in learned.rows()
                ),
            ],
            "rival": rival.name, "gain": ours[CONSENSUS].means()[METRIC] / rival.mean(METRIC) - 1,
            "p": paired_t(ours[CONSENSUS].per_user[METRIC], rival.per_user[METRIC]),
            "out": str(out), "run": str(out / RUN),
            "report": str(out / REPORT) if (fresh / REPORT).is_file() else None, "seconds": time.monotonic() - begin,
        }  # fmt: skip
        (fresh / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
