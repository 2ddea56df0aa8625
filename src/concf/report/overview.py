"""What a reader wants to know first: is it good compared with simple baselines, and who is served badly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from concf.consensus.settings import CONSENSUS
from concf.consensus.voters import NEIGHBOURS
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.significance import paired_t
from concf.model.baselines.neighbours import RP3beta
from concf.model.baselines.popularity import Popularity
from concf.training.run import Run

METRIC, N = "recall@50", 50
WALKS = "rp3beta"


def overview(run: Run, evaluations: Mapping[str, Evaluation]) -> dict[str, Any] | None:
    """Figures on the test part; None without one. evaluations: of every head and consensus

    rows:        what is recommended, the best head and the baselines: name, about, mean, low, high
    gain, p:     of what is recommended over the best baseline: the relative difference, and a paired t-test's p
    without_hit: the share of users without a test item among their first 50
    groups:      by activity, the most active first: users, activity, figure
    """
    if not evaluations:
        return None
    ours = CONSENSUS if CONSENSUS in evaluations else run.best_head()
    baselines = dict(_baselines(run))
    shown = {name: evaluations[name] for name in dict.fromkeys((ours, run.best_head()))} | {
        name: each for name, (_, each) in baselines.items()
    }
    best = max(baselines, key=lambda name: shown[name].means()[METRIC])
    mine, theirs = (shown[name].per_user[METRIC] for name in (ours, best))
    groups = evaluations[ours].by_activity()
    return {
        "metric": METRIC,
        "name": ours,
        "rows": [_row(name, baselines[name][0] if name in baselines else "", each) for name, each in shown.items()],
        "best_baseline": best,
        "gain": float(mine.mean() / theirs.mean() - 1) if theirs.any() else None,
        "p": paired_t(mine, theirs) if len(mine) > 1 else None,
        "without_hit": float((mine == 0).mean()),
        "groups": [{part: group[part] for part in ("users", "activity", METRIC)} for group in groups],
    }


def _baselines(run: Run) -> Iterator[tuple[str, tuple[str, Evaluation]]]:
    """Name -> what it is, and its figures: fitted on what the run has learned from."""
    chosen = run.chosen.get(WALKS) or run.chosen.get(f"{WALKS}-a")
    tuned, walks = (
        ("tuned on validation", RP3beta(**chosen, neighbours=NEIGHBOURS)) if chosen else ("not tuned", RP3beta())
    )
    for name, about, model in (
        (WALKS, f"random walks, {tuned}", walks),
        ("popularity", "the same for everyone", Popularity()),
    ):
        yield name, (about, evaluate(model.fit(run.log), run.data, at=N, metrics=["recall"]))


def _row(name: str, about: str, evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval(METRIC)
    return {"name": name, "about": about, "mean": evaluation.means()[METRIC], "low": low, "high": high}
