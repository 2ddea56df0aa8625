"""Content of a run's report: values for JSON, not rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import RP3beta
from concf.baselines.table import voter
from concf.evaluation.complementarity import complementary_hit_ratio, hits_of, per_map
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.metrics import METRICS
from concf.evaluation.significance import paired_t
from concf.inference.explain import about, cross_fitted
from concf.inference.recommender import Recommender
from concf.runs.run import Run
from concf.runs.settings import CONSENSUS, R_CONSENSUS
from concf.runtime.settings import flat
from concf.runtime.text_tables import settings_line

AT = (20, 50)  # cutoffs
PARTS: tuple[Literal["test", "valid"], ...] = ("test", "valid")
COLUMNS = tuple(f"{metric}@{n}" for metric in METRICS for n in AT)
CURVES = ("validation", "loss", "consensus_loss", "weight", "gradient")  # fields of a history record
METRIC, WALKS = "recall@50", "rp3beta"  # metric and baseline of the overview
LIST_LENGTH = 10  # most items of a list that are shown
HISTORY_LENGTH = 24  # most training items that are shown

Evaluations = Mapping[str, Evaluation]  # by head or consensus


def gather(
    run: Run, description: Mapping[str, Any], *, name: str = "run", examples: int = 4,
    titles: Mapping[Any, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the content of the report.

    description: content of `run.json`; examples: number of users; titles: item id -> title
    """
    data, settings, summary, heads = run.data, run.settings, run.summary(), list(run.heads)
    parts: dict[str, Evaluations] = {"test": {}, "valid": {}}
    for on in PARTS:
        measurable = data.has_new_users or on not in run.learned
        if summary["tested_users"] and measurable and not (on == "valid" and cross_fitted(run)):
            parts[on] = run.evaluate(on=on, at=AT, metrics=METRICS)
    known_users: Evaluations = {} if data.has_new_users else parts["test"]
    consensus_epochs = (each["epoch"] for each in run.history if any(each.get("consensus_loss", {}).values()))
    recommenders = summary.pop("recommenders")
    preset, changes = settings.nearest_preset()
    return {
        "run": summary | {
            "name": name, "at_most": run.at_most,
            "seconds": float(sum(record["seconds"] + record.get("ranking_seconds", 0.0) for record in run.history)),
            "device": description["device"], "heads": heads, "fixed_voters": list(run.fixed_voters),
            "cross_fitted": cross_fitted(run), "all_validated_users": len(data.validated),
            "non_voting": [each for each in settings.non_voting if each in heads],
            "first_consensus_epoch": next(consensus_epochs, None),
        },
        "data": data.summary() | {
            "source": str(data.recipe.source.get("name", "")), "protocol": data.recipe.protocol.name,
            "split_seed": data.recipe.seed,
            "filters": [each.describe() for each in data.recipe.filters],
        },
        "overview": overview(run, known_users),
        "settings": {
            "preset": preset,
            "changes": [{"name": key, "value": ours, "preset": usual} for key, (ours, usual) in changes.items()],
            "all": flat(settings.model_dump(mode="json")),
        },
        "provenance": dict(description.get("provenance", {})),
        "metrics": list(COLUMNS),
        "drawn": [f"{metric}@{AT[-1]}" for metric in METRICS],
        "recommenders": [
            each | {"about": about(run, each["name"]) if each["objective"] else ""} | {
                on: {metric: _interval(part[each["name"]], metric) for metric in COLUMNS} if part else None
                for on, part in parts.items()
            }
            for each in recommenders
        ],
        "curves": {kind: {} if run.unit == "stages" else _curve(run, kind) for kind in CURVES},
        "stages": [_stage(record) for record in run.history if "stage" in record],
        "complementarity": _complementarity(run, known_users),
        "groups": {each: part.by_activity() for each, part in parts["test"].items()},
        "examples": _examples(run, known_users, examples, titles or {}),
        "notes": list(_notes(run, summary["tested_users"] > 0)),
    }  # fmt: skip


def _interval(evaluation: Evaluation, metric: str) -> dict[str, float]:
    """Mean over users and its 95 % bootstrap interval."""
    low, high = evaluation.interval(metric)
    return {"mean": evaluation.means()[metric], "low": low, "high": high}


def _stage(record: Mapping[str, Any]) -> list[str]:
    """Table row of one stage."""
    chosen = [f"{voter}: {settings_line(each)}" for voter, each in record.get("chosen", {}).items()]
    scores, fused = (
        ", ".join(f"{name} {value:.4f}" for name, value in record.get(kind, {}).items())
        for kind in ("validation", "fusions")
    )
    scores += f"; plain fusions, on a sample of the users: {fused}" if fused else ""
    return [record["stage"], f"{record['seconds']:.1f}", "; ".join(chosen), scores]


def _curve(run: Run, kind: str) -> dict[str, list[tuple[int, float]]]:
    """Map each name to (epoch, value) of epochs that have one; a consensus loss of 0 is left out: it had no target."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in run.history:
        for name, value in record.get(kind, {}).items():
            if kind != "consensus_loss" or value:
                curves.setdefault(name, []).append((record["epoch"], value))
    return {name: curves[name] for name in (*run.heads, R_CONSENSUS, CONSENSUS) if name in curves}


def _complementarity(run: Run, evaluations: Evaluations) -> dict[str, Any] | None:
    """PER(x; y) of heads and consensus, and the share of all heads' hits that each misses (CHR), on the test part."""
    if not evaluations or not run.settings.several:
        return None
    n = AT[-1]
    hits = {name: hits_of(each, run.data, n) for name, each in evaluations.items() if name != R_CONSENSUS}
    heads = {name: hits[name] for name in run.heads}
    missed = {name: complementary_hit_ratio(each, heads.values()) for name, each in hits.items()}
    return {"n": n, "per": per_map(hits), "chr": missed, "hits": {name: len(each) for name, each in hits.items()}}


def _notes(run: Run, has_test: bool) -> Iterator[str]:
    """Limitations of the metrics, for the top of the page."""
    if not run.finished:
        of = f"{run.epoch} of at most {run.at_most} epochs" if run.at_most else f"{run.epoch} {run.unit}"
        yield f"This run is not finished. The report shows the last checkpoint, after {of}."
    if "valid" in run.learned:
        yield "The recommenders were refitted on the validation part: its metrics were measured before the refit."
    elif cross_fitted(run):
        yield "The re-ranker was fitted on the validation part: its metrics there are cross-fitted."
    if "test" in run.learned:
        yield "They were refitted on the test part as well: there are no test metrics, no hits and no examples."
    elif not has_test:
        yield "The data set has no test part: there are no test metrics, no hits and no examples."
    elif (doubt := run.data.doubt("test")) is not None:
        yield f"{doubt[0].upper()}{doubt[1:]}."
    if not (run.settings.several or CONSENSUS in run.best):
        yield "This run has one head: there is no consensus and no balancing."
    elif run.settings.consensus.shown < AT[-1]:
        yield f"Consensus lists have {run.settings.consensus.shown} items (consensus.shown); later ranks are misses."


def overview(run: Run, evaluations: Evaluations) -> dict[str, Any] | None:
    """Metrics on the test part; None without one. evaluations: of every head and consensus

    rows:        the recommended model, the best head and the baselines: name, about, mean, low, high
    gain, p:     of the recommended model over the best baseline: relative difference, and p of a paired t-test
    without_hit: share of users without a test item among their first 50
    groups:      by activity, the most active first: users, activity, metric
    """
    if not evaluations:
        return None
    ours = CONSENSUS if CONSENSUS in evaluations else run.best_head()
    chosen = run.chosen.get(WALKS) or run.chosen.get(f"{WALKS}-a")
    walks = voter(WALKS, chosen) if chosen else RP3beta()
    abouts = {
        WALKS: f"random walks, {'tuned on validation' if chosen else 'not tuned'}",
        "popularity": "the same for everyone",
    }
    shown = {name: evaluations[name] for name in (ours, run.best_head())}
    fitted: dict[str, Any] = {WALKS: walks.fit(run.log), "popularity": Popularity().fit(run.log)}
    shown |= {name: evaluate(each, run.data, at=AT[-1], metrics=["recall"]) for name, each in fitted.items()}
    best = max(abouts, key=lambda name: shown[name].means()[METRIC])
    own, rival = (shown[name].per_user[METRIC] for name in (ours, best))
    rows = [{"name": name, "about": abouts.get(name, "")} | _interval(each, METRIC) for name, each in shown.items()]
    groups = evaluations[ours].by_activity()
    return {
        "metric": METRIC, "name": ours, "rows": rows, "best_baseline": best,
        "gain": float(own.mean() / rival.mean() - 1) if rival.any() else None,
        "p": paired_t(own, rival) if len(own) > 1 else None, "without_hit": float((own == 0).mean()),
        "groups": [{part: group[part] for part in ("users", "activity", METRIC)} for group in groups],
    }  # fmt: skip


def _examples(run: Run, evaluations: Evaluations, n: int, titles: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Lists of n users spaced evenly from the most to the least active, not chosen by how well they are served.

    evaluations: of every head and consensus on the test part, whose lists leave out training and validation items
    """
    if not evaluations:
        return []
    model, first = Recommender(run), next(iter(evaluations.values()))
    order = np.lexsort((first.users, -first.activity))
    n = min(n, len(order))
    rows = [int(order[(2 * k + 1) * len(order) // (2 * n)]) for k in range(n)]
    return [_example(model, evaluations, row, titles) for row in rows]


def _example(model: Recommender, evaluations: Evaluations, row: int, titles: Mapping[Any, str]) -> dict[str, Any]:
    data, user = model.run.data, int(next(iter(evaluations.values())).users[row])
    trained, held_out = (sorted(part[[user]].indices.tolist()) for part in (data.train, data.test))
    if data.interactions.timestamp is not None:  # the newest first
        own = data.interactions.user == user
        times = dict(zip(data.interactions.item[own].tolist(), data.interactions.timestamp[own].tolist(), strict=True))
        trained = sorted(trained, key=lambda item: (-times[item], item))

    def named(item: int) -> dict[str, Any]:
        identity = model.item_ids.values[[item]].tolist()[0]
        return {"item": identity, "title": titles.get(identity)}

    lists = {name: each.lists[row][each.lists[row] >= 0].tolist() for name, each in evaluations.items()}
    shown = lists[model.default]
    return {
        "user": model.user_ids.values[[user]].tolist()[0], "by": model.default, "used": len(trained),
        "history": [named(item) for item in trained[:HISTORY_LENGTH]],
        "held_out": [named(item) | {"rank": shown.index(item) + 1 if item in shown else None} for item in held_out],
        "lists": {
            name: [named(item) | {"hit": item in held_out} for item in items[:LIST_LENGTH]]
            for name, items in lists.items() if name != R_CONSENSUS
        },
    }  # fmt: skip
