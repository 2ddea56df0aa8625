"""The content of a run's report: plain values that JSON can hold, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from concf.baselines.factorisation import Popularity
from concf.baselines.neighbours import RP3beta
from concf.baselines.table import voter
from concf.consensus.consensus import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.evaluation.complementarity import complementary_hit_ratio, hits_of, per_map
from concf.evaluation.evaluate import Evaluation, evaluate
from concf.evaluation.significance import paired_t
from concf.inference.explain import Contribution, about, cross_fitted
from concf.inference.lookup import place_of
from concf.inference.recommender import Recommender
from concf.runs.run import Run
from concf.runs.settings import RunSettings
from concf.runtime.settings import flat
from concf.runtime.text_tables import settings_line

AT = (20, 50)  # cutoffs
METRICS = ("recall", "ndcg")
PARTS: tuple[Literal["test", "valid"], ...] = ("test", "valid")
FIGURES = tuple(f"{metric}@{n}" for metric in METRICS for n in AT)
CURVES = ("validation", "agreement", "loss", "consensus_loss", "weight", "gradient")  # fields of a history record
METRIC, N = "recall@50", 50
WALKS = "rp3beta"
LIST_LENGTH = 10  # items of a list that are shown
HISTORY_LENGTH = 24  # training items that are shown
LIFTS = 2  # of an item that are named
KINDS = {"score": "scores above everyone's", "similarity": "similarity to the history", "popularity": "popularity"}

Evaluations = Mapping[str, Evaluation]  # by head or consensus


def gather(
    run: Run, description: Mapping[str, Any], *, name: str = "run", examples: int = 4,
    titles: Mapping[Any, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The content of the report.

    description: the content of `run.json`; examples: the number of users; titles: item id -> title
    """
    has_test = run.summary()["tested_users"] > 0
    parts: dict[str, Evaluations] = {"test": {}, "valid": {}}
    for on in PARTS:
        measurable = run.data.has_new_users or on not in run.learned
        if has_test and measurable and not (on == "valid" and cross_fitted(run)):
            parts[on] = run.evaluate(on=on, at=AT, metrics=METRICS)
    of_the_log: Evaluations = {} if run.data.has_new_users else parts["test"]
    return {
        "run": _about(run, description, name),
        "data": _data(run.data),
        "overview": overview(run, of_the_log),
        "settings": _settings(run.settings),
        "provenance": dict(description.get("provenance", {})),
        "figures": list(FIGURES),
        "drawn": [f"{metric}@{AT[-1]}" for metric in METRICS],
        "recommenders": [
            each | _figures(each["name"], parts) | {"about": about(run, each["name"]) if each["objective"] else ""}
            for each in run.summary()["recommenders"]
        ],
        "curves": {kind: {} if run.unit == "stages" else _curve(run, kind) for kind in CURVES},
        "stages": [_stage(record) for record in run.history if "stage" in record],
        "complementarity": _complementarity(run, of_the_log),
        "groups": {name: each.by_activity() for name, each in parts["test"].items()},
        "examples": examples_of(run, of_the_log, examples, titles or {}),
        "notes": list(_notes(run, has_test)),
    }


def _about(run: Run, description: Mapping[str, Any], name: str) -> dict[str, Any]:
    settings, heads = run.settings, run.heads
    first = (record["epoch"] for record in run.history if any(record.get("consensus_loss", {}).values()))
    return {key: value for key, value in run.summary().items() if key != "recommenders"} | {
        "name": name,
        "at_most": run.at_most,
        "seconds": float(sum(record["seconds"] + record.get("ranking_seconds", 0.0) for record in run.history)),
        "device": description["device"],
        "heads": heads,
        "fixed_voters": list(settings.fixed_voters),
        "cross_fitted": cross_fitted(run),
        "all_validated_users": len(run.data.validated),
        "non_voting": [each for each in settings.non_voting if each in heads],
        "first_consensus_epoch": next(first, None),
    }


def _data(data: Split) -> dict[str, Any]:
    recipe = data.recipe
    return data.summary() | {
        "source": str(recipe.source.get("name", "")),
        "protocol": recipe.protocol.name,
        "split_seed": recipe.seed,
        "filters": [each.describe() for each in recipe.filters],
    }


def _settings(chosen: RunSettings) -> dict[str, Any]:
    """The nearest preset and the differences from it."""
    preset, changes = chosen.nearest_preset()
    rows = [{"name": name, "value": mine, "preset": theirs} for name, (mine, theirs) in changes.items()]
    return {"preset": preset, "changes": rows, "all": flat(chosen.model_dump(mode="json"))}


def _figures(name: str, parts: Mapping[str, Evaluations]) -> dict[str, Any]:
    """Part -> figure -> its mean over users and the 95 % bootstrap interval; part -> None without a test part."""

    def bounds(evaluation: Evaluation, figure: str) -> dict[str, float]:
        low, high = evaluation.interval(figure)
        return {"mean": evaluation.means()[figure], "low": low, "high": high}

    return {on: {key: bounds(each[name], key) for key in FIGURES} if each else None for on, each in parts.items()}


def _stage(record: Mapping[str, Any]) -> list[str]:
    """One stage of a recipe, as a row of a table."""
    chosen = [f"{voter}: {settings_line(each)}" for voter, each in record.get("chosen", {}).items()]
    figures, fused = (
        ", ".join(f"{name} {value:.4f}" for name, value in record.get(kind, {}).items())
        for kind in ("validation", "fusions")
    )
    figures += f"; plain fusions beside the consensus, of some users: {fused}" if fused else ""
    return [record["stage"], f"{record['seconds']:.1f}", "; ".join(chosen), figures]


def _curve(run: Run, kind: str) -> dict[str, list[tuple[int, float]]]:
    """Name -> (epoch, value) of every epoch that has one; consensus losses of 0 are left out: there was no target."""
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
    """What a reader should know before reading the figures."""
    if not run.finished:
        of = f"{run.epoch} of at most {run.at_most} epochs"
        yield f"This run is not finished. The report shows the last checkpoint, after {of}."
    if "valid" in run.learned:
        yield (
            "The recommenders were refitted on the validation part too: validation figures were measured before, on "
            "those that the settings were chosen by."
        )
    elif cross_fitted(run):
        yield "The re-ranker was fitted on the validation part: figures on it are the cross-fitted ones alone."
    if "test" in run.learned:
        yield "They were refitted on the test part as well: there are no test figures, no hits and no examples."
    elif not has_test:
        yield "The data set has no test part: there are no test figures, no hits and no examples."
    elif (doubt := run.data.doubt("test")) is not None:
        yield f"{doubt[0].upper()}{doubt[1:]}."
    if not run.settings.several:
        yield "This run has one head: there is no consensus, no agreement and no balancing."
    elif run.settings.consensus.shown < AT[-1]:
        yield f"Consensus lists have {run.settings.consensus.shown} items (consensus.shown); later ranks are misses."


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
    tuned, walks = ("tuned on validation", voter("rp3beta", chosen)) if chosen else ("not tuned", RP3beta())
    for name, what, model in (
        (WALKS, f"random walks, {tuned}", walks),
        ("popularity", "the same for everyone", Popularity()),
    ):
        yield name, (what, evaluate(model.fit(run.log), run.data, at=N, metrics=["recall"]))


def _row(name: str, about: str, evaluation: Evaluation) -> dict[str, Any]:
    low, high = evaluation.interval(METRIC)
    return {"name": name, "about": about, "mean": evaluation.means()[METRIC], "low": low, "high": high}


def examples_of(run: Run, evaluations: Evaluations, n: int, titles: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Users spaced evenly from the most to the least active, not chosen by how well they are served.

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
    test_items = _items(data.test, user)

    def named(item: int) -> dict[str, Any]:
        identity = model.item_ids.values[[item]].tolist()[0]
        return {"item": identity, "title": titles.get(identity)}

    lists = {name: each.lists[row][each.lists[row] >= 0].tolist() for name, each in evaluations.items()}
    shown = lists[model.default]
    return {
        "user": model.user_ids.values[[user]].tolist()[0],
        "by": model.default,
        "used": len(_items(data.train, user)),
        "history": [named(item) for item in _newest(data, user)[:HISTORY_LENGTH]],
        "held_out": [named(item) | {"rank": shown.index(item) + 1 if item in shown else None} for item in test_items],
        "lists": {
            name: [named(item) | {"hit": item in test_items} for item in items[:LIST_LENGTH]]
            for name, items in lists.items()
            if name != R_CONSENSUS
        },
        "votes": _votes(model, user, shown[:LIST_LENGTH], named) if CONSENSUS in lists else None,
    }


def _items(part: csr_array, user: int) -> list[int]:
    """The items of a user in ascending order."""
    return sorted(part[[user]].indices.tolist())


def _newest(data: Split, user: int) -> list[int]:
    """The training items of a user, the newest first where the log has times."""
    log, items = data.interactions, _items(data.train, user)
    if log.timestamp is None:
        return items
    own = log.user == user
    times = dict(zip(log.item[own].tolist(), log.timestamp[own].tolist(), strict=True))
    return sorted(items, key=lambda item: (-times[item], item))


def _votes(
    model: Recommender, user: int, items: list[int], named: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]] | None:
    """Of each item: the rank, R, consistency C and vote of every voter, their mean, the re-ranker's score, and why.

    None if the run has no votes, as with a softmax consensus.
    """
    if not model.run.best[CONSENSUS].votes:
        return None
    user_id = model.user_ids.values[[user]].tolist()[0]
    explained = [model.explain(user_id, item_id) for item_id in model.item_ids.values[items].tolist()]
    return [
        {
            "importance": each["importance"],
            "reranked": each["reranked"],
            "heads": each["heads"],
            "because": [named(place_of(model.item_ids, used["item"])) for used in each["because"]],
            "lifts": _lifts(each["contributions"] or []),
        }
        for each in explained
    ]


def _lifts(contributions: list[Contribution]) -> list[tuple[str, float]]:
    """What lifts an item most: each voter's rank, and the rest by kind."""
    totals: dict[str, float] = {}
    for each in contributions:
        what = f"{each['voter']}'s rank" if each["kind"] == "rank" else KINDS[each["kind"]]
        totals[what] = totals.get(what, 0.0) + each["value"]
    return sorted(((what, value) for what, value in totals.items() if value > 0), key=lambda lift: -lift[1])[:LIFTS]
