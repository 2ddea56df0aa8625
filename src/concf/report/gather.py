"""The figures of a run's report: plain values that JSON can hold, nothing rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from concf.consensus.complementarity import chr_of_each, complementary_hit_ratio, hits_of, per_map
from concf.consensus.settings import CONSENSUS, R_CONSENSUS
from concf.data.split import Split
from concf.evaluation.evaluate import Evaluation
from concf.report.examples import examples_of
from concf.training.config.presets import PRESETS
from concf.training.config.settings import ConCFSettings
from concf.training.run import Run, n_validated

AT = (20, 50)
METRICS = ("recall", "ndcg")
FIGURES = tuple(f"{metric}@{n}" for metric in METRICS for n in AT)
HEADLINE = f"{METRICS[0]}@{AT[-1]}"
CURVES = ("validation", "agreement", "loss", "consensus_loss", "weight", "gradient")  # of a record of history, by name


def gather(
    run: Run, said: Mapping[str, Any], *, name: str = "run", examples: int = 4, titles: Mapping[Any, str] | None = None
) -> dict[str, Any]:
    """Everything that the report says.

    said: what `run.json` says; examples: how many users; titles: item id -> what it is called
    """
    has_test = len(run.data.evaluated) > 0
    found = {on: run.evaluate(on=on, at=AT, metrics=METRICS) if has_test else {} for on in ("test", "valid")}
    return {
        "run": _about(run, said, name),
        "data": _data(run.data),
        "settings": _settings(run.settings),
        "provenance": dict(said.get("provenance") or {}),
        "figures": list(FIGURES),
        "recommenders": [_recommender(run, each, found) for each in run.rows()],
        "curves": {kind: _curve(run, kind) for kind in CURVES},
        "complementarity": _complementarity(run, found["test"]),
        "groups": _groups(found["test"]),
        "examples": examples_of(run, found["test"], examples, titles or {}),
        "notes": list(_notes(run, has_test)),
    }


def _about(run: Run, said: Mapping[str, Any], name: str) -> dict[str, Any]:
    seconds = sum(record["seconds"] + record.get("ranking_seconds", 0.0) for record in run.history)
    return {
        "name": name,
        "finished": run.finished,
        "epochs": run.epoch,
        "at_most": run.settings.training.epochs,
        "seconds": float(seconds),
        "seed": run.seed,
        "device": said.get("device"),
        "metric": run.metric,
        "validated_users": n_validated(run.data, run.settings),
        "heads": list(run.model.names),
        "non_voting": [each for each in run.settings.consensus.non_voting if each in run.model.names],
        "best_head": run.best_head(),
        "shown": CONSENSUS if CONSENSUS in run.best else run.best_head(),
        "first_consensus_epoch": _first_consensus_epoch(run),
    }


def _first_consensus_epoch(run: Run) -> int | None:
    """The first epoch in which a head was taught."""
    taught = (record["epoch"] for record in run.history if any(record.get("consensus_loss", {}).values()))
    return next(taught, None)


def _data(data: Split) -> dict[str, Any]:
    summary, recipe = data.summary(), data.recipe
    wanted = ("users", "items", "interactions", "events", "density", "train", "valid", "test", "dropped")
    return {
        "source": str(recipe.source.get("name", "")),
        "protocol": recipe.protocol.name,
        "split_seed": recipe.seed,
        "split_hash": summary["split_hash"],
        "filters": [each.describe() for each in recipe.filters],
        "evaluated_users": summary["evaluated_users"],
        **{name: summary[name] for name in wanted},
        "notes": summary["notes"],
    }


def _settings(chosen: ConCFSettings) -> dict[str, Any]:
    """The preset that is nearest, and what differs from it; a run does not keep the name of its preset."""
    mine = _flat(chosen.model_dump(mode="json"))
    changes = {}
    for name, preset in sorted(PRESETS.items(), key=lambda each: each[0] != "reference"):
        its = _flat(preset.model_dump(mode="json"))
        changes[name] = [
            {"name": each, "value": value, "preset": its[each]} for each, value in mine.items() if value != its[each]
        ]
    nearest = min(changes, key=lambda name: len(changes[name]))
    return {"preset": nearest, "changes": changes[nearest], "all": mine}


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """`consensus.weight` -> its value."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def _recommender(run: Run, name: str, found: Mapping[str, Mapping[str, Evaluation]]) -> dict[str, Any]:
    best = run.best[name]
    figures = {on: _with_intervals(each[name]) if each else None for on, each in found.items()}
    is_head = name in run.model.names
    return {"name": name, "head": is_head, "validation": best.validation, "epoch": best.epoch, **figures}


def _with_intervals(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Figure -> its mean over users, and where the bootstrap's 95 % of such means lie."""
    means = evaluation.means()
    return {
        figure: dict(zip(("mean", "low", "high"), (means[figure], *evaluation.interval(figure)), strict=True))
        for figure in FIGURES
    }


def _curve(run: Run, kind: str) -> dict[str, list[tuple[int, float]]]:
    """Name -> (epoch, value) of every epoch that has it; a consensus target only where there is one."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in run.history:
        for name, value in record.get(kind, {}).items():
            if kind != "consensus_loss" or value:
                curves.setdefault(name, []).append((record["epoch"], value))
    return {name: curves[name] for name in (*run.model.names, R_CONSENSUS, CONSENSUS) if name in curves}


def _complementarity(run: Run, found: Mapping[str, Evaluation]) -> dict[str, Any] | None:
    """PER(x; y) of the heads and the consensus, and what of all heads' hits each misses (CHR), on the test part."""
    if not found or not run.settings.several:
        return None
    n = AT[-1]
    hits = {name: hits_of(each, run.data, n) for name, each in found.items() if name != R_CONSENSUS}
    heads = {name: hits[name] for name in run.model.names}
    missed = chr_of_each(heads)
    if CONSENSUS in hits:
        missed[CONSENSUS] = complementary_hit_ratio(hits[CONSENSUS], heads.values())
    return {"n": n, "per": per_map(hits), "chr": missed, "hits": {name: len(each) for name, each in hits.items()}}


def _groups(found: Mapping[str, Evaluation]) -> dict[str, Any] | None:
    """The test figures by how active users are, the most active first."""
    if not found:
        return None
    by_name = {name: each.by_activity() for name, each in found.items()}
    sizes = [{"users": int(group["users"]), "activity": group["activity"]} for group in next(iter(by_name.values()))]
    means = {name: [{figure: group[figure] for figure in FIGURES} for group in each] for name, each in by_name.items()}
    return {"groups": sizes, "means": means}


def _notes(run: Run, has_test: bool) -> Iterator[str]:
    """What a reader should know before the figures."""
    if not run.finished:
        yield (
            f"This run is not finished: it shows the last checkpoint, after {run.epoch} of at most "
            f"{run.settings.training.epochs} epochs."
        )
    if not has_test:
        yield "The data set holds nothing out to test on: there are no test figures, hits or examples."
    elif (doubt := run.data.doubt("test")) is not None:
        yield f"{doubt[0].upper()}{doubt[1:]}."
    if not run.settings.several:
        yield "One head alone: there is no consensus, nothing to agree on and nothing to balance."
    elif run.settings.consensus.shown < AT[-1]:
        shown = run.settings.consensus.shown
        yield f"The consensuses keep {shown} places (consensus.shown); places after them count as misses."
    if run.settings.several and not any(record.get("agreement") for record in run.history):
        yield "The history of this run does not say how much the heads agreed: an older version wrote it."
